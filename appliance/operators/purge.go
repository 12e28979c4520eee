package operators

import (
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// PurgeData names the data of an instance that a node keeps although nothing declares it.
type PurgeData struct {
	Instance appliance.InstanceName `json:"instance"`
	Node     appliance.NodeName     `json:"node"`
}

// Purged says what the node was asked to remove.
type Purged struct {
	PurgeData
	Data []wire.Kept `json:"data"`
}

// KeptOf is the data of an instance that a node keeps.
func (s Status) KeptOf(p PurgeData) (data []wire.Kept) {
	for _, n := range s.Nodes {
		for _, k := range n.Kept {
			if n.Name == p.Node && k.Instance == p.Instance {
				data = append(data, k)
			}
		}
	}
	return data
}

// Settled judges a status for those who wait until the data is gone, as Status.Settled does for a push.
func (p PurgeData) Settled(s Status) (good bool, bad, waiting []string) {
	if len(s.KeptOf(p)) == 0 {
		return true, nil, nil
	}
	i := slices.IndexFunc(s.Nodes, func(n NodeStatus) bool { return n.Name == p.Node })
	for _, w := range s.Nodes[i].Warnings {
		if w.Code == "purge-refused" && strings.HasPrefix(w.Text, "purge "+string(p.Instance)+":") {
			bad = append(bad, fmt.Sprintf("%s: %s", p.Node, w.Text))
		}
	}
	return false, bad, []string{fmt.Sprintf("%s: it still keeps data of %s", p.Node, p.Instance)}
}
