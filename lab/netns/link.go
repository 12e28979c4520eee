package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// in runs f with a netlink handle for the network namespace of a process.
func in(pid int, f func(h *netlink.Handle, ns netns.NsHandle) error) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fmt.Errorf("open network namespace of process %d: %w", pid, err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink of process %d: %w", pid, err)
	}
	defer h.Close()
	return f(h, ns)
}

func bridgeName(link int) string     { return fmt.Sprintf("link%d", link) }
func portName(host, link int) string { return fmt.Sprintf("port%d-%d", host, link) }

// raiseSwitch makes one bridge per link.
func raiseSwitch(pid, links int) error {
	return in(pid, func(h *netlink.Handle, _ netns.NsHandle) error {
		for i := range links {
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName(i)}}
			if err := h.LinkAdd(bridge); err != nil {
				return fmt.Errorf("add bridge %s: %w", bridge.Name, err)
			}
			if err := h.LinkSetUp(bridge); err != nil {
				return fmt.Errorf("bring up bridge %s: %w", bridge.Name, err)
			}
		}
		return nil
	})
}

// A plug is one interface of a host and the port of the switch it goes to.
type plug struct {
	host, link int // numbers in the bed
	name       string
	addr       netip.Prefix
}

// connect makes the pair for one plug; neither end is ever in the machine's own namespace.
func connect(switchPid, hostPid int, p plug) error {
	err := in(hostPid, func(host *netlink.Handle, ns netns.NsHandle) error {
		err := in(switchPid, func(sw *netlink.Handle, _ netns.NsHandle) error {
			bridge, err := sw.LinkByName(bridgeName(p.link))
			if err != nil {
				return err
			}
			pair := &netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: portName(p.host, p.link), MasterIndex: bridge.Attrs().Index},
				PeerName:  p.name, PeerNamespace: netlink.NsFd(ns),
			}
			if err := removeLink(sw, pair.Name); err != nil {
				return err
			}
			if err := sw.LinkAdd(pair); err != nil {
				return err
			}
			return sw.LinkSetUp(pair)
		})
		if err != nil {
			return err
		}
		eth, err := host.LinkByName(p.name)
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.addr.Addr().AsSlice(), Mask: net.CIDRMask(p.addr.Bits(), p.addr.Addr().BitLen())}}
		if err := host.AddrAdd(eth, addr); err != nil {
			return err
		}
		return host.LinkSetUp(eth)
	})
	if err != nil {
		return fmt.Errorf("connect %s at %s: %w", p.name, p.addr, err)
	}
	return nil
}

// removeLink removes what a host's last run may have left: the kernel takes down the namespace of the dead in its own time.
func removeLink(h *netlink.Handle, name string) error {
	left, err := h.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil {
		err = h.LinkDel(left)
	}
	if _, still := h.LinkByName(name); errors.As(still, &none) {
		return nil // it went by itself meanwhile
	}
	return err
}

func raiseLoopback(pid int) error {
	return in(pid, func(h *netlink.Handle, _ netns.NsHandle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
}

// setPort pulls the cable of one plug or puts it back.
func setPort(switchPid int, p plug, up bool) error {
	return in(switchPid, func(h *netlink.Handle, _ netns.NsHandle) error {
		port, err := h.LinkByName(portName(p.host, p.link))
		if err != nil {
			return fmt.Errorf("find port of %s: %w", p.addr, err)
		}
		if up {
			return h.LinkSetUp(port)
		}
		return h.LinkSetDown(port)
	})
}
