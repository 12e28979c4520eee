package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

// leave is Leave on a bench, as lines.
func (b *bench) leave(o Leaving) (left, account []string, err error) {
	b.t.Helper()
	var told []wire.Outcome
	kept, err := Leave(b.t.Context(), b.Host(), b.dir, o, func(o wire.Outcome) { told = append(told, o) })
	for _, k := range kept {
		left = append(left, k.What+": "+k.Why)
	}
	return left, lines(told), err
}

func (b *bench) wantLeft(o Leaving, left, account string) {
	b.t.Helper()
	gotLeft, gotAccount, err := b.leave(o)
	if err != nil {
		b.t.Error(err)
	}
	if d := cmp.Diff(text(left), gotLeft); d != "" {
		b.t.Error("left (-want +got):\n" + d)
	}
	if d := cmp.Diff(text(account), gotAccount); account != "-" && d != "" {
		b.t.Error("account (-want +got):\n" + d)
	}
}

// records are what a fresh agent would find.
func (b *bench) records() []Record {
	b.t.Helper()
	all, about, outcomes, err := Records(b.dir)
	if err != nil || about.Digest != "" || len(outcomes) > 0 {
		b.t.Errorf("about %v, %d outcomes, %v", about, len(outcomes), err)
	}
	return all
}

// GEN-10, DEC-4, NODE-8: what was made is undone in reverse, users last; data and their user stay and are told, with their records, until
// they are purged.
func TestLeave(t *testing.T) {
	b := newBench(t)
	b.Put("/m", hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0755"})
	before := b.String()
	if _, err := b.apply(web("one"), false); err != nil {
		t.Fatal(err)
	}
	b.wantLeft(Leaving{}, `
		folder /m/web/data: data
		user web: it owns data that stay`, `
		removed web/process/main
		removed web/file/conf
		kept web/directory/data data
		removed web/directory/etc
		removed web/package/httpd
		kept web/user/web it owns data that stay`)
	stays := "useradd --system --home-dir /nonexistent web\ninstall -d -o root -g root -m 0755 /m\ninstall -d -o web -g web -m 0750 /m/web/data\n"
	if d := cmp.Diff(stays, b.String()); d != "" {
		t.Errorf("the machine (-want +got):\n%s", d)
	}
	b.wantLeft(Leaving{}, "folder /m/web/data: data\nuser web: it owns data that stay", "-") // again: the same answer
	if r := b.records(); len(r) != 2 || !r[0].Kept || r[0].Declared || r[0].Undo != nil {
		t.Errorf("records %+v", r)
	}

	b.Commands()
	b.want(web("one"), `
		applied web/package/httpd
		unchanged web/user/web
		applied web/directory/etc
		unchanged web/directory/data
		applied web/file/conf
		applied web/process/main`, `
		apt-get install httpd
		install -d -o web -g web -m 0750 /m/web/etc
		install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 7692c3ad3540
		systemctl start web-main # web: ["httpd"]`) // a later mesh takes it up
	b.Remain("web/package/httpd", host.Left{What: "package lib", Why: "others need it"})
	b.wantLeft(Leaving{Purge: true}, "package lib: others need it", "-")
	if d := cmp.Diff(before, b.String()); d != "" {
		t.Errorf("after the purge (-before +after):\n%s", d)
	}
	if r := b.records(); len(r) > 0 {
		t.Errorf("records %+v", r)
	}
}

// DEC-13, GEN-10: what was there before the mesh is put back and never removed, what instances share goes once, and what others need stays.
func TestLeaveWhatIsNotOurs(t *testing.T) {
	b := newBench(t)
	b.AddUser("web", "/home/web")
	b.AddPackage("httpd")
	b.Put("/m/web/etc", hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0755"})
	b.Put("/m/web/etc/conf", hosttest.Entry{Owner: "root", Group: "root", Mode: "0600", Content: "mine"})
	b.Put("/m/web/data", hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0700"})
	before := b.String()
	desired := append(web("one"), resource("two/user/shared", wire.UserSpec{Name: "shared"}), resource("three/user/shared", wire.UserSpec{Name: "shared"}),
		resource("two/package/busy", wire.PackageSpec{Names: map[string]string{"apt": "busy"}}))
	if _, err := b.apply(desired, false); err != nil {
		t.Fatal(err)
	}
	b.Hold("two/package/busy", "others need it: foo")
	b.Commands()
	left, _, err := b.leave(Leaving{Purge: true})
	if d := cmp.Diff([]string{"package busy: others need it: foo", "folder /m/web/data: it was here before the mesh"}, left); d != "" || err != nil {
		t.Errorf("%v, left (-want +got):\n%s", err, d)
	}
	if n := strings.Count(strings.Join(b.Commands(), "\n"), "userdel shared"); n != 1 {
		t.Errorf("the shared user was removed %d times", n)
	}
	b.Hold("two/package/busy", "")
	b.wantLeft(Leaving{Purge: true}, "folder /m/web/data: it was here before the mesh", "removed two/package/busy\nkept web/directory/data it was here before the mesh")
	after := strings.Replace(b.String(), "install -d -o web -g web -m 0750 /m/web/data", "install -d -o root -g root -m 0700 /m/web/data", 1)
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("the machine, but for the folder (-before +after):\n%s", d)
	}
}

// GEN-2, GEN-10: what is carried goes only where that is asked for.
func TestLeaveCarried(t *testing.T) {
	b := newBench(t)
	if _, err := b.apply(web("one")[1:2], true); err != nil {
		t.Fatal(err)
	}
	b.wantLeft(Leaving{}, "", "")
	b.wantLeft(Leaving{Carried: true}, "", "removed web/user/web")
}

// SAFE-5, NODE-8: killed after any of its steps, or told that one fails, the same call goes on; nothing is done before what it rests on.
func TestLeaveInterrupted(t *testing.T) {
	steps := func() int {
		b := newBench(t)
		if _, err := b.apply(web("one"), false); err != nil {
			t.Fatal(err)
		}
		b.Steps()
		b.wantLeft(Leaving{Purge: true}, "", "-")
		return len(b.Steps())
	}()
	if steps < 10 {
		t.Errorf("leaving has %d steps", steps)
	}
	boom := errors.New("boom")
	for n := range steps {
		b := newBench(t)
		if _, err := b.apply(web("one"), false); err != nil {
			t.Fatal(err)
		}
		b.Steps()
		func() {
			defer func() { recover() }()
			left := n
			b.Hook = func(context.Context, string, string) error {
				if left--; left < 0 {
					panic("killed")
				}
				return nil
			}
			_, _ = Leave(t.Context(), b.Host(), b.dir, Leaving{Purge: true}, nil)
		}()
		b.Hook = nil
		b.wantLeft(Leaving{Purge: true}, "", "-")
		if got := b.String(); got != "" || len(b.records()) > 0 {
			t.Fatalf("killed at step %d, the second run leaves\n%s", n, got)
		}
	}

	b := newBench(t)
	if _, err := b.apply(web("one"), false); err != nil {
		t.Fatal(err)
	}
	b.Fail("web/process/main", "undo", boom, 1)
	_, account, err := b.leave(Leaving{Purge: true})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "undo web/process/main") {
		t.Errorf("%v", err)
	}
	want := text(`
		failed web/process/main undo boom
		failed web/file/conf undo web/process/main depends on it, and is not removed yet
		failed web/directory/data undo web/process/main depends on it, and is not removed yet
		failed web/directory/etc undo web/process/main depends on it, and is not removed yet
		failed web/package/httpd undo web/process/main depends on it, and is not removed yet
		failed web/user/web undo web/process/main depends on it, and is not removed yet`)
	if d := cmp.Diff(want, account); d != "" {
		t.Error(d)
	}
	b.wantLeft(Leaving{Purge: true}, "", "-")
	if got := b.String(); got != "" {
		t.Errorf("left\n%s", got)
	}
}

// removedNotice says that the machine with a key is a node no more.
func (l *loop) removedNotice(key ed25519.PrivateKey) []byte {
	return l.notice(`{"version":1,"removed":"`+base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey))+`"}`, nil)
}

// NODE-8: told by the mesh, by its own key, that it is a node no more, the machine stops what runs and takes the overlay down; files and
// data stay. Restarted it stays so, and does nothing.
func TestRemovedNodeStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dir string
		l := newLoop(t, func(c *Config) { dir = c.Dir })
		l.run(func() {
			l.declare(1, web("one"))
			synctest.Wait()
			_, other, _ := ed25519.GenerateKey(nil)
			for name, data := range map[string][]byte{
				"for its predecessor": l.removedNotice(other),
				"for no key":          l.notice(`{"version":1,"removed":"x"}`, nil),
			} {
				l.hearOnNotices(data)
				time.Sleep(2 * time.Second)
				if at, err := Removed(dir); !at.IsZero() || err != nil || len(l.warns()) > 0 {
					t.Errorf("%s: removed %s, %v, warnings %+v", name, at, err, l.warns())
				}
			}
			for name, data := range map[string][]byte{
				"too long":   l.notice(`{"version":1,"removed":"`+strings.Repeat("x", 65)+`"}`, nil),
				"for nobody": l.notice(`{"version":1,"removed":""}`, nil),
			} {
				l.hearOnNotices(data)
				time.Sleep(2 * time.Second)
				if at, _ := Removed(dir); !at.IsZero() {
					t.Errorf("%s: removed", name)
				}
			}
			l.hearOnNotices(l.removedNotice(l.cfg.Identity))
			synctest.Wait()
		})
		if at, err := Removed(dir); at.IsZero() || err != nil {
			t.Fatalf("removed %s, %v", at, err)
		}
		l.machine.Commands()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Run(ctx, l.cfg) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if d := cmp.Diff([]string{"systemctl stop web-main"}, l.machine.Commands()); d != "" {
			t.Errorf("commands (-want +got):\n%s", d)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, ok := l.machine.Path("/m/web/etc/conf"); !ok {
			t.Error("a file is gone")
		}
		records, _, _, err := Records(dir)
		if err != nil || slices.ContainsFunc(records, func(r Record) bool { return r.Resource.Kind == wire.Process }) || len(records) != 5 {
			t.Errorf("%d records, %v", len(records), err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "removed.json")); err != nil || !strings.Contains(string(data), `"version":1`) {
			t.Errorf("%s, %v", data, err)
		}
	})
}

// NODE-8: what cannot be stopped at once is tried again.
func TestRemovedNodeTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, web("one"))
			synctest.Wait()
			l.hearOnNotices(l.removedNotice(l.cfg.Identity))
		})
		l.machine.Fail("web/process/main", "undo", appliance.Errorf(appliance.Unavailable, "busy"), 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Run(ctx, l.cfg) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if r := l.machine.Running("web/process/main"); r.State != "missing" {
			t.Errorf("it is %s", r.State)
		}
		cancel()
		<-done
	})
}
