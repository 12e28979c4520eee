package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// lifecycle is a hub and a machine that was adopted, with two modules of a process and a file each on the machine.
type lifecycle struct{ hub, n1 *netns.Host }

// What operators do with what runs, with the real binary: settings, stop and start, hold and drain, rollback, forgetting a module; and a
// machine that is adopted and converged.
func TestLifecycle(t *testing.T) {
	bed := up(t, beds.Pair)
	equip(t, bed)
	l := &lifecycle{bed.Host("hub"), bed.Host("n1")}
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"adopted", l.adopted}, {"settings", l.settings}, {"stopped", l.stopped}, {"held", l.held}, {"drained", l.drained},
		{"rolled back", l.rolledBack}, {"converged", l.converged}, {"removed", l.removed},
	} {
		if !t.Run(step.name, step.do) {
			return
		}
	}
}

const (
	ones     = "/var/lib/mesh/modules/one/title"
	twos     = "/etc/two.conf"
	theirs   = "was here before\n"
	register = `{"module": %q, "settings": {"title": {"default": "ours", "description": "What the file says"}},
  "privileged": [{"path": "/etc/two.conf", "reason": "where others look for it"}],
  "resources": [
    {"kind": "user", "name": %[1]q},
    {"kind": "file", "path": %[2]q, "owner": %[1]q, "mode": "0640", "content": "%[3]s ${setting:title}\n"},
    {"kind": "process", "name": "main", "user": %[1]q, "command": ["sleep", %[4]q]}]}`
)

// version registers a module in a version.
func (l *lifecycle) version(t *testing.T, module, version string) {
	t.Helper()
	path, sleep := "${dir}/title", "1001"
	if module == "two" {
		path, sleep = twos, "1002"
	}
	if err := l.hub.Put(t.Context(), "/root/"+module+"/module.json", fmt.Appendf(nil, register, module, path, version, sleep), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, l.hub, 0, "module", "register", "/root/"+module)
}

// sleeper matches the process of a module.
func sleeper(module string) func([]string) bool {
	return func(cmdline []string) bool {
		return len(cmdline) == 2 && strings.HasSuffix(cmdline[0], "/sleep") && cmdline[1] == map[string]string{"one": "1001", "two": "1002"}[module]
	}
}

func (l *lifecycle) wantRunning(t *testing.T, modules ...string) {
	t.Helper()
	for _, module := range []string{"one", "two"} {
		if pids := l.n1.Pids(sleeper(module)); (len(pids) == 1) != slices.Contains(modules, module) {
			t.Errorf("%s runs as %v", module, pids)
		}
	}
}

// says is what a command writes on both outputs; it must end with the code.
func (l *lifecycle) says(t *testing.T, code int, text string, args ...string) {
	t.Helper()
	if out, errs := command(t, l.hub, code, args...); !strings.Contains(out+errs, text) {
		t.Errorf("mesh %s does not say %q:\n%s%s", strings.Join(args, " "), text, out, errs)
	}
}

func (l *lifecycle) wantFile(t *testing.T, path, want string) {
	t.Helper()
	if got := run(t, l.n1, "cat", path); got != want {
		t.Errorf("%s: %q, want %q", path, got, want)
	}
}

// NODE-7, MOD-14: a machine is adopted; what was there before stays, is named, and what depends on it waits.
func (l *lifecycle) adopted(t *testing.T) {
	command(t, l.hub, 0, founding(l.hub)...)
	token, err := beds.Token(t.Context(), l.hub)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.n1.Put(t.Context(), twos, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, l.n1, 0, "join", token, "--name", "n1", "--adopt")
	l.version(t, "one", "a")
	l.version(t, "two", "a")
	l.says(t, 0, "privileged: path /etc/two.conf: where others look for it", "module", "show", "two")
	command(t, l.hub, 0, "module", "assign", "one", "n1", "--push", "--wait")
	l.wantRunning(t, "one")
	l.says(t, 1, "two/file//etc/two.conf", "module", "assign", "two", "n1", "--push", "--wait")
	l.wantFile(t, twos, strings.TrimSpace(theirs))
	l.wantRunning(t, "one")
	l.says(t, 3, "there before the mesh, and declared otherwise: two/file//etc/two.conf", "node", "converge", "n1")
}

// MOD-11, DEC-2: a value for everywhere, one for the node, one from standard input; unset, the one before is back.
func (l *lifecycle) settings(t *testing.T) {
	l.says(t, 0, "next: mesh plan --only one", "setting", "set", "one", "title", "theirs")
	l.wantFile(t, ones, "a ours")
	command(t, l.hub, 0, "push", "--only", "one")
	set := l.hub.Command(t.Context(), beds.Binary, "setting", "set", "one@n1", "title", "-", "--push")
	set.Stdin = strings.NewReader("mine\n")
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	waitFor(t, "the node has its own value", 10*time.Second, func() string {
		if got := run(t, l.n1, "cat", ones); got != "a mine" {
			return got
		}
		return ""
	})
	out, _ := command(t, l.hub, 0, "setting", "list", "one")
	for _, line := range []string{"title - mesh theirs What the file says", "title n1 node mine What the file says"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), line) {
			t.Errorf("no %q in:\n%s", line, out)
		}
	}
	command(t, l.hub, 0, "setting", "unset", "one@n1", "title", "--push")
	waitFor(t, "the node has the mesh's value", 10*time.Second, func() string {
		if got := run(t, l.n1, "cat", ones); got != "a theirs" {
			return got
		}
		return ""
	})
	l.says(t, 3, `did you mean "title"?`, "setting", "set", "one", "titel", "x")
}

// OPS-1: what is stopped runs neither after a restart of the agent nor of the machine, and again when it is started; a restart is another process.
func (l *lifecycle) stopped(t *testing.T) {
	command(t, l.hub, 0, "module", "unassign", "two", "n1", "--push", "--wait")
	l.says(t, 0, "stopped: one@n1", "module", "stop", "one@n1", "--wait")
	l.wantRunning(t)
	l.says(t, 0, "stopped by an operator", "status")
	kill(t, l.n1, "agent")
	if err := l.n1.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	command(t, l.n1, 0, "start")
	waitFor(t, "the node is back", 20*time.Second, func() string { return notCurrent(t.Context(), l.hub, 2, since) })
	l.wantRunning(t)
	l.says(t, 0, "started: one@n1", "module", "start", "one", "--wait")
	before := the(t, l.n1, "one", sleeper("one"))
	l.says(t, 0, "restarted: one@n1", "module", "restart", "one@n1", "--wait")
	if after := the(t, l.n1, "one", sleeper("one")); after == before {
		t.Errorf("process %d goes on", before)
	}
	l.says(t, 3, "`mesh stop`", "module", "stop", "mesh-network")
}

// OPS-3: held, the node changes nothing, and what is pushed waits there; with an end the hold ends by itself.
func (l *lifecycle) held(t *testing.T) {
	l.says(t, 0, "n1 changes nothing until it is resumed", "node", "hold", "n1")
	l.version(t, "one", "b")
	l.says(t, 0, "n1 is held: it takes this up when it is resumed", "push", "--wait")
	l.says(t, 0, "held until it is resumed", "status")
	l.wantFile(t, ones, "a theirs")
	command(t, l.hub, 0, "node", "resume", "n1", "--wait")
	l.wantFile(t, ones, "b theirs")

	command(t, l.hub, 0, "node", "hold", "n1", "--for", "1s")
	l.version(t, "one", "c")
	command(t, l.hub, 0, "push")
	waitFor(t, "the hold ends", 10*time.Second, func() string {
		if got := run(t, l.n1, "cat", ones); got != "c theirs" {
			return got
		}
		return ""
	})
	command(t, l.hub, 0, "status", "--wait")
}

// OPS-3: drained, nothing runs but what the mesh stands on; resumed, it runs again.
func (l *lifecycle) drained(t *testing.T) {
	l.says(t, 0, "stopped: one@n1", "node", "drain", "n1", "--wait")
	l.wantRunning(t)
	if why := notCurrent(t.Context(), l.hub, 2, time.Time{}); why != "" {
		t.Error(why)
	}
	command(t, l.hub, 0, "node", "resume", "n1", "--wait")
	l.wantRunning(t, "one")
}

// DEC-9, DEC-2: a module goes back to its version before, after it was shown; what is recorded stays, and is the next plan's difference.
func (l *lifecycle) rolledBack(t *testing.T) {
	l.says(t, 2, "asks before it goes on", "rollback", "one")
	l.wantFile(t, ones, "c theirs")
	l.says(t, 0, "What is recorded stays as it is", "rollback", "one", "--yes", "--wait")
	l.wantFile(t, ones, "b theirs")
	l.says(t, 1, "file/title", "plan", "n1")
	l.says(t, 0, "(present)", "plan", "history", "n1")
	command(t, l.hub, 0, "push", "--wait")
	l.wantFile(t, ones, "c theirs")
	l.says(t, 0, "file/title", "rollback", "n1", "--yes", "--wait")
	l.wantFile(t, ones, "b theirs")
	command(t, l.hub, 0, "push", "--wait")
}

// NODE-7: converged by force, the node is made as declared; when that leaves, what was there before is back.
func (l *lifecycle) converged(t *testing.T) {
	l.says(t, 1, "two/file//etc/two.conf", "module", "assign", "two", "n1", "--push", "--wait")
	l.says(t, 0, "two/file//etc/two.conf", "node", "converge", "n1", "--force", "--yes", "--wait")
	l.wantFile(t, twos, "a ours")
	l.wantRunning(t, "one", "two")
}

// MOD-7: a module that is assigned is not forgotten; by force its instance leaves, and is named.
func (l *lifecycle) removed(t *testing.T) {
	l.says(t, 3, "it is needed by two@n1", "module", "remove", "two")
	l.says(t, 0, "two leaves n1 (its instance); its data stays.", "module", "remove", "two", "--force", "--yes", "--push", "--wait")
	l.wantRunning(t, "one")
	l.wantFile(t, twos, strings.TrimSpace(theirs))
	l.says(t, 3, `there is no module "two"`, "module", "show", "two")
}
