// Package netns raises a bed of several hosts on one machine: each host has its own network, processes, names and
// disk (an overlay over the machine's root), so that the real binary runs on it as on a machine of its own.
//
// It knows nothing of the mesh: what is installed on a host, and what a scenario expects, belongs to lab/beds and
// lab/scenarios.
package netns

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
)

// A Bed describes hosts and the links between them.
type Bed struct {
	Name  string
	Links []Link // none: one link named "lan" that every host is on
	Hosts []HostSpec
}

// A Link is one Ethernet segment.
type Link struct {
	Name   string
	Subnet netip.Prefix // zero: a /24 of 10.77.0.0/16 that no other bed of the folder uses
}

// A HostSpec describes one host. Its interfaces are eth0, eth1, … in the order of its links.
type HostSpec struct {
	Name    string
	Links   []string // none: every link of the bed
	Without []string // absolute paths of the machine that this host must not see
}

const (
	maxHosts = 200 // a link is a /24
	maxLinks = 8
)

var grammar = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// settled returns the bed with defaults filled in, the subnets of unnumbered links beginning at 10.77.first.0/24.
func (b Bed) settled(first int) (Bed, error) {
	if !grammar.MatchString(b.Name) {
		return Bed{}, fmt.Errorf("bed %q: a name is lower case letters, digits and dashes, at most 40", b.Name)
	}
	if len(b.Hosts) == 0 || len(b.Hosts) > maxHosts {
		return Bed{}, fmt.Errorf("bed %s: %d hosts, allowed are 1 to %d", b.Name, len(b.Hosts), maxHosts)
	}
	if len(b.Links) > maxLinks {
		return Bed{}, fmt.Errorf("bed %s: %d links, allowed are %d", b.Name, len(b.Links), maxLinks)
	}
	b.Links = slices.Clone(b.Links)
	if len(b.Links) == 0 {
		b.Links = []Link{{Name: "lan"}}
	}
	var every []string
	for i, link := range b.Links {
		if !link.Subnet.IsValid() {
			b.Links[i].Subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(first + i), 0}), 24)
		}
		if !grammar.MatchString(link.Name) || slices.Contains(every, link.Name) {
			return Bed{}, fmt.Errorf("bed %s: link %q: the name is taken or not a name", b.Name, link.Name)
		}
		every = append(every, link.Name)
	}
	b.Hosts = slices.Clone(b.Hosts)
	seen := map[string]bool{}
	for i, host := range b.Hosts {
		if !grammar.MatchString(host.Name) || seen[host.Name] {
			return Bed{}, fmt.Errorf("bed %s: host %q: the name is taken or not a name", b.Name, host.Name)
		}
		seen[host.Name] = true
		if len(host.Links) == 0 {
			b.Hosts[i].Links = every
		}
		for _, name := range host.Links {
			if !slices.Contains(every, name) {
				return Bed{}, fmt.Errorf("bed %s: host %s: no link %q", b.Name, host.Name, name)
			}
		}
	}
	return b, nil
}

// address is the place of the host number n (from 0) on the link.
func (l Link) address(n int) netip.Prefix {
	addr := l.Subnet.Masked().Addr().Next()
	for range n {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, l.Subnet.Bits())
}
