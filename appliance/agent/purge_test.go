package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

// store is an instance with data in a folder of its own.
func store(instance string, more ...wire.Resource) []wire.Resource {
	dir := "/m/" + instance
	return append([]wire.Resource{
		resource(instance+"/user/"+instance, wire.UserSpec{Name: instance}),
		resource(instance+"/directory/.", wire.DirectorySpec{Path: dir, Class: "config", Owner: "root", Group: "root", Mode: "0755"}),
		resource(instance+"/directory/data", wire.DirectorySpec{Path: dir + "/data", Class: "data", Owner: instance, Group: instance, Mode: "0750"}, instance+"/user/"+instance, instance+"/directory/."),
	}, more...)
}

// kept are the data that the pending report names, one line each, without times.
func (l *loop) kept() (out []string) {
	if r := l.box().Report; r != nil {
		for _, k := range r.Kept {
			if k.Since.IsZero() {
				l.t.Errorf("kept since never: %+v", k)
			}
			out = append(out, fmt.Sprintf("%s %s %d", k.Instance, k.Path, k.Bytes))
		}
	}
	return out
}

// MOD-10: kept data is told with its size, and removed only when the mesh says so, with its folder and user; what others need, what is in
// use, and what a second notice names is not. A notice that was heard once is not heard again, whatever came in between.
func TestPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		purge := func(instance string) []byte {
			time.Sleep(time.Millisecond)
			return l.notice(fmt.Sprintf(`{"version":1,"purge":%q}`, instance), nil)
		}
		refused := func(why string) {
			t.Helper()
			if w := l.warns(); len(w) != 1 || w[0].Code != "purge-refused" || !strings.Contains(w[0].Text, why) {
				t.Errorf("warnings %+v, want %s", w, why)
			}
			l.wantDrift(why, "", "")
			time.Sleep(2 * time.Minute)
		}
		var good []byte
		l.run(func() {
			l.declare(1, append(store("a"), store("b")...))
			synctest.Wait()
			l.machine.Put("/m/a/data/rows", hosttest.Entry{Owner: "a", Group: "a", Mode: "0600", Content: "12345"})
			l.machine.Commands()
			l.hearOnNotices(purge("a"))
			refused("a/directory/data is in use")
			l.hearOnNotices(purge("c"))
			refused("nothing of it is kept")

			l.declare(2, store("b"))
			if got := l.kept(); !slices.Equal(got, []string{"a /m/a 5"}) {
				t.Errorf("kept %q", got)
			}
			l.machine.Fail("a/directory/data", "undo", errors.New("busy"), 1)
			good = purge("a")
			l.hearOnNotices(good)
			refused("busy")
			if got := l.kept(); len(got) != 1 {
				t.Errorf("kept after a failure %q", got)
			}
			good = purge("a")
			l.hearOnNotices(good)
			l.wantDrift("purged", "", "rm -r /m/a/data\nrm -r /m/a\nuserdel a")
			if got := l.kept(); len(got) != 0 || len(l.warns()) != 0 {
				t.Errorf("kept %q, warnings %+v", got, l.warns())
			}
			if d := cmp.Diff([]string{"removed a/directory/data purge", "removed a/directory/. purge", "removed a/user/a purge"}, l.account()[:3]); d != "" {
				t.Errorf("account (-want +got):\n%s", d)
			}

			l.declare(3, append(store("a"), store("b")...)) // and again there is data
			synctest.Wait()
			l.declare(4, store("b"))
			synctest.Wait()
			l.machine.Commands()
		})
		again, err := start(t.Context(), l.cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Agent = again
		l.run(func() {
			l.hearOnNotices(good)
			l.wantDrift("played again to a fresh agent", "", "")
			l.hearOnNotices(purge("a"))
			l.wantDrift("purged again", "", "rm -r /m/a/data\nrm -r /m/a\nuserdel a")
			if _, ok := l.machine.Path("/m/b/data"); !ok {
				t.Error("the data of another is gone")
			}
		})
	})
}

// MOD-10, DEC-13: data in which something of another instance lies, kept or declared, is not purged; a user goes with the last data that is
// its, whoever's that was; what was there before the mesh stays.
func TestPurgeOfShared(t *testing.T) {
	b := newBench(t)
	purge := func(instance string) error {
		t.Helper()
		s, err := openState(b.dir)
		if err != nil {
			t.Fatal(err)
		}
		err = (&Engine{machine: b.Host(), state: s}).purge(t.Context(), appliance.InstanceName(instance))
		if e := s.saveApplied(); e != nil {
			t.Fatal(e)
		}
		return err
	}
	apply := func(desired ...wire.Resource) {
		t.Helper()
		if _, err := b.apply(desired, false); err != nil {
			t.Fatal(err)
		}
	}
	in := resource("b/directory//m/a/data/b", wire.DirectorySpec{Path: "/m/a/data/b", Class: "data", Owner: "root", Group: "root", Mode: "0750"})
	apply(append(store("a"), in)...)
	apply(in)
	if err := purge("a"); err == nil || !strings.Contains(err.Error(), in.ID) {
		t.Errorf("something declared lies in it: %v", err)
	}
	apply()
	if err := purge("a"); err == nil || !strings.Contains(err.Error(), in.ID) {
		t.Errorf("something kept lies in it: %v", err)
	}
	if err := purge("b"); err != nil {
		t.Error(err)
	}
	if err := purge("a"); err != nil || b.String() != "" {
		t.Errorf("%v:\n%s", err, b)
	}

	second := resource("b/user/a", wire.UserSpec{Name: "a"})
	theirs := resource("b/directory//srv/b", wire.DirectorySpec{Path: "/srv/b", Class: "data", Owner: "a", Group: "a", Mode: "0750"}, second.ID)
	apply(append(store("a"), second, theirs)...)
	apply()
	b.Commands()
	if err := purge("a"); err != nil {
		t.Error(err)
	}
	if got := strings.Join(b.Commands(), "; "); got != "rm -r /m/a/data; rm -r /m/a" {
		t.Error(got)
	}
	if err := purge("b"); err != nil || b.String() != "" {
		t.Errorf("%v:\n%s", err, b)
	}

	old := hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0700"}
	b.Put("/m/c/data", old)
	apply(store("c")...)
	apply()
	if err := purge("c"); appliance.KindOf(err) != appliance.Conflict {
		t.Error(err)
	}
	if _, ok := b.Path("/m/c/data"); !ok {
		t.Error("what was there before the mesh is gone")
	}
}
