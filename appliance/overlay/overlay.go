// Package overlay decides about the overlay's numbers: which range a mesh takes, which address a node gets, and whether a machine's
// routes are in the way. Pure; reading routes and setting up devices belong to agent/linux.
package overlay

import (
	"fmt"
	"net/netip"

	"github.com/novox/mesh/appliance"
)

// Reasons of refusals.
const (
	Full  appliance.Reason = "mesh-full"
	Clash appliance.Reason = "range-overlap"
)

// Default is the range of a mesh that states none, where nothing on the hub is in its way.
var Default = netip.MustParsePrefix("10.64.0.0/16")

// Route is a route of a machine, or the network of an address of its.
type Route struct {
	Prefix    netip.Prefix
	Interface string
}

func (r Route) String() string {
	if r.Interface == "" {
		return r.Prefix.String()
	}
	return r.Prefix.String() + " on " + r.Interface
}

// leads says whether everything goes this way: a default route, or one of the two halves that stand for it. Any range is more specific.
func (r Route) leads() bool { return r.Prefix.Bits() <= 1 }

// Candidates are the ranges to try in order: the default, its neighbours in 10/8 upwards and then from below, 172.16/12 from its end
// (container engines take it from its beginning).
func Candidates() []netip.Prefix {
	all := []netip.Prefix{Default}
	for i := 65; i < 256; i++ {
		all = append(all, slash16(10, byte(i)))
	}
	for i := 63; i >= 0; i-- {
		all = append(all, slash16(10, byte(i)))
	}
	for i := 31; i >= 16; i-- {
		all = append(all, slash16(172, byte(i)))
	}
	return all
}

func slash16(a, b byte) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{a, b}), 16) }

// ChooseRange gives the first candidate that overlaps no route. No candidates means Candidates.
func ChooseRange(candidates []netip.Prefix, routes []Route) (netip.Prefix, error) {
	if len(candidates) == 0 {
		candidates = Candidates()
	}
	for _, c := range candidates {
		if _, clash := clashing(c, routes, nil); !clash {
			return c, nil
		}
	}
	route, _ := clashing(candidates[0], routes, nil)
	return netip.Prefix{}, appliance.Errorf(appliance.Conflict, "choose the overlay's range: routes overlap all of %d candidates; %s overlaps %s", len(candidates), route, candidates[0]).
		WithReason(Clash).WithHint("give a private range that this machine does not route: --range CIDR")
}

// Overlaps refuses a range that overlaps a route, naming the route. Default routes overlap nothing, and neither do routes of the named
// interfaces, which are the overlay's own.
func Overlaps(r netip.Prefix, routes []Route, own ...string) error {
	if err := Check(r); err != nil {
		return err
	}
	if route, clash := clashing(r, routes, own); clash {
		return appliance.Errorf(appliance.Conflict, "check the overlay's range: %s overlaps the route %s", r, route).
			WithReason(Clash).WithHint("remove that route from this machine, or found the mesh with another --range")
	}
	return nil
}

func clashing(r netip.Prefix, routes []Route, own []string) (Route, bool) {
	for _, route := range routes {
		mine := false
		for _, name := range own {
			mine = mine || name != "" && name == route.Interface
		}
		if !mine && route.Prefix.IsValid() && !route.leads() && route.Prefix.Overlaps(r) {
			return route, true
		}
	}
	return Route{}, false
}

// private are the networks an overlay may lie in: nobody else's addresses.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("100.64.0.0/10"),
}

// Check says whether a range can be an overlay's: IPv4, written as its network, private, between /8 and /29.
func Check(r netip.Prefix) error {
	refuse := func(why string) error {
		return appliance.Errorf(appliance.Invalid, "check the overlay's range %s: %s", appliance.Quote(r.String()), why).
			WithHint(fmt.Sprintf("a private IPv4 network between /8 and /29, for example %s", Default))
	}
	switch {
	case !r.IsValid() || !r.Addr().Is4():
		return refuse("not an IPv4 network")
	case r.Bits() < 8 || r.Bits() > 29:
		return refuse("too wide or too narrow")
	case r != r.Masked():
		return refuse("its address has host bits; the network is " + r.Masked().String())
	}
	for _, p := range private {
		if p.Bits() <= r.Bits() && p.Overlaps(r) {
			return nil
		}
	}
	return refuse("not within a private network")
}

// Allocate gives the lowest address of the range that is not used. The first address of all and the last are nobody's.
func Allocate(r netip.Prefix, used []netip.Addr) (netip.Addr, error) {
	if err := Check(r); err != nil {
		return netip.Addr{}, err
	}
	taken := make(map[netip.Addr]bool, len(used))
	for _, a := range used {
		taken[a.Unmap()] = true
	}
	for a := r.Addr().Next(); r.Contains(a.Next()); a = a.Next() { // the last one has no next in the range
		if !taken[a] {
			return a, nil
		}
	}
	return netip.Addr{}, appliance.Errorf(appliance.Conflict, "allocate an address: all of %s are given", r).
		WithReason(Full).WithHint("remove nodes that are gone").WithNext("mesh node list")
}
