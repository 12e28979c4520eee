package scenarios

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// Nodes whose joining goes wrong on the way.
func TestJoiningInterrupted(t *testing.T) {
	bed := up(t, beds.Five)
	equip(t, bed)
	hub := bed.Host("hub")
	command(t, hub, 0, "genesis", "--name", "lab", "--endpoint", hub.Address.String(), "--yes")
	t.Run("killed between spending and answer", func(t *testing.T) { killedAfterSpending(t, hub, bed.Host("n1")) })
	t.Run("killed here and there", func(t *testing.T) {
		killedAfter(t, hub, bed.Host("n2"), 0, 5*time.Millisecond, 15*time.Millisecond, 30*time.Millisecond, 45*time.Millisecond)
		killedAfter(t, hub, bed.Host("n3"), 60*time.Millisecond, 90*time.Millisecond, 130*time.Millisecond, 200*time.Millisecond)
	})
	t.Run("older agent", func(t *testing.T) { olderAgent(t, hub, bed.Host("n4")) })
	wantNodes(t, hub, "hub", "n1", "n2", "n3", "n4")
}

// wantNodes: every name once, every address once, all current.
func wantNodes(t *testing.T, hub *netns.Host, names ...string) {
	t.Helper()
	waitFor(t, "all are current", 30*time.Second, func() string { return notCurrent(t.Context(), hub, len(names), time.Time{}) })
	var have, places []string
	for _, n := range statusOf(t, hub).Nodes {
		have = append(have, n.Name)
	}
	overlay, err := addresses(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range overlay {
		places = append(places, place)
	}
	slices.Sort(have)
	slices.Sort(places)
	if !slices.Equal(have, names) || len(slices.Compact(places)) != len(names) {
		t.Errorf("nodes %v at %v, not %v", have, overlay, names)
	}
	if pids := hub.Pids(isPostmaster); len(pids) != 1 {
		t.Errorf("stores: %v", pids)
	}
}

// joinToken gives a token for one machine and its id.
func joinToken(t *testing.T, hub *netns.Host) (id, token string) {
	t.Helper()
	var made struct{ ID, Token string }
	if err := ask(t.Context(), hub, &made, "token", "create"); err != nil {
		t.Fatal(err)
	}
	return made.ID, made.Token
}

func spent(t *testing.T, hub *netns.Host, id string) int {
	t.Helper()
	var list []struct {
		ID   string
		Used int
	}
	if err := ask(t.Context(), hub, &list, "token", "list"); err != nil {
		t.Fatal(err)
	}
	for _, token := range list {
		if token.ID == id {
			return token.Used
		}
	}
	t.Fatalf("no token %s in %v", id, list)
	return 0
}

// claiming starts a join and returns when it is about to claim.
func claiming(t *testing.T, host *netns.Host, token string) *exec.Cmd {
	t.Helper()
	cmd := host.Command(t.Context(), beds.Line("join", token, "--name", host.Name)...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "claiming the name ") {
			return cmd
		}
	}
	t.Fatalf("join on %s did not get to its claim: %v", host.Name, cmd.Wait())
	return nil
}

// crash ends a join as kill -9 does.
func crash(cmd *exec.Cmd) {
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	cmd.Wait()
}

func isNode(host *netns.Host) bool {
	_, err := host.Get(context.Background(), "/var/lib/mesh/mesh.json")
	return err == nil
}

// NODE-4: the token is spent and the answer never read: the same command gets it. The joiner is let on in small steps, so that it
// surely stands there when it is killed.
func killedAfterSpending(t *testing.T, hub, host *netns.Host) {
	id, token := joinToken(t, hub)
	cmd := claiming(t, host, token)
	join := the(t, host, "join", isCommand("join"))
	for steps := 0; ; steps++ {
		if err := host.Kill(join, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if spent(t, hub, id) == 1 {
			t.Logf("spent within %d steps", steps)
			break
		}
		if isNode(host) || steps > 2000 {
			t.Fatalf("after %d steps the token is not spent", steps)
		}
		if err := host.Kill(join, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond) // one step
	}
	if isNode(host) {
		t.Fatal("the joiner has read its answer: the steps are too long")
	}
	crash(cmd)
	command(t, host, 0, "join", token, "--name", host.Name)
	if used := spent(t, hub, id); used != 1 {
		t.Errorf("the token is spent %d times", used)
	}
}

// NODE-4: killed again and again, at whatever moment, the same command finishes.
func killedAfter(t *testing.T, hub, host *netns.Host, delays ...time.Duration) {
	id, token := joinToken(t, hub)
	var ends []string
	for _, delay := range delays {
		if isNode(host) { // what is left of joining is to wait
			break
		}
		cmd := claiming(t, host, token)
		<-time.After(delay)
		crash(cmd)
		ends = append(ends, fmt.Sprintf("%s: spent %d, node %v", delay, spent(t, hub, id), isNode(host)))
	}
	t.Logf("%s killed after %s", host.Name, strings.Join(ends, "; "))
	out, _ := command(t, host, 0, "join", token, "--name", host.Name)
	if !strings.Contains(out, "This machine is node "+host.Name) || spent(t, hub, id) != 1 {
		t.Errorf("join said %q, the token is spent %d times", out, spent(t, hub, id))
	}
	the(t, host, "agent", isCommand("agent"))
}

// UPG-3: an agent that understands only the frozen version 0 becomes the hub's binary, keeps its own beside it, and is then as current
// as everybody else.
func olderAgent(t *testing.T, hub, host *netns.Host) {
	older, err := oldBinary()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(older)
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Put(t.Context(), beds.Binary, content, 0o755); err != nil {
		t.Fatal(err)
	}
	_, token := joinToken(t, hub)
	begun := time.Now()
	command(t, host, 0, "join", token, "--name", host.Name)
	t.Logf("joined, replaced and current after %s", time.Since(begun))

	const present, previous = "/var/lib/mesh/bin/mesh", "/var/lib/mesh/bin/mesh.previous"
	sum := func(h *netns.Host, path string) string { return strings.Fields(run(t, h, "sha256sum", path))[0] }
	agent := the(t, host, "agent", isCommand("agent"))
	wanted, was := sum(hub, present), sum(host, beds.Binary)
	if wanted == was {
		t.Fatal("the older binary is the hub's")
	}
	if got := sum(host, present); got != wanted {
		t.Errorf("the binary is %s, the hub's %s", got, wanted)
	}
	if got := sum(host, fmt.Sprintf("/proc/%d/exe", agent)); got != wanted {
		t.Errorf("the agent runs %s, the hub has %s", got, wanted)
	}
	if got := sum(host, previous); got != was {
		t.Errorf("kept beside it is %s, not %s", got, was)
	}
	if got := run(t, host, "ls", "/var/lib/mesh/bin"); got != "mesh\nmesh.previous" {
		t.Errorf("in the folder of the binary: %q", got)
	}
	waitFor(t, host.Name+" is current", 10*time.Second, func() string {
		if n := statusOf(t, hub).node(host.Name); !n.Current || n.Outcome != "clean" || n.Number != "1.2" || n.Health != "healthy" {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
	greeter(t, hub)
	greeter(t, host)
	if why := reach(host, "hub.internal"); why != "" {
		t.Error(why)
	}
}
