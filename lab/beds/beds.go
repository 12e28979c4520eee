// Package beds holds the lab's beds as values, and raises the mesh on them as an operator would.
//
// What a mesh must do on a bed is asserted in lab/scenarios, not here.
package beds

import "github.com/novox/mesh/lab/netns"

// fresh is what a developer's own machine may hold of a mesh, and a new host must not.
var fresh = []string{"/usr/local/bin/mesh", "/var/lib/mesh", "/etc/mesh"}

func host(name string) netns.HostSpec { return netns.HostSpec{Name: name, Without: fresh} }

// The beds.
var (
	One   = netns.Bed{Name: "one", Hosts: []netns.HostSpec{host("hub")}}
	Pair  = netns.Bed{Name: "pair", Hosts: []netns.HostSpec{host("hub"), host("n1")}}
	Three = netns.Bed{Name: "three", Hosts: []netns.HostSpec{host("hub"), host("n1"), host("n2")}}
	Five  = netns.Bed{Name: "five", Hosts: []netns.HostSpec{host("hub"), host("n1"), host("n2"), host("n3"), host("n4")}}
)

// All lists every bed in the order shown to people.
var All = []netns.Bed{One, Pair, Three, Five}

// Named finds a bed by its name.
func Named(name string) (netns.Bed, bool) {
	for _, bed := range All {
		if bed.Name == name {
			return bed, true
		}
	}
	return netns.Bed{}, false
}
