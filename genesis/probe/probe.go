// Package probe looks at the machine before anything is changed: rights, clock, disk, ports, routes. Each refusal names what stands in
// the way and the way out. Nothing here changes the machine.
package probe

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/overlay"
)

// Root refuses without root; GEN-6's rootless mode is for later.
func Root(command string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return appliance.Errorf(appliance.Denied, "%s: it needs root, and runs as user %d", command, os.Geteuid()).
		WithHint("the overlay's device, users and services are root's to make; running without root is not carried out by this version").
		WithNext("sudo mesh " + command)
}

// Clock refuses a clock before the binary was built.
func Clock(now, built time.Time) error {
	if !now.Before(built) {
		return nil
	}
	return appliance.Errorf(appliance.Denied, "look at the clock: it says %s, and this binary was built %s", now.UTC().Format(time.RFC3339), built.UTC().Format(time.RFC3339)).
		WithReason("clock").WithHint("certificates would begin in the past; set the clock").WithNext("timedatectl set-ntp true")
}

// Disk refuses where less than need bytes are free around dir, which need not exist yet.
func Disk(dir string, need uint64) error {
	space, at, err := around(dir)
	if err != nil {
		return err
	}
	if space.Free < disk.Size(need) {
		return appliance.Errorf(appliance.Unavailable, "look at the disk: %d MiB are free at %s, %d MiB are needed", space.Free>>20, at, need>>20).
			WithHint("free some space, or choose another folder with --state")
	}
	return nil
}

// Room refuses where so little is free around dir that a node would make nothing there (DEC-14).
func Room(dir string, least *disk.Size) error {
	space, at, err := around(dir)
	if err != nil {
		return err
	}
	if _, stop := space.Bounds(least); space.Free < stop {
		return appliance.Errorf(appliance.Unavailable, "look at the disk: %s at %s, and a node makes nothing new below %s", space, at, stop).
			WithHint("free some space, choose another folder with --state, or let it go on with less: --least-free SIZE")
	}
	return nil
}

// around looks at dir, or at the nearest folder above that exists.
func around(dir string) (space disk.Space, at string, err error) {
	at = dir
	space, err = disk.Look(at)
	for err != nil && at != "/" {
		at = filepath.Dir(at)
		space, err = disk.Look(at)
	}
	return space, at, err
}

// TUN refuses where the machine cannot make TUN devices.
func TUN() error {
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return appliance.Errorf(appliance.Unavailable, "look for /dev/net/tun: %w", err).
			WithReason("platform").WithHint("the overlay is a TUN device: load the kernel's tun module, or give the container /dev/net/tun").WithNext("modprobe tun")
	}
	return nil
}

// Port refuses a port that somebody else binds, naming the process. Own says whether a process is of this installation.
func Port(network string, port uint16, what string, own func(pid int) bool) error {
	address := net.JoinHostPort("0.0.0.0", strconv.Itoa(int(port)))
	err := bind(network, address)
	if err == nil {
		return nil
	}
	pid, name := holder(network, port)
	if pid != 0 && own != nil && own(pid) {
		return nil
	}
	who := "another process"
	if pid != 0 {
		who = fmt.Sprintf("process %d (%s)", pid, name)
	}
	return appliance.Errorf(appliance.Conflict, "look at port %d/%s for the %s: %s has it", port, network, what, who).
		WithReason("port-taken").WithHint(fmt.Sprintf("stop that process, or choose another port with --%s-port", what))
}

func bind(network, address string) error {
	if network == "udp" {
		c, err := net.ListenPacket("udp", address)
		if err == nil {
			c.Close()
		}
		return err
	}
	l, err := net.Listen("tcp", address)
	if err == nil {
		l.Close()
	}
	return err
}

// holder finds the process that binds a port: its socket in /proc/net, and whose descriptor that is.
func holder(network string, port uint16) (pid int, name string) {
	inodes := map[string]bool{}
	for _, file := range []string{network, network + "6"} {
		data, err := os.ReadFile("/proc/net/" + file)
		if err != nil {
			continue
		}
		for _, line := range strings.Split(string(data), "\n")[1:] {
			f := strings.Fields(line)
			if len(f) > 9 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && (network == "udp" || f[3] == "0A") { // 0A: listening
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && inodes[target] {
			pid, _ = strconv.Atoi(strings.Split(link, "/")[2])
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			return pid, strings.TrimSpace(string(comm))
		}
	}
	return 0, ""
}

// Executable gives the file a process runs; empty where it cannot be told.
func Executable(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.TrimSuffix(path, " (deleted)")
}

// Routes gives the machine's routes with the interface each leaves by.
func Routes() ([]overlay.Route, error) {
	found, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	names := map[int]string{}
	var out []overlay.Route
	for _, r := range found {
		if r.Dst == nil {
			continue
		}
		prefix, ok := netipPrefix(r.Dst)
		if !ok {
			continue
		}
		if names[r.LinkIndex] == "" {
			if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				names[r.LinkIndex] = link.Attrs().Name
			}
		}
		out = append(out, overlay.Route{Prefix: prefix, Interface: names[r.LinkIndex]})
	}
	return out, nil
}

func netipPrefix(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}
