package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

// drifts are the pending report's drifted resources, as one line each.
func (l *loop) drifts() (out []string) {
	if r := l.box().Report; r != nil {
		for _, o := range r.Outcomes {
			if o.Drift != "" {
				out = append(out, strings.Join([]string{string(o.Status), o.ID, o.Step, o.Error, o.Drift}, "|"))
			}
		}
	}
	return out
}

// wantDrift compares them, and what was typed.
func (l *loop) wantDrift(when, drifts, commands string) {
	l.t.Helper()
	if d := cmp.Diff(text(drifts), l.drifts()); d != "" {
		l.t.Errorf("%s: drift (-want +got):\n%s", when, d)
	}
	if d := cmp.Diff(text(commands), l.machine.Commands()); d != "" {
		l.t.Errorf("%s: commands (-want +got):\n%s", when, d)
	}
}

// notice seals one as the mesh does; change may spoil its header.
func (l *loop) notice(body string, change func(*wire.Header)) []byte {
	l.t.Helper()
	h := wire.Header{Kind: wire.KindNotice, Version: wire.Version, Mesh: l.cfg.Mesh, From: string(l.cfg.Mesh), To: string(l.cfg.Node), Time: time.Now()}
	if change != nil {
		change(&h)
	}
	data, err := wire.Seal(h, []byte(body), l.key)
	if err != nil {
		l.t.Fatal(err)
	}
	return data
}

// hearOnNotices hands over what came on the node's notice subject.
func (l *loop) hearOnNotices(data []byte) {
	l.noticed(data)
	synctest.Wait()
}

const checkNow = `{"version":1,"check":true}`

var (
	loose   = hosttest.Entry{Owner: "web", Group: "web", Mode: "0644", Content: "one"}
	foreign = hosttest.Entry{Owner: "root", Group: "root", Mode: "0666", Content: "mine"}
)

const (
	install = "install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 7692c3ad3540\n"
	drifted = "applied|web/file/conf|drift||mode 0644, want 0640\n"
)

// DEC-6: every five minutes the node looks; what is not as it was made is put right and told, and stays told until the next declaration.
// What is not the mesh's stays as it is, and a look that finds nothing says nothing.
func TestDriftIsFoundToldAndRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, web("one"))
			synctest.Wait()
			l.machine.Put("/m/web/etc/theirs", foreign)
			time.Sleep(time.Minute) // health settles
			l.machine.Commands()
			l.machine.Steps()
			said := l.box().Sequence
			time.Sleep(time.Hour)
			l.wantDrift("nothing changed", "", "")
			if n := l.box().Sequence; n != said {
				t.Errorf("nothing changed, and it said something %d times", n-said)
			}
			looks := len(slices.DeleteFunc(l.machine.Steps(), func(s string) bool { return s != "observe web/file/conf" }))
			if looks < 10 || looks > 12 {
				t.Errorf("it looked %d times in an hour", looks)
			}

			l.machine.Put("/m/web/etc/conf", loose)
			time.Sleep(6 * time.Minute)
			l.wantDrift("a mode", drifted, install+"systemctl reload web-main")
			if n := l.box().Sequence; n != said+1 {
				t.Errorf("it was told %d times", n-said)
			}
			time.Sleep(time.Hour)
			l.wantDrift("an hour later", drifted, "")
			if n := l.box().Sequence; n != said+1 {
				t.Errorf("an hour later it was told %d times", n-said)
			}

			l.machine.Remove("/m/web/data")
			l.machine.SetRunning("web/process/main", host.Running{State: "missing"}) // its supervisor was killed
			time.Sleep(6 * time.Minute)
			l.wantDrift("a folder and a process", `
				applied|web/directory/data|drift||gone
				`+drifted+`
				applied|web/process/main|drift||missing, want running`, `
				install -d -o web -g web -m 0750 /m/web/data
				systemctl start web-main # web: ["httpd"]`)

			l.declare(2, web("two"))
			l.wantDrift("the next declaration", "", "install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 3fc4ccfe7458\nsystemctl reload web-main")
			if e, ok := l.machine.Path("/m/web/etc/theirs"); !ok || e != foreign {
				t.Errorf("what was not the mesh's became %+v", e)
			}
		})
	})
}

// DEC-6, DEC-5: a repair that fails is a failure like another, tried again, and still told as drift; what was never made has not drifted.
func TestDriftThatCannotBeRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.machine.Fail("web/directory/data", "do", errors.New("no space"), 3)
			l.declare(1, web("one"))
			time.Sleep(time.Minute)
			l.wantDrift("made at the fourth try", "", webMade[:strings.Index(webMade, "install -d -o web -g web -m 0750 /m/web/data")]+
				install+"install -d -o web -g web -m 0750 /m/web/data\nsystemctl start web-main # web: [\"httpd\"]")
			l.machine.Fail("web/file/conf", "do", errors.New("read-only"), 0)
			l.machine.Put("/m/web/etc/conf", loose)
			time.Sleep(6 * time.Minute)
			l.wantDrift("it fails", "failed|web/file/conf|do|read-only|mode 0644, want 0640", "")
			if got := l.account(); !slices.Contains(got, "failed web/process/main wait depends on web/file/conf, which did not come about") {
				t.Errorf("account %q", got)
			}
			l.machine.Heal("web/file/conf")
			time.Sleep(7 * time.Minute)
			l.wantDrift("it is mended", drifted, install+"systemctl reload web-main")
		})
	})
}

// DEC-6, SAFE-5: the first look of an agent that starts tells what was changed while it was away, but not what a restart of the machine
// ends; and what was removed is no news at later looks.
func TestDriftFoundAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, append(web("one"), resource("gone/user/gone", wire.UserSpec{Name: "gone"})))
			synctest.Wait()
			l.declare(2, web("one"))
			synctest.Wait()
			time.Sleep(time.Minute)
			said := l.box().Sequence
			time.Sleep(time.Hour)
			if n := l.box().Sequence; n != said || !slices.Contains(l.account(), "removed gone/user/gone") {
				t.Errorf("said %d times more: %q", n-said, l.account())
			}
		})
		l.machine.Put("/m/web/etc/conf", loose)
		l.machine.SetRunning("web/process/main", host.Running{State: "missing"})
		l.machine.Commands()
		a, err := start(t.Context(), l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Agent = a
		a.resume(t.Context())
		l.wantDrift("at start", drifted, install+"systemctl start web-main # web: [\"httpd\"]")
		l.run(func() {
			l.machine.SetRunning("web/process/main", host.Running{State: "missing"})
			time.Sleep(6 * time.Minute)
			l.wantDrift("later", drifted+"applied|web/process/main|drift||missing, want running", "systemctl start web-main # web: [\"httpd\"]")
		})
	})
}

// DEC-6, SAFE-2: a notice from the mesh has the node look at once, however many come at most once a second; one that was played before,
// is of another time, or asks for nothing known, has it do nothing.
func TestCheckOnNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.hearOnNotices(l.notice(checkNow, nil)) // there is nothing to look at yet
			l.declare(1, web("one"))
			synctest.Wait()
			time.Sleep(2 * time.Second)
			looks := func() (n int) {
				synctest.Wait()
				for _, s := range l.machine.Steps() {
					if s == "observe web/file/conf" {
						n++
					}
				}
				return n
			}
			looks()
			l.machine.Commands()
			l.machine.Put("/m/web/etc/conf", loose)
			good := l.notice(checkNow, nil)
			l.hearOnNotices(good)
			l.wantDrift("asked", drifted, install+"systemctl reload web-main")
			if n := looks(); n != 1 {
				t.Errorf("it looked %d times", n)
			}
			time.Sleep(2 * time.Second)
			l.hearOnNotices(good)
			time.Sleep(2 * time.Second)
			if n := looks(); n != 0 || len(l.warns()) != 0 {
				t.Errorf("a replay: looked %d times, warnings %+v", n, l.warns())
			}
			for range 500 {
				time.Sleep(10 * time.Millisecond)
				l.hearOnNotices(l.notice(checkNow, nil))
			}
			if n := looks(); n < 4 || n > 6 {
				t.Errorf("500 in five seconds: it looked %d times", n)
			}
			time.Sleep(2 * time.Second)
			looks()

			for name, data := range map[string][]byte{
				"old":       l.notice(checkNow, func(h *wire.Header) { h.Time = h.Time.Add(-wire.NoticeWindow - time.Second) }),
				"early":     l.notice(checkNow, func(h *wire.Header) { h.Time = h.Time.Add(2 * wire.NoticeWindow) }),
				"another's": l.notice(checkNow, func(h *wire.Header) { h.To = wire.Everybody }),
				"from":      l.notice(checkNow, func(h *wire.Header) { h.From = string(l.cfg.Node) }),
				"mesh":      l.notice(checkNow, func(h *wire.Header) { h.Mesh += "x" }),
				"newer":     l.notice(checkNow, func(h *wire.Header) { h.Version++ }),
				"kind":      l.notice(checkNow, func(h *wire.Header) { h.Kind = wire.KindDeclaration }),
				"nothing":   l.notice(`{"version":1}`, nil),
				"empty":     l.notice(``, nil),
				"unknown":   l.notice(`{"version":1,"check":true,"more":1}`, nil),
				"version":   l.notice(`{"version":2,"check":true}`, nil),
				"flipped":   append(slices.Clone(good[:len(good)-1]), good[len(good)-1]^1),
			} {
				l.hearOnNotices(data)
				time.Sleep(2 * time.Second)
				if n := looks(); n != 0 {
					t.Errorf("%s: it looked %d times", name, n)
				}
			}
			if w := l.warns(); len(w) != 1 || w[0].Remedy == "" {
				t.Errorf("warnings %+v", w)
			}
			l.hearOnNotices(l.notice(checkNow, nil))
			if n, w := looks(), l.warns(); n != 1 || slices.ContainsFunc(w, func(w wire.Warning) bool { return w.Code == "notice-refused" }) {
				t.Errorf("a good one after them: looked %d times, warnings %+v", n, w)
			}
		})
	})
}

// DEC-6: what earlier passes over a declaration did, removed or found drifted stays told.
func TestSumOfPasses(t *testing.T) {
	o := func(id string, status wire.Status, step, drift string) wire.Outcome {
		return wire.Outcome{ID: id, Status: status, Step: step, Drift: drift}
	}
	before := []wire.Outcome{o("left", wire.Removed, "", ""), o("data", wire.StatusKept, "", ""), o("stuck", wire.Failed, "undo", ""), o("made", wire.Applied, "", ""),
		o("mended", wire.Failed, "do", "mode"), o("waits", wire.Applied, "drift", "owner"), o("again", wire.Applied, "drift", "gone"), o("same", wire.Unchanged, "", "")}
	now := []wire.Outcome{o("stuck", wire.Removed, "", ""), o("made", wire.Unchanged, "", ""), o("mended", wire.Unchanged, "", ""), o("waits", wire.Failed, "wait", ""),
		o("again", wire.Applied, "drift", "content"), o("same", wire.Unchanged, "", "")}
	want := []wire.Outcome{before[0], before[1], now[0], before[3], o("mended", wire.Unchanged, "", "mode"), o("waits", wire.Failed, "wait", "owner"), now[4], now[5]}
	got := sum(before, now)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(got, sum(got, now)); d != "" {
		t.Error("once more:\n" + d)
	}
}
