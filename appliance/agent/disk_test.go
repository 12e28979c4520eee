package agent

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/disk/disktest"
	"github.com/novox/mesh/appliance/wire"
)

func named(names ...string) (users []wire.Resource) {
	for _, n := range names {
		users = append(users, resource(n+"/user/"+n, wire.UserSpec{Name: n}))
	}
	return users
}

// percent is so much of 100 GiB.
func percent(p disk.Size) disk.Space { return disk.Space{Free: p << 30, Total: 100 << 30} }

func (l *loop) wantWarning(severity, text string) {
	l.t.Helper()
	w := slices.DeleteFunc(slices.Clone(l.warns()), func(w wire.Warning) bool { return w.Code != "disk-low" })
	if severity == "" && len(w) > 0 || severity != "" && (len(w) != 1 || w[0].Severity != severity || !strings.Contains(w[0].Text, text) || w[0].Remedy == "") {
		l.t.Errorf("warnings %+v, want %q %q", w, severity, text)
	}
}

func (l *loop) wantAccount(want ...string) {
	l.t.Helper()
	if d := cmp.Diff(want, l.account()); d != "" {
		l.t.Error("account (-want +got):\n" + d)
	}
}

// DEC-14: little space is warned of, once; with too little only removals are carried out, and what was made before is put right; what
// waits is made by itself when there is space.
func TestLowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, named("a", "b"))
			l.wantAccount("applied a/user/a", "applied b/user/b")
			l.wantWarning("", "")

			l.machine.SetSpace(percent(9))
			time.Sleep(diskEvery)
			l.wantWarning("warning", "9 GiB of 100 GiB are free (9 %) on the disk of")
			said := l.box().Sequence
			l.machine.SetSpace(percent(8))
			time.Sleep(time.Minute)
			if n := l.box().Sequence; n != said {
				t.Errorf("%d more reports of the same", n-said)
			}
			l.declare(2, named("a", "b", "c"))
			l.wantAccount("unchanged a/user/a", "unchanged b/user/b", "applied c/user/c")

			l.machine.SetSpace(percent(4))
			time.Sleep(diskEvery)
			l.wantWarning("error", "only removals and revocations are carried out")
			l.machine.Commands()
			l.declare(3, named("b", "c", "d"))
			l.wantAccount("removed a/user/a", "unchanged b/user/b", "unchanged c/user/c",
				"refused d/user/d disk 4 GiB of 100 GiB are free (4 %); below 5 GiB nothing new is made")
			l.machine.RemoveUser("b")
			time.Sleep(10 * time.Minute)
			if d := cmp.Diff([]string{"userdel a", "useradd --system --home-dir /nonexistent b"}, l.machine.Commands()); d != "" {
				t.Error("with too little space (-want +got):\n" + d)
			}

			l.machine.SetSpace(percent(7))
			time.Sleep(diskEvery)
			l.wantAccount("removed a/user/a", "applied b/user/b drift", "unchanged c/user/c", "applied d/user/d")
			l.wantWarning("warning", "7 GiB")
			l.machine.SetSpace(percent(50))
			time.Sleep(diskEvery)
			l.wantWarning("", "")
		})
	})
}

// DEC-14: what a removal frees serves what comes after it.
func TestRemovalMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		least := disk.Size(1 << 30)
		l := newLoop(t, func(c *Config) { c.LeastFree = &least })
		l.machine.SetSpace(percent(2))
		l.machine.Hook = func(_ context.Context, step, id string) error {
			if step == "undo" {
				l.machine.SetSpace(percent(3))
			}
			return nil
		}
		l.run(func() {
			l.declare(1, named("a"))
			l.wantAccount("applied a/user/a")
			l.wantWarning("", "")
			l.machine.SetSpace(percent(0))
			l.declare(2, named("b"))
			l.wantAccount("removed a/user/a", "applied b/user/b")
			l.wantWarning("", "")
		})
	})
}

// DEC-14, SAFE-5: on a disk that is full to the last byte the reserve still takes a removal and the word about it; with that used up too
// nothing is begun, and nothing forgotten; with space back all goes on.
func TestFullDisk(t *testing.T) {
	small := disktest.Small(t, 6<<20)
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t, func(c *Config) {
			c.Dir, c.Reserve = small, 1<<20
			c.Machine.Space = func() (disk.Space, error) { return disk.Look(small) }
			c.LeastFree = new(disk.Size)
			*c.LeastFree = 3 << 19
		})
		l.run(func() {
			l.declare(1, named("a", "b"))
			l.wantAccount("applied a/user/a", "applied b/user/b")
			if !l.state.reserve.Held() {
				t.Fatal("there is no reserve")
			}
			free := disktest.Fill(t, small)
			l.declare(2, named("b", "c"))
			l.wantAccount("removed a/user/a", "unchanged b/user/b", "refused c/user/c disk 1 MiB of 6 MiB are free (17 %); below 1.5 MiB nothing new is made")
			l.wantWarning("error", "of 6 MiB are free")
			if l.state.reserve.Held() {
				t.Error("the reserve is still held")
			}

			disktest.Fill(t, small)
			l.machine.Commands()
			l.declare(3, named("c"))
			time.Sleep(time.Minute)
			if c, n := l.machine.Commands(), l.carriedOut(); len(c) > 0 || n != 2 {
				t.Errorf("begun without being stored: %q, carried out %d", c, n)
			}

			free()
			time.Sleep(time.Minute)
			l.wantAccount("removed a/user/a", "unchanged b/user/b", "applied c/user/c")
			if w := l.warns(); len(w) != 1 || w[0].Code != "declaration-refused" || !strings.Contains(w[0].Remedy, "it is sent again by itself") {
				t.Errorf("warnings %+v", w)
			}
			l.declare(3, named("c")) // the controller sends it after each alive
			l.wantAccount("removed b/user/b", "unchanged c/user/c")
			if !l.state.reserve.Held() || len(l.warns()) > 0 {
				t.Errorf("reserve held %v, warnings %+v", l.state.reserve.Held(), l.warns())
			}
			if left, _ := filepath.Glob(filepath.Join(small, "*.tmp")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	})
}
