package scenarios

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// A whole is all of a host that outlives a command.
type whole struct {
	disk  map[string]string // by path, what differs from the machine that the host stands on
	lines []string          // the rest: what is in memory, accounts, packages, links, addresses, routes, rules, filters, processes
}

// passing are what changes of itself, or because somebody was there at all: logs and caches of the distribution's own tools, the copies
// that these make of what they change, and what the lab puts there.
var passing = []string{
	"/var/log/", "/var/cache/", "/var/lib/apt/", "/var/lib/dpkg/", "/var/tmp/", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-",
	"/etc/ld.so.cache", "/var/lib/mesh/",
}

func passes(path string) bool {
	return slices.ContainsFunc(passing, func(p string) bool { return path == strings.TrimSuffix(p, "/") || strings.HasPrefix(path, p) })
}

// own are lines of what the lab and the kernel have there: the first process and the cable, which a reboot makes anew, the question itself.
var own = []string{netns.InitCommand + " {", ": eth0@", "fe80::", "/run/boot_id", "ps -eo args", "<defunct>"}

const (
	absent = "absent"
	opaque = " opaque" // a folder that hides the machine's
)

// describe says what is at a path: kind and mode, owner, what is in it.
func describe(path string) (string, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return absent, nil
	}
	if err != nil {
		return "", err
	}
	st := info.Sys().(*syscall.Stat_t)
	what := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeCharDevice != 0 && st.Rdev == 0:
		return absent, nil
	case mode.IsRegular():
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err != nil {
			return "", err
		}
		what = fmt.Sprintf(" %d %x", n, h.Sum(nil)[:8])
	case mode&fs.ModeSymlink != 0:
		if what, err = os.Readlink(path); err != nil {
			return "", err
		}
		what = " " + what
	case mode.IsDir():
		if n, err := unix.Lgetxattr(path, "trusted.overlay.opaque", make([]byte, 1)); err == nil && n > 0 {
			what = opaque
		}
	}
	return fmt.Sprintf("%s %d:%d%s", info.Mode(), st.Uid, st.Gid, what), nil
}

// list writes what is in the host's memory file systems: a probe's work, since they can be seen from inside alone.
func list(w io.Writer) error {
	roots := []string{"/run", "/tmp", "/dev/shm"}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} { // the host's own is the second version's
		if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
			roots = append(roots, root)
		}
	}
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || strings.HasPrefix(path, "/sys/") && !e.IsDir() {
				return nil // gone, or one of the kernel's own
			}
			what := ""
			if !strings.HasPrefix(path, "/sys/") {
				if what, err = describe(path); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintln(w, path, what)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func snapshot(t *testing.T, host *netns.Host) whole {
	t.Helper()
	all := whole{disk: map[string]string{}}
	err := filepath.WalkDir(host.Upper(), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, host.Upper())
		if name == "" {
			return nil
		}
		if passes(name) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		all.disk[name], err = describe(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range [][]string{
		{probePath, probeCommand, "list"}, {"getent", "passwd"}, {"getent", "group"}, {"dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Status}\n"},
		{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"}, {"ip", "rule"},
		{"nft", "list", "ruleset"}, {"ps", "-eo", "args"},
	} {
		name := strings.Join(ask[:2], " ")
		for line := range strings.Lines(run(t, host, ask...)) {
			line = strings.TrimSpace(line)
			if !slices.ContainsFunc(own, func(s string) bool { return strings.Contains(line, s) }) {
				all.lines = append(all.lines, name+": "+line)
			}
		}
	}
	return all
}

// at says what was at a path of the host.
func (w whole) at(path string) (string, error) {
	hidden := false
	for i, c := range path {
		if c == '/' && i > 0 {
			above := w.disk[path[:i]]
			if above == absent {
				return absent, nil
			}
			hidden = hidden || strings.HasSuffix(above, opaque)
		}
	}
	if what, ok := w.disk[path]; ok {
		return strings.TrimSuffix(what, opaque), nil
	}
	if hidden {
		return absent, nil
	}
	return describe(path)
}

// sameHost wants a host to be what it was, but for lines that hold one of some words.
func sameHost(t *testing.T, what string, host *netns.Host, before whole, but ...string) {
	t.Helper()
	begun := time.Now()
	after := snapshot(t, host)
	var diff []string
	note := func(line string) {
		if !slices.ContainsFunc(but, func(b string) bool { return strings.Contains(line, b) }) {
			diff = append(diff, line)
		}
	}
	paths := map[string]bool{}
	for _, w := range []whole{before, after} {
		for path := range w.disk {
			paths[path] = true
		}
	}
	for path := range paths {
		was, err1 := before.at(path)
		is, err2 := after.at(path)
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		} else if was != is {
			note(path + " : " + was + " -> " + is)
		}
	}
	for _, l := range before.lines {
		if !slices.Contains(after.lines, l) {
			note("- " + l)
		}
	}
	for _, l := range after.lines {
		if !slices.Contains(before.lines, l) {
			note("+ " + l)
		}
	}
	if slices.Sort(diff); len(diff) > 0 {
		t.Errorf("%s: %s is not what it was:\n%s", what, host.Name, strings.Join(diff, "\n"))
	}
	t.Logf("%s: %d paths and %d lines of %s compared in %s", what, len(paths), len(after.lines), host.Name, time.Since(begun))
}

// LAB-1, LAB-2: what a program does to a host is seen, and what it takes back is not.
func TestSnapshotSees(t *testing.T) {
	bed := up(t, beds.One)
	host := bed.Host("hub")
	greeter(t, host)
	before := snapshot(t, host)
	for _, c := range []struct{ do, takeBack, see string }{
		{"echo x >/etc/lab-new", "rm /etc/lab-new", "/etc/lab-new : absent -> -rw-r--r-- 0:0 2 "},
		{"cp -p /etc/issue /tmp/issue && echo x >>/etc/issue", "cp -p /tmp/issue /etc/issue && rm /tmp/issue", "/etc/issue : -rw-r--r-- 0:0"},
		{"chmod 0600 /etc/issue", "chmod 0644 /etc/issue", "/etc/issue : -rw-r--r--"},
		{"chown 1 /etc/issue", "chown 0 /etc/issue", "/etc/issue : -rw-r--r-- 0:0"},
		{"mv /etc/issue /tmp/issue", "mv /tmp/issue /etc/issue", "/etc/issue : -rw-r--r-- 0:0"},
		{"cp -a /etc/skel /tmp/skel && rm -r /etc/skel", "mv /tmp/skel /etc/skel", "/etc/skel : drwxr-xr-x 0:0 -> absent"},
		{"useradd --system labuser", "userdel labuser", "+ getent passwd: labuser:"},
		{"ip link add name lab0 type veth peer name lab1", "ip link delete lab0", "+ ip -o: "},
		{"ip route add 10.99.0.0/16 dev lo", "ip route delete 10.99.0.0/16", "+ ip route: 10.99.0.0/16"},
		{"nft add table inet lab", "nft delete table inet lab", "+ nft list: table inet lab"},
		{"touch /run/lab", "rm /run/lab", "+ " + probePath + " " + probeCommand + ": /run/lab"},
		{"ln -s /nowhere /etc/lab-link", "rm /etc/lab-link", "/etc/lab-link : absent -> L"},
	} {
		seen := func() string {
			var said strings.Builder
			after := snapshot(t, host)
			for path := range after.disk {
				was, _ := before.at(path)
				if is, _ := after.at(path); is != was {
					fmt.Fprintf(&said, "%s : %s -> %s\n", path, was, is)
				}
			}
			for _, l := range after.lines {
				if !slices.Contains(before.lines, l) {
					fmt.Fprintln(&said, "+ "+l)
				}
			}
			return said.String()
		}
		run(t, host, "sh", "-c", c.do)
		if got := seen(); !strings.Contains(got, c.see) {
			t.Errorf("%s: %q is not in\n%s", c.do, c.see, got)
		}
		run(t, host, "sh", "-c", c.takeBack)
		sameHost(t, c.takeBack, host, before)
	}
}
