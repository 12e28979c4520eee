package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
)

// The test binary is also the installation's mesh: it supervises.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "supervise" {
		if err := supervise.Run(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const testMesh = appliance.MeshID("maaaaaaaaaaaaaaa")

// machine gives the real machine with a state folder that users can walk through, gone afterwards.
func machine(t *testing.T) (host.Machine, installation.Installation) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("changes users, files and processes of this machine: run the tests as root")
	}
	dir, err := os.MkdirTemp("", "mesh-linux-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	in := installation.Installation{Dir: dir}
	os.MkdirAll(filepath.Dir(in.Binary()), 0o755)
	exe, _ := os.Executable()
	data, err := os.ReadFile(exe)
	if err != nil || os.WriteFile(in.Binary(), data, 0o755) != nil {
		t.Fatal("install test binary", err)
	}
	m, err := New(Config{Installation: in, Mesh: testMesh, Node: "n1", Version: "test", HostsFile: filepath.Join(dir, "hosts")})
	if err != nil {
		t.Fatal(err)
	}
	return m, in
}

func resource(kind wire.ResourceKind, name string, spec any) wire.Resource {
	data, _ := json.Marshal(spec)
	return wire.Resource{ID: "hello/" + string(kind) + "/" + name, Instance: "hello", Kind: kind, Spec: data}
}

func effector(m host.Machine, r wire.Resource) host.Effector {
	if r.Kind == wire.Process {
		return m.Processes
	}
	return m.Effectors[r.Kind]
}

// before, do, undo and observe fail the test on an error.
func before(t *testing.T, m host.Machine, r wire.Resource) json.RawMessage {
	t.Helper()
	undo, err := effector(m, r).Before(t.Context(), r)
	if err != nil {
		t.Fatalf("before %s: %v", r.ID, err)
	}
	return undo
}

func observe(t *testing.T, m host.Machine, r wire.Resource) host.Observation {
	t.Helper()
	o, err := effector(m, r).Observe(t.Context(), r)
	if err != nil {
		t.Fatalf("observe %s: %v", r.ID, err)
	}
	return o
}

// do does it twice, DEC-4: after that it matches.
func do(t *testing.T, m host.Machine, r wire.Resource) {
	t.Helper()
	for range 2 {
		if err := effector(m, r).Do(t.Context(), r); err != nil {
			t.Fatalf("do %s: %v", r.ID, err)
		}
		if o := observe(t, m, r); !o.Matches {
			t.Fatalf("%s after do: %+v", r.ID, o)
		}
	}
}

func undo(t *testing.T, m host.Machine, r wire.Resource, record json.RawMessage) (kept bool) {
	t.Helper()
	for range 2 {
		var err error
		if kept, err = effector(m, r).Undo(t.Context(), r, record); err != nil {
			t.Fatalf("undo %s: %v", r.ID, err)
		}
	}
	return kept
}

var people atomic.Int32

// person makes a user of this test's own.
func person(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("mt%d-%d", os.Getpid(), people.Add(1))
	if out, err := exec.Command("useradd", "--system", "--user-group", "--home-dir", "/nonexistent", name).CombinedOutput(); err != nil {
		t.Fatalf("useradd: %v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("userdel", name).Run(); exec.Command("groupdel", name).Run() })
	return name
}

// state describes a path byte for byte.
func state(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	content, _ := os.ReadFile(path)
	return fmt.Sprintf("%o %d:%d %q", st.Mode, st.Uid, st.Gid, content)
}

// DEC-4, GEN-10: what was there comes back byte for byte.
func TestFile(t *testing.T) {
	m, in := machine(t)
	user := person(t)
	path := filepath.Join(in.Dir, "app.ini")
	file := resource(wire.File, "app.ini", wire.FileSpec{Path: path, Owner: user, Group: user, Mode: "0640", Content: "new\n"})
	t.Run("nothing before", func(t *testing.T) {
		record := before(t, m, file)
		if o := observe(t, m, file); o.Present || record != nil {
			t.Errorf("%+v, %s", o, record)
		}
		do(t, m, file)
		uid, _ := userID(user)
		gid, _ := groupID(user)
		if want := fmt.Sprintf(`100640 %d:%d "new\n"`, uid, gid); state(path) != want {
			t.Errorf("%s, want %s", state(path), want)
		}
		undo(t, m, file, record)
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Error("still there:", state(path))
		}
	})
	t.Run("something before", func(t *testing.T) {
		os.WriteFile(path, []byte("old\x00\xff"), 0o644)
		os.Chown(path, 12345, 54321)
		os.Chmod(path, os.ModeSetuid|0o604)
		was := state(path)
		record := before(t, m, file)
		do(t, m, file)
		undo(t, m, file, record)
		if d := cmp.Diff(was, state(path)); d != "" {
			t.Error(d)
		}
	})
	t.Run("drift", func(t *testing.T) {
		do(t, m, file)
		for what, change := range map[string]func(){
			"content":    func() { os.WriteFile(path, []byte("NEW\n"), 0) },
			"mode 0644":  func() { os.Chmod(path, 0o644) },
			"owner root": func() { os.Chown(path, 0, -1) },
			"group root": func() { os.Chown(path, -1, 0) },
		} {
			change()
			if o := observe(t, m, file); o.Matches || !strings.HasPrefix(o.Differs, what) {
				t.Errorf("%s: %+v", what, o)
			}
			do(t, m, file)
		}
	})
	t.Run("refused", func(t *testing.T) {
		for name, s := range map[string]wire.FileSpec{
			"no user":      {Path: path, Owner: "no-such-user", Group: "root", Mode: "0600"},
			"mode":         {Path: path, Owner: "root", Group: "root", Mode: "rw"},
			"relative":     {Path: "app.ini", Owner: "root", Group: "root", Mode: "0600"},
			"unclean":      {Path: in.Dir + "/../x", Owner: "root", Group: "root", Mode: "0600"},
			"a folder":     {Path: in.Dir, Owner: "root", Group: "root", Mode: "0600"},
			"no folder":    {Path: in.Dir + "/none/x", Owner: "root", Group: "root", Mode: "0600"},
			"through file": {Path: path + "/x", Owner: "root", Group: "root", Mode: "0600"},
		} {
			r := resource(wire.File, "x", s)
			was := state(path)
			if err := m.Effectors[wire.File].Do(t.Context(), r); err == nil {
				t.Errorf("%s: no error", name)
			}
			if state(path) != was {
				t.Errorf("%s changed something", name)
			}
		}
	})
	t.Run("too much to keep", func(t *testing.T) {
		os.WriteFile(path, make([]byte, maxKept+1), 0o600)
		if _, err := m.Effectors[wire.File].Before(t.Context(), file); appliance.KindOf(err) != appliance.Conflict {
			t.Error(err)
		}
	})
}

// as runs a program as another user.
func as(t *testing.T, name string, args ...string) {
	t.Helper()
	uid, _ := userID(name)
	gid, _ := groupID(name)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v as %s: %v: %s", args, name, err, out)
	}
}

// SAFE-3: root works in a module user's folder, where the user puts links to what is not theirs.
func TestLinksOfAModule(t *testing.T) {
	m, in := machine(t)
	user := person(t)
	own := filepath.Join(in.Dir, "own")
	secret, folder := filepath.Join(in.Dir, "secret"), filepath.Join(in.Dir, "folder")
	reset := func() {
		for _, path := range []string{own, secret, folder} {
			os.RemoveAll(path)
		}
		os.WriteFile(secret, []byte("root's"), 0o600)
		os.Mkdir(folder, 0o700)
		os.WriteFile(filepath.Join(folder, "x"), []byte("root's"), 0o600)
		os.Mkdir(own, 0o700)
		uid, _ := userID(user)
		os.Chown(own, uid, -1)
	}
	all := func() string { return state(secret) + state(folder) + state(filepath.Join(folder, "x")) }
	x, sub := filepath.Join(own, "x"), filepath.Join(own, "sub", "x")
	file := func(path string) wire.Resource {
		return resource(wire.File, "x", wire.FileSpec{Path: path, Owner: user, Group: user, Mode: "0666", Content: "new"})
	}
	directory := func(path, class string) wire.Resource {
		return resource(wire.Directory, "x", wire.DirectorySpec{Path: path, Class: class, Owner: user, Group: user, Mode: "0777"})
	}
	for name, c := range map[string]struct {
		link     []string
		resource wire.Resource
	}{
		"file is a link":              {[]string{"ln", "-s", secret, x}, file(x)},
		"file is a dangling link":     {[]string{"ln", "-s", in.Dir + "/new", x}, file(x)},
		"folder of file is a link":    {[]string{"ln", "-s", folder, own + "/sub"}, file(sub)},
		"folder is a link":            {[]string{"ln", "-s", folder, x}, directory(x, "data")},
		"folder of folder is a link":  {[]string{"ln", "-s", in.Dir, own + "/sub"}, directory(own+"/sub/folder", "cache")},
		"file is a pipe":              {[]string{"mkfifo", x}, file(x)},
		"folder is a file":            {[]string{"touch", x}, directory(x, "cache")},
		"temporary file is a link":    {[]string{"ln", "-s", secret, own + "/.x.mesh"}, file(x)},
		"a link to itself":            {[]string{"ln", "-s", "sub", own + "/sub"}, file(sub)},
		"folder of file, relative up": {[]string{"ln", "-s", "../folder", own + "/sub"}, file(sub)},
	} {
		t.Run(name, func(t *testing.T) {
			reset()
			as(t, user, c.link...)
			was := all()
			e := effector(m, c.resource)
			e.Observe(t.Context(), c.resource)
			e.Before(t.Context(), c.resource)
			doErr := e.Do(t.Context(), c.resource)
			if name != "temporary file is a link" && doErr == nil {
				t.Error("do: no error")
			}
			e.Undo(t.Context(), c.resource, nil)
			if d := cmp.Diff(was, all()); d != "" {
				t.Error(d)
			}
			if _, err := os.Lstat(in.Dir + "/new"); err == nil {
				t.Error("made what the link points to")
			}
		})
	}
	t.Run("file has another name elsewhere", func(t *testing.T) { // a hard link, where the kernel lets users make it
		reset()
		if err := os.Link(secret, x); err != nil {
			t.Fatal(err)
		}
		was := state(secret)
		do(t, m, file(x))
		if d := cmp.Diff(was, state(secret)); d != "" {
			t.Error(d)
		}
	})
	t.Run("removal does not follow", func(t *testing.T) {
		reset()
		os.Remove(own)
		cache := directory(own, "cache")
		do(t, m, cache)
		as(t, user, "ln", "-s", folder, own+"/link")
		was := all()
		undo(t, m, cache, nil)
		if d := cmp.Diff(was, all()); d != "" {
			t.Error(d)
		}
		if _, err := os.Lstat(own); !os.IsNotExist(err) {
			t.Error("still there")
		}
	})
	t.Run("root's own links count", func(t *testing.T) {
		reset()
		os.Symlink(folder, in.Dir+"/way")
		r := resource(wire.File, "y", wire.FileSpec{Path: in.Dir + "/way/y", Owner: "root", Group: "root", Mode: "0600", Content: "new"})
		do(t, m, r)
		if got, _ := os.ReadFile(folder + "/y"); string(got) != "new" {
			t.Errorf("%q", got)
		}
	})
}

// MOD-10, DEC-4: data stays with its user and uid and with the folders around it; the rest goes, unless it was there before.
func TestDirectoryAndUser(t *testing.T) {
	m, in := machine(t)
	name := fmt.Sprintf("mt%du", os.Getpid())
	t.Cleanup(func() { exec.Command("userdel", name).Run(); exec.Command("groupdel", name).Run() })
	user := resource(wire.User, name, wire.UserSpec{Name: name})
	dir := in.Module("hello")
	directory := func(path, class string) wire.Resource {
		return resource(wire.Directory, path, wire.DirectorySpec{Path: path, Class: class, Owner: name, Group: name, Mode: "2750"})
	}
	own, data, cache := directory(dir, "config"), directory(dir+"/data", "data"), directory(dir+"/cache", "cache")

	if before(t, m, user) != nil {
		t.Fatal("there before")
	}
	do(t, m, user)
	uid := 60000 + os.Getpid()%1000*4 // numbers of our own: others take the next one that is free
	for _, args := range [][]string{{"groupmod", "--gid", strconv.Itoa(uid), name}, {"usermod", "--uid", strconv.Itoa(uid), name}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	if out, _ := exec.Command("getent", "passwd", name).Output(); !strings.HasSuffix(strings.TrimSpace(string(out)), ":/nonexistent:/usr/sbin/nologin") {
		t.Errorf("%s", out)
	}
	for _, r := range []wire.Resource{own, data, cache} {
		if before(t, m, r) != nil {
			t.Errorf("%s was there before", r.ID)
		}
		do(t, m, r)
	}
	os.Chmod(dir+"/data", 0o700)
	if o := observe(t, m, data); o.Matches || o.Differs != "mode 0700, want 2750" {
		t.Errorf("%+v", o)
	}
	do(t, m, data)
	os.WriteFile(dir+"/data/rows", []byte("1"), 0o600)
	os.WriteFile(dir+"/cache/rows", []byte("1"), 0o600)
	for _, c := range []struct {
		r    wire.Resource
		kept bool
	}{{cache, false}, {data, true}, {own, true}, {user, true}} {
		if kept := undo(t, m, c.r, nil); kept != c.kept {
			t.Errorf("undo %s: kept %v", c.r.ID, kept)
		}
	}
	if got, err := os.ReadFile(dir + "/data/rows"); string(got) != "1" {
		t.Error(got, err)
	}
	if _, err := os.Lstat(dir + "/cache"); !os.IsNotExist(err) {
		t.Error("cache is still there")
	}
	do(t, m, user) // taken up again
	if again, _ := userID(name); again != uid {
		t.Errorf("uid %d, was %d", again, uid)
	}
	next := fmt.Sprintf("mt%dv", os.Getpid())
	t.Cleanup(func() { exec.Command("userdel", next).Run(); exec.Command("groupdel", next).Run() })
	took := func(name string, uid int) {
		t.Helper()
		if err := exec.Command("useradd", "--system", "--gid", "nogroup", "--uid", strconv.Itoa(uid), name).Run(); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) {
		t.Helper()
		if err := exec.Command("userdel", name).Run(); err != nil {
			t.Fatal(err)
		}
	}
	gone(name) // by hand, and others come and go meanwhile
	took(next, uid+1)
	do(t, m, user)
	if again, _ := userID(name); again != uid {
		t.Errorf("made again, its uid is %d, was %d: what it had belongs to nobody", again, uid)
	}
	gone(name)
	gone(next)
	took(next, uid) // the number is somebody else's now
	if err := effector(m, user).Do(t.Context(), user); err == nil || !strings.Contains(err.Error(), strconv.Itoa(uid)) {
		t.Errorf("the uid is taken: %v", err)
	}
	exec.Command("groupdel", name).Run()
	took(name, uid+2) // and the name, too
	if o := observe(t, m, user); o.Matches || !strings.Contains(o.Differs, strconv.Itoa(uid)) {
		t.Errorf("another of that name: %+v", o)
	}
	if err := effector(m, user).Do(t.Context(), user); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("another of that name: %v", err)
	}
	gone(name)
	gone(next)
	do(t, m, user)
	os.RemoveAll(dir + "/data") // as a purge does
	if undo(t, m, own, nil) || undo(t, m, user, nil) {
		t.Error("kept without data")
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Error("own folder is still there")
	}
	if b, _ := look(name); b != (userBefore{}) {
		t.Errorf("%+v", b)
	}
}

// NODE-7: what the mesh did not make is never removed.
func TestThereBefore(t *testing.T) {
	m, in := machine(t)
	name := person(t)
	user := resource(wire.User, name, wire.UserSpec{Name: name, Home: "/var/elsewhere"})
	record := before(t, m, user)
	do(t, m, user)
	if undo(t, m, user, record) {
		t.Error("kept")
	}
	if b, _ := look(name); !b.User || !b.Group {
		t.Errorf("%+v", b)
	}
	path := filepath.Join(in.Dir, "was")
	os.Mkdir(path, 0o711)
	os.WriteFile(path+"/x", []byte("x"), 0o600)
	was := state(path)
	directory := resource(wire.Directory, "was", wire.DirectorySpec{Path: path, Class: "cache", Owner: name, Group: name, Mode: "0700"})
	record = before(t, m, directory)
	do(t, m, directory)
	undo(t, m, directory, record)
	if d := cmp.Diff(was, state(path)); d != "" {
		t.Error(d)
	}
	if _, err := os.Lstat(path + "/x"); err != nil {
		t.Error(err)
	}
}

// SAFE-3: names are checked where they are used.
func TestUserNames(t *testing.T) {
	m, _ := machine(t)
	for _, s := range []wire.UserSpec{{Name: ""}, {Name: "-o"}, {Name: "a b"}, {Name: "a:0:0"}, {Name: "Root"}, {Name: strings.Repeat("a", 33)}, {Name: "a", Home: "x"}, {Name: "a", Home: "/a:b"}} {
		r := resource(wire.User, "x", s)
		if err := m.Effectors[wire.User].Do(t.Context(), r); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestMakeUserCommands(t *testing.T) {
	var got []string
	for _, shadow := range []bool{true, false} {
		for _, b := range []userBefore{{}, {Group: true}, {User: true}} {
			for _, c := range makeUser(wire.UserSpec{Name: "web", Home: "/h"}, b, nil, shadow) {
				got = append(got, c.Program+" "+strings.Join(c.Arguments, " "))
			}
		}
		for _, c := range makeUser(wire.UserSpec{Name: "web", Home: "/h"}, userBefore{}, &account{UID: 7, GID: 8}, shadow) {
			got = append(got, c.Program+" "+strings.Join(c.Arguments, " "))
		}
	}
	useradd := "useradd --system --gid web --no-create-home --home-dir /h --shell /usr/sbin/nologin web"
	adduser := "adduser -S -D -H -h /h -s /sbin/nologin -G web web"
	want := []string{"groupadd --system web", useradd, useradd, "groupadd --system web",
		"groupadd --system --gid 8 web", "useradd --system --uid 7 --gid web --no-create-home --home-dir /h --shell /usr/sbin/nologin web",
		"addgroup -S web", adduser, adduser, "addgroup -S web", "addgroup -S -g 8 web", "adduser -S -D -H -u 7 -h /h -s /sbin/nologin -G web web"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// GEN-5: no cluster comes with the package, and a file that somebody wrote is as it was afterwards.
func TestWithoutCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "postgresql-common", "createcluster.conf")
	for _, c := range []struct{ have, during, after string }{
		{"", noCluster, noCluster},
		{noCluster, noCluster, noCluster},
		{"#create_main_cluster = true\nssl = on", "#create_main_cluster = true\nssl = on\n" + noCluster, "#create_main_cluster = true\nssl = on"},
		{"create_main_cluster = true\n", "create_main_cluster = true\n" + noCluster, "create_main_cluster = true\n"},
		{"create_main_cluster = off\n" + noCluster, "create_main_cluster = off\n" + noCluster, "create_main_cluster = off\n" + noCluster},
	} {
		os.Remove(path)
		if c.have != "" {
			os.WriteFile(path, []byte(c.have), 0o600)
		}
		restore, err := withoutCluster(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != c.during {
			t.Errorf("%q: during %q", c.have, got)
		}
		restore()
		if got, _ := os.ReadFile(path); string(got) != c.after {
			t.Errorf("%q: after %q", c.have, got)
		}
	}
}

func TestPackageRefusals(t *testing.T) {
	m, in := machine(t)
	for name, s := range map[string]wire.PackageSpec{
		"option":   {Names: map[string]string{"apt": "-o=x", "dnf": "-x", "apk": "-x"}},
		"no name":  {Names: map[string]string{"pacman": "x"}},
		"no match": {Names: map[string]string{}, Unless: []string{in.Dir + "/none*"}},
	} {
		r := resource(wire.Package, name, s)
		if err := m.Effectors[wire.Package].Do(t.Context(), r); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Where what it is for is there, nothing is installed, and nothing is removed.
	r := resource(wire.Package, "x", wire.PackageSpec{Names: map[string]string{"apt": "no-such-package"}, Unless: []string{in.Dir + "/bin/m*"}})
	record := before(t, m, r)
	do(t, m, r)
	undo(t, m, r, record)
	if string(record) != `"there before"` {
		t.Errorf("%s", record)
	}
}

// DEC-4, DEC-13: what each manager is asked; apt and dnf themselves are asked in lab/scenarios.
func TestManagerCommands(t *testing.T) {
	var got strings.Builder
	for _, m := range managers {
		for _, c := range [][]string{m.query, m.refresh, m.comes, m.install, m.unasked, m.leaves, m.remove} {
			if c != nil {
				fmt.Fprintln(&got, strings.Join(c, " "))
			}
		}
	}
	const want = `dpkg-query -W -f ${db:Status-Status}\n
apt-get -q -o DPkg::Lock::Timeout=300 update
apt-get -q -s --no-install-recommends install
apt-get -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold install
apt-mark showauto
apt-get -q -s remove
apt-get -q -y -o DPkg::Lock::Timeout=300 remove
rpm -q
dnf -q -y --refresh makecache
dnf -q -y --setopt=install_weak_deps=False install
rpm -e --test
dnf -q -y --setopt=clean_requirements_on_remove=True remove
apk info -e
apk --wait 300 --no-cache add
apk --wait 300 del
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Error(d)
	}
	for _, m := range managers {
		for _, word := range slices.Concat(m.install, m.remove) {
			if strings.Contains(word, "purge") || strings.Contains(word, "autoremove") {
				t.Errorf("%s: %s", m.name, word)
			}
		}
	}
}

func TestSimulated(t *testing.T) {
	out := []byte("Reading package lists...\nInst libz (2 Debian:12 [amd64])\nInst libssl [1] (2 Debian:12 [amd64])\nInst web (1 Debian:12 [amd64])\nRemv old [1]\nConf web (1)\n")
	if d := cmp.Diff([]string{"libz", "web"}, simulated("Inst", out)); d != "" {
		t.Errorf("anew: %s", d)
	}
	if d := cmp.Diff([]string{"old"}, simulated("Remv", out)); d != "" {
		t.Errorf("removed: %s", d)
	}
}

func TestNeededBy(t *testing.T) {
	out := []byte("error: Failed dependencies:\n\tlib = 1 is needed by (installed) web-1-1.noarch\n\tlib is needed by (installed) web-1-1.noarch\n")
	if d := cmp.Diff([]string{"web-1-1.noarch", "web-1-1.noarch"}, neededBy(out)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"others"}, neededBy([]byte("error: it is not to be\n"))); d != "" {
		t.Error(d)
	}
}

// The distribution's own manager is asked where another one is installed, too.
func TestFamily(t *testing.T) {
	path := filepath.Join(t.TempDir(), "os-release")
	for text, want := range map[string][]string{
		"NAME=x\nID=debian\n": {"debian"}, "ID_LIKE=\"rhel centos fedora\"\nID='rocky'\n": {"rhel", "centos", "fedora", "rocky"}, "ID=alpine": {"alpine"}, "": nil,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, family("/nonexistent", path)); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
}

// GEN-5 on a machine that never had PostgreSQL: the binaries come, no cluster does, and none runs.
func TestPackageWithoutCluster(t *testing.T) {
	m, _ := machine(t)
	if _, err := os.Stat("/usr/share/postgresql-common"); os.Getenv("MESH_TEST_PACKAGES") == "" || err == nil {
		t.Skip("installs and removes postgresql: set MESH_TEST_PACKAGES=1 on a Debian machine that never had it, with a mirror in reach")
	}
	s := wire.PackageSpec{Names: map[string]string{"apt": "postgresql"}}
	r := resource(wire.Package, "postgresql", s)
	record := before(t, m, r)
	do(t, m, r)
	if !unless(wire.PackageSpec{Unless: []string{"/usr/lib/postgresql/*/bin/postgres"}}) {
		t.Error("no binaries")
	}
	for _, pattern := range []string{"/etc/postgresql/*/*", "/var/lib/postgresql/*/*", "/run/postgresql/.s.PGSQL.*"} {
		if made, _ := filepath.Glob(pattern); made != nil {
			t.Errorf("there is %v", made)
		}
	}
	undo(t, m, r, record)
	if _, err := os.Lstat(createClusterFile); !os.IsNotExist(err) {
		t.Errorf("%s: %v", createClusterFile, err)
	}
}

// DEC-8, and what a process is given.
func TestProcess(t *testing.T) {
	m, in := machine(t)
	if underSystemd() {
		t.Skip("systemd is PID 1 here: run the tests in a container without it")
	}
	user := person(t)
	os.MkdirAll(in.Module("hello"), 0o755)
	os.WriteFile(filepath.Join(in.Dir, "bin", "own"), []byte("#!/bin/sh\necho \"$0 $MESH_STATE $MESH_NODE $MESH_INSTANCE $HOME $A $(pwd) $(id -un)\"\nexec sleep 1000\n"), 0o755)
	s := wire.ProcessSpec{Name: "web", User: user, Command: []string{"own"}, Directory: in.Module("hello"), Environment: map[string]string{"A": "b", "MESH_NODE": "forged"}, Run: wire.Run{Restart: "always", Stop: "1s"}}
	web := resource(wire.Process, "web", s)
	t.Cleanup(func() { m.Processes.Undo(context.Background(), web, nil) })

	status := func() host.Running {
		t.Helper()
		run, err := m.Processes.Status(t.Context(), web)
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	if o := observe(t, m, web); o.Present || status().State != "missing" {
		t.Errorf("%+v, %+v", o, status())
	}
	do(t, m, web)
	first := status()
	if first.State != "running" || first.PID == 0 || first.Restarts != 0 {
		t.Errorf("%+v", first)
	}
	want := fmt.Sprintf("%[1]s/bin/own %[1]s n1 hello %[1]s/modules/hello b %[1]s/modules/hello %[2]s", in.Dir, user)
	await(t, func() string {
		lines, err := m.Processes.Log(t.Context(), web, 3)
		if err != nil || len(lines) != 1 || lines[0] != want {
			return fmt.Sprintf("log %q, %v, want %q", lines, err, want)
		}
		return ""
	})

	s.Ready = &wire.Check{TCP: "127.0.0.1:1"}
	s.OnChange = map[string]string{"x": "none"}
	web = resource(wire.Process, "web", s)
	do(t, m, web)
	if status().PID != first.PID {
		t.Error("restarted for a check")
	}
	s.Environment["A"] = "c"
	web = resource(wire.Process, "web", s)
	if o := observe(t, m, web); o.Matches || o.Differs != "definition" {
		t.Errorf("%+v", o)
	}
	do(t, m, web)
	second := status()
	if second.PID == first.PID {
		t.Error("not restarted")
	}
	if err := m.Processes.Act(t.Context(), web, "restart"); err != nil || status().PID == second.PID {
		t.Errorf("restart: %v", err)
	}
	for action, signal := range map[string]string{"kill": "", "": "", "signal": "KILL"} {
		s.Signal = signal
		if err := m.Processes.Act(t.Context(), resource(wire.Process, "web", s), action); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s %s: %v", action, signal, err)
		}
	}

	if err := m.Processes.Check(t.Context(), web, []string{"test", "-O", in.Dir}); err == nil { // owned by root, and the check is not root
		t.Error("check runs as root")
	}
	if err := m.Processes.Check(t.Context(), web, []string{"printenv", "MESH_INSTANCE"}); err != nil {
		t.Error(err)
	}

	// DEC-8: what a check leaves behind is not the agent's: it is where the process is, and goes with it.
	left := filepath.Join(in.Module("hello"), "left")
	if err := errors.Join(os.Mkdir(left, 0o777), os.Chmod(left, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := m.Processes.Check(t.Context(), web, []string{"sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $! >" + left + "/pid"}); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(left, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	leftBehind, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if group := run.Group(status().PID); group != "" && run.Group(leftBehind) != group {
		t.Errorf("a check's child is in %s, the process in %s", run.Group(leftBehind), group)
	}

	child := status().PID // DEC-6, DEC-8: a killed supervisor is seen, and another takes the process over
	if err := syscall.Kill(parent(t, child), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, func() string {
		if o := observe(t, m, web); !o.Present || o.Matches || o.Differs != "no supervisor" {
			return fmt.Sprintf("without supervisor: %+v", o)
		}
		return ""
	})
	do(t, m, web)
	if o := observe(t, m, web); !o.Matches || status().PID != child {
		t.Errorf("taken over: %+v, process %d, before %d", o, status().PID, child)
	}

	supervise.Stop(t.Context(), in.ProcessDir("hello", "web"))
	if o := observe(t, m, web); o.Matches || o.Differs != "stopped, want running" {
		t.Errorf("%+v", o)
	}
	do(t, m, web)
	pid := status().PID
	undo(t, m, web, nil)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) && !isZombie(pid) {
		t.Errorf("process %d lives: %v", pid, err)
	}
	if _, err := os.Lstat(in.ProcessDir("hello", "web")); !os.IsNotExist(err) {
		t.Error("folder is still there")
	}
}

// OPS-1, DEC-8: a stopped process is described and neither runs nor is kept, also by a supervisor that is started by hand; started, it runs
// again whatever its policy, as it is described by then.
func TestStoppedProcess(t *testing.T) {
	m, in := machine(t)
	if underSystemd() {
		t.Skip("systemd is PID 1 here: run the tests in a container without it")
	}
	os.MkdirAll(in.Module("hello"), 0o755)
	for _, policy := range []string{"always", "never"} {
		t.Run(policy, func(t *testing.T) {
			s := wire.ProcessSpec{Name: policy, User: person(t), Command: []string{"sleep", "1000"}, Directory: in.Module("hello"), Run: wire.Run{Restart: policy, Stop: "1s"}}
			as := func(stopped bool) wire.Resource { s.Stopped = stopped; return resource(wire.Process, policy, s) }
			t.Cleanup(func() { m.Processes.Undo(context.Background(), as(true), nil) })
			is := func(stopped bool, state string) {
				t.Helper()
				run, err := m.Processes.Status(t.Context(), as(stopped))
				if o := observe(t, m, as(stopped)); err != nil || !o.Present || !o.Matches || run.State != state || (run.PID == 0) != stopped {
					t.Errorf("%+v, %+v, %v", o, run, err)
				}
			}
			do(t, m, as(true)) // never made before
			is(true, "stopped")
			do(t, m, as(false))
			is(false, "running")
			run, _ := m.Processes.Status(t.Context(), as(false))
			if o := observe(t, m, as(true)); o.Matches || o.Differs != "running, want stopped" {
				t.Errorf("%+v", o)
			}
			do(t, m, as(true))
			is(true, "stopped")
			if err := syscall.Kill(run.PID, 0); !errors.Is(err, syscall.ESRCH) && !isZombie(run.PID) {
				t.Errorf("process %d lives: %v", run.PID, err)
			}
			if o := observe(t, m, as(false)); o.Matches {
				t.Errorf("stopped, and it shall run: %+v", o)
			}
			s.Environment = map[string]string{"A": "b"}
			if o := observe(t, m, as(true)); o.Matches || o.Differs != "definition" {
				t.Errorf("%+v", o)
			}
			do(t, m, as(true))
			is(true, "stopped")

			ctx, cancel := context.WithCancel(t.Context()) // what a start of the machine might do
			ended := make(chan error, 1)
			go func() { ended <- supervise.Run(ctx, in.ProcessDir("hello", policy)) }()
			await(t, func() string {
				if status, err := supervise.Get(t.Context(), in.ProcessDir("hello", policy)); err != nil || !status.Supervised || status.State != "stopped" {
					return fmt.Sprintf("%+v, %v", status, err)
				}
				return ""
			})
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			do(t, m, as(false))
			is(false, "running")
		})
	}
}

// DEC-11: reload and signal reach the process as the signals they mean, and it goes on.
func TestSignals(t *testing.T) {
	m, in := machine(t)
	if underSystemd() {
		t.Skip("systemd is PID 1 here: run the tests in a container without it")
	}
	os.MkdirAll(in.Module("hello"), 0o755)
	os.WriteFile(filepath.Join(in.Dir, "bin", "own"), []byte("#!/bin/sh\ntrap 'echo heard HUP' HUP\ntrap 'echo heard USR2' USR2\necho ready\nwhile :; do sleep 0.02; done\n"), 0o755)
	s := wire.ProcessSpec{Name: "web", User: person(t), Command: []string{"own"}, Directory: in.Module("hello"), Run: wire.Run{Restart: "always", Stop: "1s"}}
	t.Cleanup(func() { m.Processes.Undo(context.Background(), resource(wire.Process, "web", s), nil) })
	do(t, m, resource(wire.Process, "web", s))
	heard := func(n int, last string) {
		t.Helper()
		await(t, func() string {
			lines, err := m.Processes.Log(t.Context(), resource(wire.Process, "web", s), 10)
			if err != nil || len(lines) != n || lines[n-1] != last {
				return fmt.Sprintf("log %q, %v", lines, err)
			}
			return ""
		})
	}
	heard(1, "ready")
	for i, c := range []struct{ action, signal, heard string }{{"reload", "USR2", "HUP"}, {"signal", "", "HUP"}, {"signal", "USR2", "USR2"}} {
		s.Signal = c.signal
		if err := m.Processes.Act(t.Context(), resource(wire.Process, "web", s), c.action); err != nil {
			t.Fatal(err)
		}
		heard(2+i, "heard "+c.heard)
	}
}

// parent is the supervisor of a process.
func parent(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "PPid:"); ok {
			id, _ := strconv.Atoi(strings.TrimSpace(text))
			if command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id)); id > 1 && strings.Contains(string(command), "\x00supervise\x00") {
				return id
			}
		}
	}
	t.Fatalf("no supervisor of process %d", pid)
	return 0
}

func isZombie(pid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return strings.Contains(string(data), ") Z ")
}

func await(t *testing.T, what func() (missing string)) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		missing := what()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still: %s", missing)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

func TestProcessRefusals(t *testing.T) {
	m, in := machine(t)
	good := wire.ProcessSpec{Name: "web", User: "root", Command: []string{"/no/such/program"}, Directory: in.Dir}
	for name, change := range map[string]func(*wire.ProcessSpec){
		"name":    func(s *wire.ProcessSpec) { s.Name = "../x" },
		"user":    func(s *wire.ProcessSpec) { s.User = "no-such-user" },
		"program": func(s *wire.ProcessSpec) { s.Command = []string{"no-such-program"} },
		"command": func(s *wire.ProcessSpec) { s.Command = nil },
		"restart": func(s *wire.ProcessSpec) { s.Restart = "sometimes" },
		"stop":    func(s *wire.ProcessSpec) { s.Stop = "soon" },
		"start":   func(s *wire.ProcessSpec) {},
	} {
		s := good
		change(&s)
		r := resource(wire.Process, "web", s)
		if err := m.Processes.Do(t.Context(), r); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := m.Processes.Undo(t.Context(), r, nil); err != nil && name != "name" {
			t.Errorf("%s: undo: %v", name, err)
		}
	}
}

// UPG-3
func TestCapabilities(t *testing.T) {
	m, _ := machine(t)
	c := m.Capabilities()
	if c.Wire != wire.Version || c.Binary != "test" || !c.Digest.Valid() || c.OS != "linux" || c.Distribution == "" || c.Init == "" {
		t.Errorf("%+v", c)
	}
	kinds := slices.DeleteFunc(slices.Clone(wire.ResourceKinds), func(k wire.ResourceKind) bool { return k == wire.Container && c.Runtime == "" })
	if d := cmp.Diff(kinds, c.Kinds); d != "" {
		t.Error(d)
	}
	if id := m.MachineID(); id != "" && !appliance.Digest(id).Valid() {
		t.Error(id)
	}
	path := filepath.Join(t.TempDir(), "os-release")
	for text, want := range map[string]string{"NAME=x\nID=debian\n": "debian", "ID=\"opensuse-leap\"\n": "opensuse-leap", "NAME=x\n": "linux"} {
		os.WriteFile(path, []byte(text), 0o600)
		if got := distribution("/none", path); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// MOD-10, SAFE-3: data goes with everything in it and nothing that links in it lead to, is data no more, and lets folder and user go; one
// that was there before the mesh keeps what is in it. Its size is what it takes, without what links lead to.
func TestPurge(t *testing.T) {
	m, in := machine(t)
	name := person(t)
	outside := filepath.Join(in.Dir, "outside")
	if err := errors.Join(os.MkdirAll(outside, 0o755), os.WriteFile(outside+"/precious", make([]byte, 1<<20), 0o644)); err != nil {
		t.Fatal(err)
	}
	dir := in.Module("hello")
	directory := func(path, class string) wire.Resource {
		return resource(wire.Directory, path, wire.DirectorySpec{Path: path, Class: class, Owner: name, Group: name, Mode: "0750"})
	}
	purge := func(r wire.Resource, undo json.RawMessage) (kept bool, err error) {
		return m.Effectors[wire.Directory].(host.Purger).Purge(t.Context(), r, undo)
	}
	own, data := directory(dir, "config"), directory(dir+"/data", "data")
	do(t, m, own)
	do(t, m, data)
	if err := errors.Join(os.MkdirAll(dir+"/data/deep/er", 0o755), os.WriteFile(dir+"/data/deep/er/rows", make([]byte, 64<<10), 0o600),
		os.Symlink(outside, dir+"/data/deep/link"), os.Symlink(outside+"/precious", dir+"/data/file")); err != nil {
		t.Fatal(err)
	}
	if n, err := m.Size(t.Context(), data); err != nil || n < 64<<10 || n > 256<<10 {
		t.Errorf("size %d, %v", n, err)
	}
	if kept := undo(t, m, own, nil); !kept {
		t.Error("the folder around data was removed")
	}
	for range 2 {
		if kept, err := purge(data, nil); kept || err != nil {
			t.Fatal(kept, err)
		}
	}
	if kept := undo(t, m, own, nil); kept {
		t.Error("the folder is kept without data")
	}
	if got, err := os.ReadFile(outside + "/precious"); len(got) != 1<<20 {
		t.Errorf("what a link leads to: %d bytes, %v", len(got), err)
	}

	if err := os.MkdirAll(dir, 0o755); err != nil { // somebody put a link in its place
		t.Fatal(err)
	}
	os.Symlink(outside, dir+"/data")
	if _, err := purge(data, nil); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("through a link: %v", err)
	}
	os.Remove(dir + "/data")
	if err := errors.Join(os.Mkdir(dir+"/data", 0o711), os.WriteFile(dir+"/data/theirs", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	record := before(t, m, data)
	do(t, m, data)
	if kept, err := purge(data, record); err != nil || !kept {
		t.Errorf("there before the mesh: kept %v, %v", kept, err)
	}
	if _, err := os.Lstat(dir + "/data/theirs"); err != nil {
		t.Error(err)
	}
}

// MOD-14: a module runs as nobody's account but its own or another system account's, whatever its manifest calls it.
func TestUsersAreNobodys(t *testing.T) {
	m, _ := machine(t)
	somebody := person(t)
	if out, err := exec.Command("usermod", "--uid", "1999", somebody).CombinedOutput(); err != nil {
		t.Fatalf("usermod: %v: %s", err, out)
	}
	for _, name := range []string{"root", somebody} {
		_, err := m.Effectors[wire.User].Observe(t.Context(), resource(wire.User, name, wire.UserSpec{Name: name}))
		if appliance.KindOf(err) != appliance.Conflict || appliance.AsError(err).Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
