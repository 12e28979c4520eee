package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/wire"
)

// OPS-3: a held node looks and tells what it sees, drift too, and changes nothing: not what is new, not what leaves, not what is unhealthy;
// it does not try again either. Resumed, it makes up for everything.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		hold := func(counter uint64, resources []wire.Resource) {
			l.declareAll(counter, wire.Content{Hold: true, Resources: resources})
		}
		unhealthy := func() string {
			for _, h := range l.box().Report.Health {
				if h.Instance == "web" {
					return string(h.State) + " " + h.Why
				}
			}
			return "none"
		}
		leaving := resource("old/user/old", wire.UserSpec{Name: "old"})
		checked := web("one") // with an alive check
		checked[5] = resource("web/process/main", wire.ProcessSpec{Name: "main", User: "web", Command: []string{"httpd"}, Run: wire.Run{Restart: "always",
			Alive: &wire.Check{Command: []string{"alive"}, Every: "10s", Failures: 2}, OnChange: map[string]string{"web/file/conf": "reload"}}}, checked[5].After...)
		l.run(func() {
			l.declare(1, append(checked, leaving))
			time.Sleep(time.Minute)
			synctest.Wait()
			l.machine.Commands()
			hold(2, checked)
			waits := "waiting old/user/old hold it leaves when the node is resumed"
			same := "unchanged web/package/httpd\nunchanged web/user/web\nunchanged web/directory/etc\nunchanged web/directory/data\n"
			l.wantAccount(append([]string{waits}, text(same+"unchanged web/file/conf\nunchanged web/process/main")...)...)

			l.machine.Put("/m/web/etc/conf", loose)
			l.machine.Fail("web/process/main", "check", errors.New("no answer"), 0)
			said := l.box().Sequence
			time.Sleep(6 * time.Minute)
			l.wantDrift("held", "waiting|web/file/conf|hold|the node is held|mode 0644, want 0640", "")
			if h := unhealthy(); h != "unhealthy no answer" {
				t.Errorf("health: %s", h)
			}
			if n := l.box().Sequence - said; n > 3 {
				t.Errorf("%d reports in six minutes", n)
			}
			next := append(checked[:0:0], checked...)
			next[4] = web("two")[4]
			hold(3, append(next, resource("new/user/new", wire.UserSpec{Name: "new"})))
			l.wantAccount(append([]string{waits}, text(same+"waiting web/file/conf hold the node is held\nunchanged web/process/main\nwaiting new/user/new hold the node is held")...)...)
			l.hearOnNotices(l.notice(`{"version":1,"restart":"web"}`, nil))
			l.wantDrift("asked to restart", "", "")

			l.steps() // nothing is tried again before the next look
			time.Sleep(4 * time.Minute)
			if n := l.steps(); n > 0 {
				t.Errorf("%d looks in four minutes", n)
			}
			l.machine.Heal("web/process/main")
			time.Sleep(time.Minute)
			if h := unhealthy(); h != "healthy " {
				t.Errorf("health: %s", h)
			}
			if c := l.machine.Commands(); len(c) > 0 {
				t.Errorf("held, and yet: %q", c)
			}
		})

		again, err := start(t.Context(), l.cfg) // an agent that starts on a held node changes nothing either
		if err != nil {
			t.Fatal(err)
		}
		l.Agent = again
		l.resume(t.Context())
		l.run(func() {
			if c := l.machine.Commands(); len(c) > 0 {
				t.Errorf("after a start: %q", c)
			}
			if l.machine.Running("web/process/main").State != "running" {
				t.Error("the process does not run any more")
			}
			l.declare(4, web("two"))
			want := "userdel old\ninstall -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 3fc4ccfe7458\nsystemctl reload web-main"
			synctest.Wait()
			if d := cmp.Diff(text(want), l.machine.Commands()); d != "" {
				t.Errorf("resumed (-want +got): %s", d)
			}
		})
	})
}

// steps is how often the file was looked at since the last call.
func (l *loop) steps() (n int) {
	synctest.Wait()
	for _, s := range l.machine.Steps() {
		if strings.HasPrefix(s, "observe web/file/") {
			n++
		}
	}
	return n
}

// NODE-7: on an adopted node what was there before is named and left alone, with what depends on it; what is as it should be is taken up,
// and what the mesh made is its own. Converged, the node is made as declared, and gives back what was there when that leaves.
func TestAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		adopted := func(counter uint64, resources []wire.Resource) {
			l.declareAll(counter, wire.Content{Adopted: true, Resources: resources})
		}
		l.machine.AddUser("web", "/home/web")
		l.machine.Put("/m/web/etc/conf", foreign)
		l.run(func() {
			adopted(1, web("one"))
			l.wantAccount("applied web/package/httpd", "unchanged web/user/web", "applied web/directory/etc", "applied web/directory/data",
				"refused web/file/conf found it was there before, and differs: owner root, want web",
				"failed web/process/main wait depends on web/file/conf, which did not come about")
			if e, _ := l.machine.Path("/m/web/etc/conf"); e != foreign {
				t.Errorf("overwritten: %+v", e)
			}
			l.machine.Remove("/m/web/etc/conf")
			time.Sleep(10 * time.Minute)
			if l.machine.Running("web/process/main").State != "running" {
				t.Errorf("the way is free, and yet: %q", l.account())
			}
			l.machine.Put("/m/web/etc/conf", foreign) // over what the mesh made: that is drift
			time.Sleep(20 * time.Minute)
			if e, _ := l.machine.Path("/m/web/etc/conf"); e.Content != "one" {
				t.Errorf("drift stays: %+v", e)
			}
			l.machine.Put("/m/other", foreign)
			other := resource("web/file/other", wire.FileSpec{Path: "/m/other", Owner: "root", Group: "root", Mode: "0600", Content: "ours"})
			adopted(2, append(web("one"), other))
			time.Sleep(time.Minute)
			if a := l.account(); !strings.HasPrefix(a[len(a)-1], "refused web/file/other found") {
				t.Errorf("account %q", a)
			}
			adopted(3, web("one")) // what was refused was never the mesh's to remove
			time.Sleep(time.Minute)
			if e, ok := l.machine.Path("/m/other"); !ok || e != foreign {
				t.Errorf("removed with what was refused: %+v", e)
			}
			l.declare(4, append(web("one"), other))
			synctest.Wait()
			if e, _ := l.machine.Path("/m/other"); e.Content != "ours" {
				t.Errorf("converged, it is still %+v", e)
			}
			l.declare(5, web("one"))
			synctest.Wait()
			if e, _ := l.machine.Path("/m/other"); e != foreign {
				t.Errorf("not given back: %+v", e)
			}
		})
	})
}

// NODE-7, DEC-6: an adopted node tells drift before it puts it right: the first look names it, the next one, or a check, repairs it; what
// depends on it goes on meanwhile, and no retry of something else repairs it early.
func TestAdoptedTellsDriftFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		const waiting = "waiting|web/file/conf|drift|it is put right at the next look, or by `mesh check`|mode 0644, want 0640\n"
		l.run(func() {
			l.declareAll(1, wire.Content{Adopted: true, Resources: append(web("one"), resource("z/user/z", wire.UserSpec{Name: "z"}))})
			synctest.Wait()
			l.machine.Commands()
			l.machine.Put("/m/web/etc/conf", loose)
			l.machine.Fail("z/user/z", "observe", errors.New("no answer"), 3) // is tried again soon
			time.Sleep(6 * time.Minute)
			l.wantDrift("first look", waiting, "")
			if a := l.account(); a[5] != "applied web/process/main" || a[6] != "unchanged z/user/z" {
				t.Errorf("others: %q", a)
			}
			time.Sleep(6 * time.Minute) // it may be up to half a minute late, after the tries of the other
			l.wantDrift("next look", drifted, install+"systemctl reload web-main")

			l.machine.Put("/m/web/etc/conf", loose)
			l.hearOnNotices(l.notice(checkNow, nil))
			time.Sleep(2 * time.Second)
			l.wantDrift("asked once", waiting, "")
			l.hearOnNotices(l.notice(checkNow, nil))
			time.Sleep(2 * time.Second)
			l.wantDrift("asked again", drifted, install+"systemctl reload web-main")

			l.machine.Fail("z/user/z", "observe", errors.New("no answer"), 0)
			l.declareAll(2, wire.Content{Adopted: true, Resources: append(web("one"), resource("z/user/z", wire.UserSpec{Name: "z"}))})
			synctest.Wait()
			l.machine.Put("/m/web/etc/conf", loose)
			l.hearOnNotices(l.notice(checkNow, nil))
			time.Sleep(between + time.Millisecond)
			l.hearOnNotices(l.notice(checkNow, nil)) // a further try of what failed comes before this look may
			time.Sleep(2 * time.Second)
			l.wantDrift("asked while something fails", drifted, install+"systemctl reload web-main")
		})
	})
}
