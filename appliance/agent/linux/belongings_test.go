package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// NODE-8: files of users are found where users can have any, and not in the folders that only root comes into.
func TestBelongings(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("gives files away: run the tests as root")
	}
	dir := t.TempDir()
	for path, uid := range map[string]int{"open/a": 60001, "open/b": 60001, "closed/c": 60002, "theirs/d": 60003, "open/e": 0} {
		at := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, nil, 0o600), os.Lchown(at, uid, 0)); err != nil {
			t.Fatal(err)
		}
	}
	// A folder of another user is looked into, however closed.
	if err := errors.Join(os.Chmod(dir+"/closed", 0o700), os.Chmod(dir+"/theirs", 0o700), os.Lchown(dir+"/theirs", 60004, 0),
		os.Symlink("/etc", dir+"/open/link"), os.Lchown(dir+"/open/link", 60005, 0)); err != nil {
		t.Fatal(err)
	}
	b := belongings{first: map[int]string{}}
	if err := b.look(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	want := map[int]string{60001: dir + "/open/a", 60003: dir + "/theirs/d", 60004: dir + "/theirs", 60005: dir + "/open/link"}
	if d := cmp.Diff(want, b.first); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// NODE-8, GEN-10: a user of the mesh's with files elsewhere is held, by name; one that was there before is none of its business.
func TestUserIsHeld(t *testing.T) {
	m, in := machine(t)
	name := person(t)
	user := resource(wire.User, name, wire.UserSpec{Name: name})
	held := func(record []byte) string {
		t.Helper()
		fresh, err := New(Config{Installation: in, Mesh: testMesh, Node: "n1"}) // each run looks anew
		if err != nil {
			t.Fatal(err)
		}
		why, err := fresh.Effectors[wire.User].(host.Holder).Holds(t.Context(), user, record)
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	if why := held(nil); why != "" {
		t.Errorf("without files: %q", why)
	}
	mine := filepath.Join(in.Dir, "mine")
	uid, err := userID(name)
	if err := errors.Join(err, os.WriteFile(mine, nil, 0o600), os.Lchown(mine, uid, -1)); err != nil {
		t.Fatal(err)
	}
	if why := held(nil); why != mine+" belongs to it" {
		t.Errorf("with a file: %q", why)
	}
	if why := held(before(t, m, user)); why != "" {
		t.Errorf("of one that was there before: %q", why)
	}
	data := resource(wire.Directory, "data", wire.DirectorySpec{Path: in.Module("hello") + "/data", Class: "data", Owner: name, Group: name, Mode: "0700"})
	do(t, m, resource(wire.Directory, ".", wire.DirectorySpec{Path: in.Module("hello"), Class: "config", Owner: "root", Group: "root", Mode: "0755"}))
	do(t, m, data)
	if why := held(nil); why != "" {
		t.Errorf("with data, of which its undo knows: %q", why)
	}
	if !undo(t, m, user, nil) {
		t.Error("the owner of data was removed")
	}
}
