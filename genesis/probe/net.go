package probe

import (
	"net"
	"net/netip"
)

func netipPrefix(n *net.IPNet) (netip.Prefix, bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), ones), ok
}

// Addresses gives the machine's own addresses that others may reach: global unicast, IPv4 first.
func Addresses() []netip.Addr {
	found, _ := net.InterfaceAddrs()
	var four, six []netip.Addr
	for _, a := range found {
		n, ok := a.(*net.IPNet)
		if !ok || !n.IP.IsGlobalUnicast() {
			continue
		}
		p, _ := netipPrefix(n)
		if p.Addr().Is4() {
			four = append(four, p.Addr())
		} else {
			six = append(six, p.Addr())
		}
	}
	return append(four, six...)
}
