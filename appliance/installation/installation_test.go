package installation_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk/disktest"
	"github.com/novox/mesh/appliance/installation"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(installation.Variable, "")
	for _, c := range []struct{ flag, env, want string }{
		{"", "", installation.Default},
		{"", dir, dir},
		{dir + "/a/../b/", "/elsewhere", dir + "/b"},
	} {
		t.Setenv(installation.Variable, c.env)
		got, err := installation.Find(c.flag)
		if err != nil || got.Dir != c.want {
			t.Errorf("flag %q, variable %q: %q, %v, want %q", c.flag, c.env, got.Dir, err, c.want)
		}
	}
	t.Chdir(dir)
	t.Setenv(installation.Variable, "")
	if got, err := installation.Find("here"); err != nil || got.Dir != filepath.Join(dir, "here") {
		t.Errorf("a relative flag: %v, %v", got, err)
	}
}

// SAFE-1, SAFE-3
func TestFindRefuses(t *testing.T) {
	dir := t.TempDir()
	file, link, dangling := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "nothing"), dangling); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ flag, env string }{
		"a relative variable": {"", "state"}, "a file": {file, ""}, "a link": {link, ""}, "a link with a slash": {link + "/", ""},
		"a dangling link": {dangling, ""}, "the root": {"/", ""}, "a space": {dir + "/a b", ""}, "a newline": {dir + "/a\nb", ""},
		"a quote": {dir + "/a'b", ""}, "a percent sign": {dir + "/a%n", ""}, "much": {dir + "/" + strings.Repeat("a", 200), ""},
	} {
		t.Setenv(installation.Variable, c.env)
		if got, err := installation.Find(c.flag); err == nil || got.Dir != "" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestPaths(t *testing.T) {
	i := installation.Installation{Dir: "/s"}
	got := []string{i.File(), i.LockFile(), i.Binary(), i.Previous(), i.Node(), i.NodeKeys(), i.Certificate(), i.Hub(), i.HubKeys(), i.Operator(),
		i.Module("mesh-store"), i.Run(), i.ProcessDir("hello", "web")}
	want := []string{"/s/mesh.json", "/s/lock", "/s/bin/mesh", "/s/bin/mesh.previous", "/s/node", "/s/node/keys", "/s/node/tls.crt", "/s/hub", "/s/hub/keys",
		"/s/operator/admin.json", "/s/modules/mesh-store", "/s/run", "/s/run/process/hello.web"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRecord(t *testing.T) {
	i := installation.Installation{Dir: t.TempDir()}
	if _, err := i.Read(); err == nil || appliance.KindOf(err) != appliance.NotFound || appliance.AsError(err).Hint == "" {
		t.Errorf("none yet: %v", err)
	}
	want := installation.Record{Mesh: appliance.NewMeshID(), MeshName: "home", Node: appliance.NewNodeID(), Name: "hub", Hub: true,
		Created: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)}
	if err := os.WriteFile(i.LeavingFile(), nil, 0o600); err != nil { // the machine was another node before
		t.Fatal(err)
	}
	if err := i.Write(want); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(i.LeavingFile()); !os.IsNotExist(err) {
		t.Errorf("it is still said to have left: %v", err)
	}
	got, err := i.Read()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(i.File()); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := i.Write(installation.Record{Mesh: want.Mesh}); err == nil {
		t.Error("a record without a node was written")
	}
	for name, text := range map[string]string{"half": `{"mesh":"m`, "empty": "", "no ids": `{}`, "large": `"` + strings.Repeat("a", 70<<10) + `"`} {
		if err := os.WriteFile(i.File(), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := i.Read(); err == nil || appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLock(t *testing.T) {
	i := installation.Installation{Dir: filepath.Join(t.TempDir(), "state")}
	release, err := i.Lock("mesh genesis")
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Lock("mesh join")
	if err == nil || appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), "mesh genesis") {
		t.Errorf("held: %v", err)
	}
	other := installation.Installation{Dir: filepath.Join(t.TempDir(), "other")}
	releaseOther, err := other.Lock("mesh join")
	if err != nil {
		t.Fatalf("another installation: %v", err)
	}
	releaseOther()
	release()
	release, err = i.Lock("mesh join")
	if err != nil {
		t.Fatalf("let go: %v", err)
	}
	release()
}

// SAFE-5: on a full disk the lock holds all the same; only who has it goes unsaid.
func TestLockOnAFullDisk(t *testing.T) {
	dir := disktest.Small(t, 1<<20)
	path := filepath.Join(dir, "lock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	disktest.Fill(t, dir)
	release, err := installation.Hold(path, "mesh agent")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if _, err := installation.Hold(path, "mesh agent"); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("held by two: %v", err)
	}
}

// SAFE-5: the lock of a killed process is nobody's.
func TestLockOfTheDead(t *testing.T) {
	dir := t.TempDir()
	holder := exec.Command(os.Args[0])
	holder.Env = append(os.Environ(), "HOLD="+dir)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	i := installation.Installation{Dir: dir}
	if _, err := i.Lock("mesh join"); err == nil || !strings.Contains(err.Error(), strconv.Itoa(holder.Process.Pid)) {
		t.Errorf("held by another process: %v", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	release, err := i.Lock("mesh join")
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// TestMain is also the other process of TestLockOfTheDead; that one ends by being killed.
func TestMain(m *testing.M) {
	dir := os.Getenv("HOLD")
	if dir == "" {
		os.Exit(m.Run())
	}
	if _, err := (installation.Installation{Dir: dir}).Lock("holder"); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
}
