package membership

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// Keepalive is how often a node behind a NAT keeps its way to the hub open.
const Keepalive = 25 * time.Second

// Peers gives the whole overlay of one node. Every node peers with the hub and reaches all others through it; the hub peers with
// everybody and turns their packets back (NET-4).
func Peers(m wire.Membership, self appliance.NodeID) (host.OverlayState, error) {
	if err := Check(m); err != nil {
		return host.OverlayState{}, err
	}
	i := slices.IndexFunc(m.Members, func(n wire.Member) bool { return n.ID == self })
	if i < 0 {
		return host.OverlayState{}, appliance.Errorf(appliance.NotFound, "derive peers: node %s is not in the membership", self).
			WithHint("the membership before it joined, or the node was removed")
	}
	me := m.Members[i]
	state := host.OverlayState{
		Address: netip.PrefixFrom(me.Address, m.Range.Bits()),
		Relay:   me.Hub,
		Hosts:   Hosts(m),
	}
	if me.Hub {
		state.Port = m.Port
	}
	for _, n := range m.Members {
		switch {
		case n.ID == self:
		case me.Hub:
			state.Peers = append(state.Peers, host.OverlayPeer{
				Key: n.Key, Allowed: []netip.Prefix{netip.PrefixFrom(n.Address, n.Address.BitLen())}, Endpoint: n.Endpoint,
			})
		case n.Hub:
			state.Peers = append(state.Peers, host.OverlayPeer{
				Key: n.Key, Allowed: []netip.Prefix{m.Range}, Endpoint: hubEndpoint(m, n), Keepalive: Keepalive,
			})
		}
	}
	slices.SortFunc(state.Peers, func(a, b host.OverlayPeer) int { return a.Allowed[0].Addr().Compare(b.Allowed[0].Addr()) })
	return state, nil
}

// hubEndpoint is the placed endpoint, else the host of the first broker endpoint with the overlay's port: both run on the hub.
func hubEndpoint(m wire.Membership, hub wire.Member) string {
	if hub.Endpoint != "" {
		return hub.Endpoint
	}
	h, _, _ := net.SplitHostPort(m.Broker[0]) // Check read it
	return net.JoinHostPort(h, strconv.Itoa(int(m.Port)))
}

// Hosts gives the address behind every node's name.
func Hosts(m wire.Membership) map[appliance.NodeName]netip.Addr {
	hosts := make(map[appliance.NodeName]netip.Addr, len(m.Members))
	for _, n := range m.Members {
		hosts[n.Name] = n.Address
	}
	return hosts
}
