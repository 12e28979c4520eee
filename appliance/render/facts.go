package render

import (
	"net/netip"

	"github.com/novox/mesh/appliance"
)

// Facts are what is so now, as one snapshot of the records.
type Facts struct {
	Mesh  appliance.MeshID
	Range netip.Prefix
	Nodes map[appliance.NodeID]NodeFacts
}

// NodeFacts are the facts of one node.
type NodeFacts struct {
	Name    appliance.NodeName
	Address netip.Addr // in the overlay; the zero address while it has none
	State   string     // its installation folder
}
