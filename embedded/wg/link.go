package wg

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"

	"github.com/tailscale/wireguard-go/tun"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// interfaceName is what the kernel takes for a name, less what it would read as a pattern.
var interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// openTUN makes the interface, or takes up the one that an earlier process left behind.
func openTUN(name string) (tun.Device, error) {
	if !interfaceName.MatchString(name) {
		return nil, fmt.Errorf("open interface %q: not a name for an interface; use at most 15 letters, digits, dots and dashes", name)
	}
	if _, err := findTUN(name); err != nil {
		return nil, fmt.Errorf("open interface %q: %w", name, err)
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open interface %q: /dev/net/tun: %w%s", name, err, wayOut(err))
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open interface %q: %w", name, err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("open interface %q: another live process holds it; stop that process, or choose another name", name)
		}
		return nil, fmt.Errorf("open interface %q: %w%s", name, err, wayOut(err))
	}
	native, _, err := tun.CreateUnmonitoredTUNFromFD(fd) // owns fd from here on
	if err != nil {
		return nil, fmt.Errorf("open interface %q: %w", name, err)
	}
	return native, nil
}

// findTUN looks for the interface. One that is there and is no TUN is an error.
func findTUN(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, wayOut(err))
	}
	if t, ok := link.(*netlink.Tuntap); !ok || t.Mode != netlink.TUNTAP_MODE_TUN {
		return nil, fmt.Errorf("it is no tunnel but a %s; choose another name, or delete it (ip link delete %s)", link.Type(), name)
	}
	return link, nil
}

// persist makes the interface outlive the process.
func persist(native tun.Device) error {
	raw, err := native.File().SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.IoctlSetInt(int(fd), unix.TUNSETPERSIST, 1) })
	return errors.Join(controlErr, err)
}

// configureLink gives the interface its MTU, this one address and, with it, the route; and takes away any other address.
func configureLink(name string, address netip.Prefix, mtu int) error {
	fail := func(what string, err error) error {
		return fmt.Errorf("%s of interface %q: %w%s", what, name, err, wayOut(err))
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fail("read state", err)
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fail(fmt.Sprintf("set MTU %d", mtu), err)
		}
	}
	if err := setAddress(link, address); err != nil {
		return fail("set address "+address.String(), err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return fail("set up state", err)
		}
	}
	if err := setRoute(link, address); err != nil {
		return fail("set route "+address.Masked().String(), err)
	}
	return nil
}

func setAddress(link netlink.Link, address netip.Prefix) error {
	want := ipNet(address)
	present, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	found := false
	for _, a := range present {
		switch {
		case a.IPNet.String() == want.String():
			found = true
		case a.IP.IsLinkLocalUnicast() && a.IP.To4() == nil:
			// the kernel's own
		default:
			if err := netlink.AddrDel(link, &a); err != nil {
				return fmt.Errorf("remove address %s: %w", a.IPNet, err)
			}
		}
	}
	if found {
		return nil
	}
	add := &netlink.Addr{IPNet: want}
	if address.Addr().Is6() {
		add.Flags = unix.IFA_F_NODAD // nobody else can be there, so do not wait for an answer
	}
	return netlink.AddrReplace(link, add)
}

// setRoute restores the route that comes with the address, should somebody have deleted it.
func setRoute(link netlink.Link, address netip.Prefix) error {
	if address.IsSingleIP() {
		return nil
	}
	want := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(address.Masked())}
	family := netlink.FAMILY_V4
	if address.Addr().Is6() {
		family = netlink.FAMILY_V6
	} else {
		want.Scope, want.Src = netlink.SCOPE_LINK, address.Addr().AsSlice()
	}
	present, err := netlink.RouteListFiltered(family, want, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST)
	if err != nil || len(present) > 0 {
		return err
	}
	return netlink.RouteReplace(want)
}

// chooseMTU fits the tunnel into the narrowest link that leads outside.
func chooseMTU(name string) int {
	const overhead, widest = 80, 1420 // overhead over IPv6
	mtu := widest
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return mtu
	}
	for _, r := range routes {
		if r.Dst != nil {
			if length, _ := r.Dst.Mask.Size(); length > 0 {
				continue // not a default route
			}
		}
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err == nil && link.Attrs().Name != name {
			mtu = min(mtu, link.Attrs().MTU-overhead)
		}
	}
	return max(mtu, minMTU)
}

// Remove deletes the interface that a closed device left behind. No interface is no error.
func Remove(name string) error {
	link, err := findTUN(name)
	if err == nil && link != nil {
		if err = netlink.LinkDel(link); err != nil {
			err = fmt.Errorf("%w%s", err, wayOut(err))
		}
	}
	if err != nil {
		return fmt.Errorf("remove interface %q: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// wayOut says what to do about an error of the kernel, where that is known.
func wayOut(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "; run as root, or give the process CAP_NET_ADMIN"
	case errors.Is(err, unix.ENOENT):
		return "; load the tun module, or give the container the device"
	case errors.Is(err, unix.ENODEV), errors.As(err, new(netlink.LinkNotFoundError)):
		return "; the interface was deleted: close the device and start it again"
	case errors.Is(err, unix.EINVAL):
		return "; an interface of that name is of another kind: choose another name, or delete it"
	}
	return ""
}
