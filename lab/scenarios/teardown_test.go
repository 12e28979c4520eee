package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// A footprint is what a bed has on this machine: all that must be gone when it is down.
type footprint struct {
	dir        string
	group      string
	namespaces []string // "net:[4026532201]"
}

func footprintOf(t *testing.T, bed *netns.Running) footprint {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(bed.Dir, "bed.json"))
	if err != nil {
		t.Fatal(err)
	}
	type process struct{ Pid int }
	var record struct {
		Group  string
		Switch process
		Hosts  []process
	}
	if err := json.Unmarshal(text, &record); err != nil {
		t.Fatal(err)
	}
	f := footprint{dir: bed.Dir, group: record.Group}
	for _, p := range append(record.Hosts, record.Switch) {
		for _, kind := range []string{"net", "mnt", "pid", "uts", "ipc", "cgroup"} {
			name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.Pid, kind))
			if err != nil {
				t.Fatal(err)
			}
			f.namespaces = append(f.namespaces, name)
		}
	}
	return f
}

func zombie(link string) bool {
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(link)), "status"))
	return strings.Contains(string(text), "\nState:\tZ")
}

// traces lists what remains of a bed.
func (f footprint) traces() []string {
	var found []string
	if _, err := os.Stat(f.dir); err == nil {
		found = append(found, "folder "+f.dir)
	}
	links, _ := filepath.Glob("/proc/[0-9]*/ns/*")
	for _, link := range links {
		if zombie(link) { // ended, and its parent's to reap
			continue
		}
		if name, err := os.Readlink(link); err == nil && slices.Contains(f.namespaces, name) {
			found = append(found, "process "+link+" in "+name)
		}
	}
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, table := range tables {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, f.dir+"/") || slices.ContainsFunc(f.namespaces, func(ns string) bool { return strings.Contains(line, ns) }) {
				found = append(found, table+": "+line)
			}
		}
	}
	if _, err := os.Stat(f.group); f.group != "" && err == nil {
		found = append(found, "control group "+f.group)
	}
	return found
}

// machineLinks lists the links of the machine's own namespace that only a bed has.
func machineLinks(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "link") || strings.HasPrefix(entry.Name(), "port") {
			names = append(names, entry.Name())
		}
	}
	return names
}

// LAB-1: taken down, a bed leaves no process, namespace, mount, link, control group or file.
func TestDownLeavesNothing(t *testing.T) {
	bed := up(t, beds.Three)
	greeter(t, bed.Host("n1"))
	f := footprintOf(t, bed)
	if len(f.traces()) < 18 {
		t.Fatalf("a standing bed shows no more than %v", f.traces())
	}
	if links := machineLinks(t); len(links) > 0 {
		t.Errorf("the machine sees links of a bed: %v", links)
	}
	if err := bed.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := f.traces(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if err := bed.Down(t.Context()); err != nil {
		t.Errorf("down a second time: %v", err)
	}
}

const ownerCommand = "own-a-bed"

// owner raises a bed in dir and waits to be killed.
func owner(dir string) int {
	bed, err := netns.Up(context.Background(), beds.Pair, dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(bed.Dir)
	select {}
}

// LAB-1: a killed owner takes its hosts with it, and the next to look removes the rest.
func TestKilledOwnerIsSweptAfter(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	t.Cleanup(func() { netns.Sweep(context.Background(), dir) })
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", ownerCommand, dir)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var folder string
	if _, err := fmt.Fscanln(stdout, &folder); err != nil {
		t.Fatal(err)
	}
	found, err := netns.List(dir)
	if err != nil || len(found) != 1 {
		t.Fatalf("beds in %s: %v, %v", dir, found, err)
	}
	f := footprintOf(t, found[0])
	if swept, err := netns.Sweep(t.Context(), dir); len(swept) > 0 || err != nil {
		t.Fatalf("swept %v under a living owner: %v", swept, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	waitFor(t, "hosts end with their owner", 10*time.Second, func() string {
		for _, trace := range f.traces() {
			if strings.HasPrefix(trace, "process") {
				return trace
			}
		}
		return ""
	})
	if swept, err := netns.Sweep(t.Context(), dir); err != nil || !slices.Equal(swept, []string{filepath.Base(folder)}) {
		t.Errorf("swept %v: %v", swept, err)
	}
	if left := f.traces(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// LAB-1: a kept bed outlives the process that raised it and is found and taken down by another.
func TestKeptBedIsFoundAgain(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	raised, err := netns.UpKept(t.Context(), beds.One, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raised.Down(context.Background()) })
	f := footprintOf(t, raised)
	if swept, err := netns.Sweep(t.Context(), dir); len(swept) > 0 || err != nil {
		t.Errorf("swept the kept bed %v: %v", swept, err)
	}
	found, err := netns.List(dir)
	if err != nil || len(found) != 1 {
		t.Fatalf("beds: %v, %v", found, err)
	}
	if got := run(t, found[0].Host("hub"), "hostname"); got != "hub" {
		t.Errorf("found host calls itself %q", got)
	}
	if err := found[0].Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := f.traces(); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}
