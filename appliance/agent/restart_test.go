package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/wire"
)

// stopping is a process that shall be stopped, or not; what it comes after restarts it.
func stopping(id string, stop bool, after ...string) wire.Resource {
	spec := wire.ProcessSpec{Name: "main", User: "root", Command: []string{id}, Run: wire.Run{Restart: "always", Stopped: stop, OnChange: map[string]string{}}}
	for _, id := range after {
		spec.OnChange[id] = "restart"
	}
	return resource(id, spec, after...)
}

func conf(content string) wire.Resource {
	return resource("a/file/conf", wire.FileSpec{Path: "/m/conf", Owner: "root", Group: "root", Mode: "0644", Content: content})
}

// OPS-1, OPS-3: what is stopped is there and does not run, nor does a change beneath it start it; several stop in reverse order, first of
// all, whatever becomes of what they depend on; what was never made before is made and not started.
func TestStopped(t *testing.T) {
	b := newBench(t)
	all := func(stop bool, content string) []wire.Resource {
		return []wire.Resource{conf(content), stopping("a/process/main", stop, "a/file/conf"), stopping("b/process/main", stop), stopping("c/process/main", false)}
	}
	const account = "unchanged a/file/conf\napplied a/process/main\napplied b/process/main\nunchanged c/process/main"
	if _, err := b.apply(all(false, "one"), false); err != nil {
		t.Fatal(err)
	}
	b.Commands()
	b.want(all(true, "one"), account, "systemctl stop b-main\nsystemctl stop a-main")
	const rest = "\nunchanged a/process/main\nunchanged b/process/main\nunchanged c/process/main"
	b.want(all(true, "one"), "unchanged a/file/conf"+rest, "")
	b.want(all(true, "two"), "applied a/file/conf"+rest, "install -o root -g root -m 0644 /m/conf # 3 bytes, 3fc4ccfe7458")
	b.want(all(false, "two"), account, `
		systemctl start a-main # root: ["a/process/main"]
		systemctl start b-main # root: ["b/process/main"]`)

	b.Fail("a/file/conf", "observe", errors.New("no answer"), 1) // the process depends on it, and stops all the same
	b.want(all(true, "two"), "failed a/file/conf observe no answer\napplied a/process/main\napplied b/process/main\nunchanged c/process/main",
		"systemctl stop b-main\nsystemctl stop a-main")
	b.want(append(all(true, "two"), stopping("d/process/main", true)), "unchanged a/file/conf"+rest+"\napplied d/process/main", "")
	if s := b.Running("d/process/main").State; s != "stopped" {
		t.Errorf("made to be stopped, it is %s", s)
	}
	b.want(append(all(true, "two"), stopping("d/process/main", false)), "unchanged a/file/conf"+rest+"\napplied d/process/main", `systemctl start d-main # root: ["d/process/main"]`)
}

// OPS-1, DEC-7: stopped by an operator is a state of its own, and alive checks do not start it again.
func TestHealthOfStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.Now = time.Now
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := stopping("a/process/main", true)
		w := newWatch(b.Host(), func() {})
		want := func(state wire.HealthState, why string) {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			if h := w.report(); len(h) != 1 || h[0].State != state || h[0].Why != why {
				t.Errorf("health %+v", h)
			}
		}
		if err := b.Host().Processes.Do(ctx, stopping("a/process/main", false)); err != nil {
			t.Fatal(err)
		}
		b.Commands()
		w.set(ctx, []wire.Resource{p})
		want(wire.Unhealthy, "it runs, although an operator stopped it")
		if err := b.Host().Processes.Do(ctx, p); err != nil {
			t.Fatal(err)
		}
		want(wire.Stopped, "stopped by an operator")
		if d := cmp.Diff([]string{"systemctl stop a-main"}, b.Commands()); d != "" {
			t.Error(d)
		}
	})
}

// OPS-1, SAFE-5: a notice restarts what runs of an instance, once, whoever plays it again, to an agent that has just started, too. What is
// stopped, and what is not of the instance, stays as it is.
func TestRestartOnNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		ask := func(instance string) []byte {
			time.Sleep(time.Millisecond)
			return l.notice(`{"version":1,"restart":"`+instance+`"}`, nil)
		}
		var good []byte
		l.run(func() {
			l.declare(1, []wire.Resource{stopping("a/process/main", false), stopping("b/process/main", false), stopping("c/process/main", true)})
			time.Sleep(time.Minute)
			synctest.Wait()
			l.machine.Commands()
			since := l.watch.report()[0].Since

			good = ask("a")
			l.hearOnNotices(good)
			l.wantDrift("asked", "", "systemctl restart a-main")
			time.Sleep(time.Second)
			synctest.Wait()
			if h := l.box().Report.Health[0]; !h.Since.After(since) || h.Instance != "a" {
				t.Errorf("health %+v, before it was restarted since %s", h, since)
			}
			l.hearOnNotices(good)
			l.wantDrift("played again", "", "")

			l.machine.Fail("b/process/main", "act", errors.New("it will not"), 1)
			l.hearOnNotices(ask("b"))
			if h := l.box().Report.Health[1]; h.State != wire.Unhealthy || h.Why != "restart: it will not" {
				t.Errorf("health %+v", h)
			}
			good = ask("a")
			l.hearOnNotices(good)
			l.wantDrift("asked again", "", "systemctl restart a-main")

			away := l.inTheWay("applied.json") // what cannot be kept is not done
			l.hearOnNotices(ask("a"))
			l.wantDrift("full disk", "", "")
			if w := l.warns(); len(w) != 1 || w[0].Code != "notice-refused" {
				t.Errorf("warnings %+v", w)
			}
			away()
			for _, instance := range []string{"../a", "", "c", "d"} {
				l.hearOnNotices(ask(instance))
			}
			l.wantDrift("no instance, stopped, or not there", "", "")
		})
		again, err := start(t.Context(), l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Agent = again
		l.run(func() {
			l.hearOnNotices(good)
			if c := l.machine.Commands(); len(c) > 0 {
				t.Errorf("played again to a fresh agent: %q", c)
			}
			for range maxWishes + 2 { // the loop takes them as they come
				l.hearOnNotices(ask("a"))
			}
			if c := l.machine.Commands(); len(c) != maxWishes+2 || slices.ContainsFunc(c, func(s string) bool { return s != "systemctl restart a-main" }) {
				t.Errorf("%d restarts: %q", len(c), c)
			}
		})
	})
}
