package controller

import (
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// maxStatus is what nodes together may take of a status answer, in bytes: it has to fit into one envelope.
const maxStatus = wire.MaxEnvelope - 64<<10

// fit cuts those nodes that say more than an even share, where all together say too much: what one node reports hides no other.
func fit(nodes []operators.NodeStatus, budget int) {
	sum := 0
	sizes := make([]int, len(nodes))
	for i, n := range nodes {
		sizes[i] = size(n)
		sum += sizes[i]
	}
	for i := range nodes {
		if share := budget / len(nodes); sum > budget && sizes[i] > share {
			cut(&nodes[i], share)
		}
	}
}

func size(n operators.NodeStatus) int {
	data, err := wire.Encode(n)
	if err != nil {
		return 0 // then the answer as a whole says why
	}
	return len(data)
}

// cut takes logs away, then the ends of the longest lists; the counts and the worst health stay.
func cut(n *operators.NodeStatus, share int) {
	for i := range n.Failures {
		n.Failures[i].Log = nil
	}
	for i := range n.Instances {
		n.Instances[i].Log = nil
	}
	n.Warnings = append([]wire.Warning{{Code: "cut", Severity: "warning", Text: "the node reports more than can be shown here",
		Remedy: "its agent's log says all"}}, n.Warnings...)
	for size(*n) > share {
		switch most := max(len(n.Failures), len(n.Waiting), len(n.Drift), len(n.Instances), len(n.Kept), len(n.Warnings)-1); {
		case most == 0:
			return
		case len(n.Failures) == most:
			n.Failures = n.Failures[:most/2]
		case len(n.Waiting) == most:
			n.Waiting = n.Waiting[:most/2]
		case len(n.Drift) == most:
			n.Drift = n.Drift[:most/2]
		case len(n.Instances) == most:
			n.Instances = n.Instances[:most/2]
		case len(n.Kept) == most:
			n.Kept = n.Kept[:most/2]
		default:
			n.Warnings = n.Warnings[:1+most/2]
		}
	}
}
