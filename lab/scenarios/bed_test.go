package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// LAB-1: hosts reach each other, and nothing else is shared between them or with the machine.
func TestHostsAreMachinesOfTheirOwn(t *testing.T) {
	bed := up(t, beds.Three)
	for _, host := range bed.Hosts() {
		greeter(t, host)
	}
	for _, from := range bed.Hosts() {
		for _, to := range bed.Hosts() {
			if why := reach(from, to.Address.String()); why != "" {
				t.Error(why)
			}
		}
	}

	hub, n1 := bed.Host("hub"), bed.Host("n1")
	for _, path := range []string{"/etc/lab-probe", "/var/lib/lab-probe/state", "/usr/local/bin/lab-probe", "/tmp/lab-probe", "/dev/shm/lab-probe"} {
		if err := hub.Put(t.Context(), path, []byte("hub"), 0o600); err != nil {
			t.Fatal(err)
		}
		if content, err := hub.Get(t.Context(), path); err != nil || string(content) != "hub" {
			t.Errorf("hub reads back %q from %s: %v", content, path, err)
		}
		if _, err := n1.Get(t.Context(), path); err == nil {
			t.Errorf("n1 sees %s of the hub", path)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the machine sees %s of the hub", path)
		}
	}
	for _, path := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		seen := map[string]string{}
		for _, host := range bed.Hosts() {
			id := run(t, host, "cat", path)
			if other, taken := seen[id]; taken {
				t.Errorf("%s and %s have one %s: %s", host.Name, other, path, id)
			}
			seen[id] = host.Name
		}
	}
	if got := run(t, n1, "hostname"); got != "n1" {
		t.Errorf("n1 calls itself %q", got)
	}
	if got := run(t, n1, "pwd"); got != "/" {
		t.Errorf("commands start in %q", got)
	}
	if got := run(t, n1, "ls", filepath.Dir(bed.Dir)); got != "" {
		t.Errorf("n1 sees beds: %s", got)
	}
	if diff := cmp.Diff([]string{"HOME=/root", "LANG=C.UTF-8", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"}, sortedLines(run(t, n1, "env"))); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	links := sortedLines(run(t, n1, "ls", "/sys/class/net"))
	if !slices.Contains(links, "eth0") || slices.Contains(links, "link0") {
		t.Errorf("links of n1: %v", links)
	}
}

func sortedLines(text string) []string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return lines
}

// LAB-1: a reboot keeps the disk, and nothing that a machine forgets.
func TestRebootKeepsTheDisk(t *testing.T) {
	bed := up(t, beds.Pair)
	hub, n1 := bed.Host("hub"), bed.Host("n1")
	greeter(t, hub)
	greeter(t, n1)
	for _, path := range []string{"/etc/kept", "/var/lib/kept", "/run/lost", "/tmp/lost"} {
		if err := hub.Put(t.Context(), path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, hub, "rm", "/etc/fstab")
	machineID, bootID := run(t, hub, "cat", "/etc/machine-id"), run(t, hub, "cat", "/proc/sys/kernel/random/boot_id")

	if err := hub.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}

	if got := run(t, hub, "ls", "/etc/kept", "/var/lib/kept"); got != "/etc/kept\n/var/lib/kept" {
		t.Errorf("kept: %q", got)
	}
	for _, path := range []string{"/run/lost", "/tmp/lost", "/etc/fstab"} {
		if _, err := hub.Get(t.Context(), path); err == nil {
			t.Errorf("%s is there after the reboot", path)
		}
	}
	if pids := hub.Pids(isGreeter); len(pids) > 0 {
		t.Errorf("processes %v outlived the reboot", pids)
	}
	if got := run(t, hub, "cat", "/etc/machine-id"); got != machineID {
		t.Errorf("machine id went from %s to %s", machineID, got)
	}
	if got := run(t, hub, "cat", "/proc/sys/kernel/random/boot_id"); got == bootID {
		t.Errorf("boot id is still %s", got)
	}
	listen(t, hub)
	waitFor(t, "n1 reaches the hub again", 5*time.Second, func() string { return reach(n1, hub.Address.String()) })
}

// LAB-1: a pulled cable parts hosts until it is put back.
func TestUnplug(t *testing.T) {
	bed := up(t, beds.Pair)
	hub, n1 := bed.Host("hub"), bed.Host("n1")
	greeter(t, hub)
	greeter(t, n1)
	if err := hub.Unplug(); err != nil {
		t.Fatal(err)
	}
	if reach(n1, hub.Address.String()) == "" {
		t.Error("n1 reaches an unplugged hub")
	}
	if err := hub.Plug(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "n1 reaches the hub again", 5*time.Second, func() string { return reach(n1, hub.Address.String()) })
}

// LAB-1: processes of a host are found and ended by the numbers they have there.
func TestProcessesOfAHost(t *testing.T) {
	bed := up(t, beds.One)
	hub := bed.Host("hub")
	greeter(t, hub)
	pids := hub.Pids(isGreeter)
	if len(pids) != 1 {
		t.Fatalf("greeters: %v", pids)
	}
	if got := run(t, hub, "cat", fmt.Sprintf("/proc/%d/comm", pids[0])); got != "probe" {
		t.Errorf("process %d on the hub is %s", pids[0], got)
	}
	if err := hub.Kill(pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "greeter ends", 5*time.Second, func() string {
		if pids := hub.Pids(isGreeter); len(pids) > 0 {
			return fmt.Sprintf("still there: %v", pids)
		}
		return ""
	})
	if _, _, code, err := hub.Run(t.Context(), "sh", "-c", "exit 7"); code != 7 || err != nil {
		t.Errorf("exit code %d: %v", code, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	sleeper := func(cmdline []string) bool { return cmdline[0] == "sleep" }
	cmd := hub.Command(ctx, "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "sleeper runs", 5*time.Second, func() string {
		if len(hub.Pids(sleeper)) == 0 {
			return "no sleep on the hub"
		}
		return ""
	})
	cancel()
	cmd.Wait()
	waitFor(t, "sleeper ends with its context", 5*time.Second, func() string {
		if pids := hub.Pids(sleeper); len(pids) > 0 {
			return fmt.Sprintf("still there: %v", pids)
		}
		return ""
	})
}

// LAB-1: what cannot be raised is refused, and leaves nothing.
func TestBedRefused(t *testing.T) {
	needLab(t)
	for name, bed := range map[string]netns.Bed{
		"no hosts":       {Name: "empty"},
		"name":           {Name: "../x", Hosts: []netns.HostSpec{{Name: "a"}}},
		"host twice":     {Name: "twice", Hosts: []netns.HostSpec{{Name: "a"}, {Name: "a"}}},
		"unknown link":   {Name: "nolink", Hosts: []netns.HostSpec{{Name: "a", Links: []string{"wan"}}}},
		"mount in use":   {Name: "busy", Hosts: []netns.HostSpec{{Name: "a"}, {Name: "b", Without: []string{"/dev"}}}},
		"too many hosts": {Name: "many", Hosts: make([]netns.HostSpec, 201)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			running, err := netns.Up(t.Context(), bed, dir)
			if err == nil {
				running.Down(t.Context())
				t.Fatal("raised")
			}
			left, err := netns.List(dir)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}
