package scenarios

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

const (
	state  = "/var/lib/mesh"
	filler = state + "/filler"
	mib    = 1 << 20
)

// small puts the host's state folder on a disk of its own.
func small(t *testing.T, host *netns.Host, size string) {
	t.Helper()
	run(t, host, "mkdir", "-p", state)
	run(t, host, "mount", "-t", "tmpfs", "-o", "mode=0755,size="+size, "small", state)
}

// leave makes that disk so small that no more than so many bytes are free.
func leave(t *testing.T, host *netns.Host, free int) {
	t.Helper()
	used, err := strconv.Atoi(strings.Fields(run(t, host, "df", "--block-size=1", "--output=used", state))[1])
	if err != nil {
		t.Fatal(err)
	}
	run(t, host, "mount", "-o", fmt.Sprintf("remount,size=%d", used+free), state)
}

// fill takes what is free on that disk but for so many bytes.
func fill(t *testing.T, host *netns.Host, but int) {
	t.Helper()
	if _, _, _, err := host.Run(t.Context(), "sh", "-c", "cat /dev/zero >>"+filler); err != nil { // it ends when nothing more goes in
		t.Fatal(err)
	}
	if but > 0 {
		run(t, host, "truncate", fmt.Sprintf("--size=-%d", but), filler)
	}
}

// TestFullDisks lives through full disks of a node and of the hub, each of a few MiB.
func TestFullDisks(t *testing.T) {
	bed := up(t, beds.Three)
	equip(t, bed)
	d := &fullDisks{hub: bed.Host("hub"), n1: bed.Host("n1"), n2: bed.Host("n2")}
	small(t, d.hub, "700m")
	small(t, d.n1, "300m")
	command(t, d.hub, 0, "genesis", "--name", "lab", "--endpoint", d.hub.Address.String(), "--ballast", "4M", "--least-free", "2M", "--yes")
	_, token := joinToken(t, d.hub)
	command(t, d.n1, 0, "join", token, "--name", "n1")
	command(t, d.hub, 0, "module", "register", "hello")
	for _, day := range []struct {
		name string
		live func(*testing.T)
	}{
		{"node", d.node},
		{"hub", d.ofTheHub},
	} {
		begun := time.Now()
		if !t.Run(day.name, day.live) {
			t.FailNow()
		}
		t.Logf("%s: %.1f s", day.name, time.Since(begun).Seconds())
	}
}

type fullDisks struct{ hub, n1, n2 *netns.Host }

// DEC-14, SAFE-5: with too little space a node says so, makes nothing new, and removes what is to go, also on a disk that is full to the
// last byte; with space back it makes what waited, by itself.
func (d *fullDisks) node(t *testing.T) {
	for _, name := range []string{"one", "two"} {
		command(t, d.hub, 0, "module", "assign", "hello", "n1", "--as", name)
	}
	command(t, d.hub, 0, "push", "--wait")
	two := the(t, d.n1, "two", isHello("two"))
	leave(t, d.n1, 40*mib)
	fill(t, d.n1, 10*mib)
	waitFor(t, "n1 says that there is too little space", 20*time.Second, d.warned(t, "n1", "disk-low", "only removals and revocations"))
	if n := statusOf(t, d.hub).node("n1"); n.Outcome != "clean" || n.Health != "healthy" {
		t.Errorf("what is there suffers: %+v", n)
	}

	command(t, d.hub, 0, "module", "unassign", "one", "n1")
	command(t, d.hub, 0, "module", "assign", "hello", "n1", "--as", "three")
	_, errs := command(t, d.hub, 1, "push", "n1", "--wait")
	if !strings.Contains(errs, ": disk: 10") || !strings.Contains(errs, "below 16 MiB nothing new is made") {
		t.Errorf("push said %q", errs)
	}
	if got := [2]int{len(d.n1.Pids(isHello("one"))), len(d.n1.Pids(isHello("three")))}; got != [2]int{} {
		t.Errorf("processes of one and three: %v", got)
	}
	if pid := the(t, d.n1, "two", isHello("two")); pid != two {
		t.Errorf("two was restarted")
	}

	fill(t, d.n1, 0)
	kill(t, d.n1, "agent")
	command(t, d.hub, 0, "module", "unassign", "two", "n1")
	command(t, d.hub, 0, "push", "n1")
	waitFor(t, "two is removed from the full disk, and that is told", 20*time.Second, func() string {
		n := statusOf(t, d.hub).node("n1")
		if len(d.n1.Pids(isHello("two"))) > 0 || !n.Current {
			return fmt.Sprintf("processes %v, %+v", d.n1.Pids(isHello("two")), n)
		}
		return ""
	})

	run(t, d.n1, "rm", filler)
	waitFor(t, "n1 makes what waited", 20*time.Second, func() string {
		if n := statusOf(t, d.hub).node("n1"); len(n.Warnings) > 0 {
			return fmt.Sprintf("warnings %+v", n.Warnings)
		}
		return notCurrent(t.Context(), d.hub, 2, time.Time{})
	})
	the(t, d.n1, "three", isHello("three"))
}

// GEN-9, BUS-12, SAFE-5: a full disk of the hub is said, and its ballast serves for a while; then what is new is refused. Killed there, store
// and hub start again, and with space back they go on by themselves, with everything that was ever acknowledged.
func (d *fullDisks) ofTheHub(t *testing.T) {
	_, joining := joinToken(t, d.hub)
	var acknowledged []string
	create := func() {
		var made struct{ ID string }
		if err := ask(t.Context(), d.hub, &made, "token", "create"); err != nil {
			t.Logf("refused: %v", err)
			return
		}
		acknowledged = append(acknowledged, made.ID)
	}
	leave(t, d.hub, 12*mib)
	waitFor(t, "the hub's disk is full, and its agent's own reserve gone", 5*time.Second, func() string {
		run(t, d.hub, "rm", "-f", state+"/node/reserve")
		fill(t, d.hub, 0)
		if _, err := d.hub.Get(t.Context(), state+"/node/reserve"); err == nil {
			return "it is there again"
		}
		return ""
	})
	create()
	waitFor(t, "the hub says that it is on its ballast", 20*time.Second, d.warned(t, "hub", "hub-disk-low", "no reserve left"))
	create()
	command(t, d.hub, 0, "module", "assign", "hello", "n1", "--as", "on-the-ballast", "--push")

	fill(t, d.hub, 0)
	for range 5 {
		create()
	}
	waitFor(t, "the hub says that its disk is full", 20*time.Second, d.warned(t, "hub", "hub-disk-full", "0 B of "))
	if err := d.hub.Kill(the(t, d.hub, "store", isPostmaster), syscall.SIGKILL); err != nil { // as when it panics, since it cannot write its log
		t.Fatal(err)
	}
	kill(t, d.hub, "serve")
	fill(t, d.hub, 0) // what the killed have left
	serve := the(t, d.hub, "serve", isCommand("serve"))
	_, _, code, err := d.n2.Run(t.Context(), beds.Line("join", joining, "--name", "n2", "--timeout", "3s")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a join on the full disk ends with exit code %d", code) // 0 where the store found room in its own files

	run(t, d.hub, "rm", filler)
	begun := time.Now()
	waitFor(t, "the hub is well again", 40*time.Second, func() string {
		var s status
		if err := ask(t.Context(), d.hub, &s, "status"); err != nil {
			return err.Error()
		}
		if w := s.node("hub").Warnings; len(w) > 0 {
			return fmt.Sprintf("warnings %+v", w)
		}
		return ""
	})
	t.Logf("well again after %.1f s", time.Since(begun).Seconds())
	command(t, d.n2, 0, "join", joining, "--name", "n2")
	waitFor(t, "everybody is current", 30*time.Second, func() string { return notCurrent(t.Context(), d.hub, 3, begun) })
	the(t, d.n1, "on-the-ballast", isHello("on-the-ballast"))
	if got := run(t, d.hub, "stat", "--format=%s", state+"/modules/mesh-broker/data/ballast"); got != strconv.Itoa(4*mib) {
		t.Errorf("the ballast has %s bytes", got)
	}
	var tokens []struct{ ID string }
	if err := ask(t.Context(), d.hub, &tokens, "token", "list"); err != nil {
		t.Fatal(err)
	}
	for _, id := range acknowledged {
		if !slices.ContainsFunc(tokens, func(k struct{ ID string }) bool { return k.ID == id }) {
			t.Errorf("token %s was acknowledged, and is lost", id)
		}
	}
	run(t, d.hub, "grep", "the broker cannot write and is started anew", state+"/run/process/mesh-controller.serve/log")
	if len(acknowledged) < 2 || serve != the(t, d.hub, "serve", isCommand("serve")) {
		t.Errorf("%d tokens were acknowledged; serve was process %d", len(acknowledged), serve)
	}
}

// warned gives what keeps a node's status from having the warning.
func (d *fullDisks) warned(t *testing.T, node, code, text string) func() string {
	return func() string {
		var s status
		if err := ask(t.Context(), d.hub, &s, "status"); err != nil {
			return err.Error()
		}
		for _, w := range s.node(node).Warnings {
			if w.Code == code && strings.Contains(w.Text, text) && w.Remedy != "" {
				return ""
			}
		}
		return fmt.Sprintf("warnings %+v", s.node(node).Warnings)
	}
}
