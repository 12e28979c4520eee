package linux

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/supervise"
)

var update = flag.Bool("update", false, "write the golden files")

func example() wanted {
	return wanted{named: named{"hello", "web"}, user: "hello", spec: supervise.Spec{
		Command: []string{"/bin/sleep", "${HOME}", "%n", `a "b" \c`, "two\nlines", "1"}, Directory: "/var/lib/mesh/modules/hello",
		Environment: map[string]string{"MESH_NODE": "n1", "A": "50% of $HOME"}, UID: 990, GID: 991, Restart: supervise.Always, Stop: 90 * time.Second}}
}

// DEC-8: the same text for the same process; policy alone restarts nothing.
func TestUnit(t *testing.T) {
	root := example()
	root.spec.UID, root.spec.Restart, root.spec.Stop, root.user = 0, supervise.Never, 0, "root"
	for name, p := range map[string]wanted{"hello.service": example(), "root.service": root} {
		path := filepath.Join("testdata", name)
		got := unit(p)
		if *update {
			os.WriteFile(path, []byte(got), 0o644)
		}
		want, err := os.ReadFile(path)
		if d := cmp.Diff(string(want), got); d != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	p := example()
	p.spec.Restart, p.spec.Stop = supervise.Never, time.Second
	if madeOf(unit(p)) != madeOf(unit(example())) {
		t.Error("policy counts as what it is made of")
	}
	p.spec.Environment["A"] = "other"
	if madeOf(unit(p)) == madeOf(unit(example())) {
		t.Error("environment does not count")
	}
}

// systemd itself reads the unit the way it is meant.
func TestUnitVerified(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("needs systemd-analyze: install systemd")
	}
	p := example()
	p.user, p.spec.GID, p.spec.Directory = "root", 0, "/" // what exists here
	path := filepath.Join(t.TempDir(), "mesh.hello.web.service")
	os.WriteFile(path, []byte(unit(p)), 0o644)
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), "mesh.hello") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestUnitName(t *testing.T) {
	p := named{"hello", "web"}
	if got := (Config{Installation: installation.Installation{Dir: installation.Default}}).unitName(p); got != "mesh.hello.web.service" {
		t.Error(got)
	}
	if got := (Config{Installation: installation.Installation{Dir: "/srv/m"}}).unitName(p); got != "mesh-a2734040.hello.web.service" {
		t.Error(got)
	}
}

func TestRunning(t *testing.T) {
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		load, active string
		want         host.Running
	}{
		{"loaded", "active", host.Running{State: "running", PID: 7, Since: at, Restarts: 2}},
		{"loaded", "activating", host.Running{State: "backoff", Since: at, Restarts: 2}},
		{"loaded", "failed", host.Running{State: "stopped", Since: at, Restarts: 2}},
		{"not-found", "inactive", host.Running{State: "missing"}},
	} {
		got := running(map[string]any{"LoadState": c.load, "ActiveState": c.active, "MainPID": uint32(7), "NRestarts": uint32(2), "ExecMainStartTimestamp": uint64(at.UnixMicro())})
		if d := cmp.Diff(c.want, got); d != "" {
			t.Error(d)
		}
	}
}
