package wg

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// Bounds of one device. The biggest mesh in sight has a tenth of it.
const (
	maxPeers     = 10_000
	maxAddresses = 64 // of one peer
	minMTU       = 1280
	maxMTU       = 65_000
)

// Config is everything the device shall be.
type Config struct {
	Interface  string       // name from Options, or empty for the same
	PrivateKey Key          // required
	Address    netip.Prefix // required: own address with the length of the mesh range, which gives the route
	Port       uint16       // UDP port; 0: any
	MTU        int          // 0: chosen from the links that lead outside, at most 1420
	Peers      []Peer
	Relay      bool // turn packets between peers back inside the device
}

// Peer is somebody the device talks to.
type Peer struct {
	Key       Key            // required: public
	Address   []netip.Prefix // what it may send from and receives; no two peers share one
	Endpoint  netip.AddrPort // zero: not told; learned from its packets
	Keepalive time.Duration  // 0: none; whole seconds
}

// String names the device and leaves the private key out.
func (c Config) String() string {
	return "device " + c.Interface + " " + c.Address.String() + " with " + strconv.Itoa(len(c.Peers)) + " peers"
}

// check refuses what cannot be applied, before anything is touched.
func (c Config) check(name string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("set device %q: "+format, append([]any{name}, args...)...)
	}
	switch {
	case c.Interface != "" && c.Interface != name:
		return refuse("the configuration is for %q; start a device of that name", c.Interface)
	case c.PrivateKey.IsZero():
		return refuse("no private key; give the node's overlay key")
	case !c.Address.IsValid():
		return refuse("no address; give the node's address with the length of the mesh range")
	case c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU):
		return refuse("MTU %d is outside %d to %d; give 0 to have one chosen", c.MTU, minMTU, maxMTU)
	case len(c.Peers) > maxPeers:
		return refuse("%d peers are more than the %d one device takes", len(c.Peers), maxPeers)
	}
	self := c.PrivateKey.Public()
	seen := make(map[Key]bool, len(c.Peers))
	owner := make(map[netip.Prefix]Key, len(c.Peers))
	for _, p := range c.Peers {
		switch {
		case p.Key.IsZero():
			return refuse("a peer has no key")
		case p.Key == self:
			return refuse("peer %s is the device itself; leave it out", p.Key)
		case seen[p.Key]:
			return refuse("peer %s is named twice; join the two", p.Key)
		case len(p.Address) > maxAddresses:
			return refuse("peer %s has %d addresses, more than %d", p.Key, len(p.Address), maxAddresses)
		case p.Keepalive < 0 || p.Keepalive > 65535*time.Second:
			return refuse("keepalive %s of peer %s is outside 0 to 65535 seconds", p.Keepalive, p.Key)
		}
		seen[p.Key] = true
		for _, a := range p.Address {
			if !a.IsValid() || a.Addr().Is4In6() {
				return refuse("peer %s has the invalid address %s", p.Key, a)
			}
			if other, taken := owner[a.Masked()]; taken {
				return refuse("%s belongs to peer %s and to peer %s; give it to one of them", a.Masked(), other, p.Key)
			}
			owner[a.Masked()] = p.Key
		}
	}
	return nil
}

// addresses are the peer's prefixes in the one form that compares.
func (p Peer) addresses() []netip.Prefix {
	masked := make([]netip.Prefix, len(p.Address))
	for i, a := range p.Address {
		masked[i] = a.Masked()
	}
	return masked
}

// endpoint is the address told, in the one form that compares.
func (p Peer) endpoint() netip.AddrPort {
	return netip.AddrPortFrom(p.Endpoint.Addr().Unmap(), p.Endpoint.Port())
}

// keepaliveSeconds rounds up: a keepalive must not come later than asked.
func (p Peer) keepaliveSeconds() int { return int((p.Keepalive + time.Second - 1) / time.Second) }
