package controller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2, DEC-7: what one node reports, as much as it can, keeps no other node out of the status.
func TestStatusFits(t *testing.T) {
	text := strings.Repeat("<", 3000)
	node := func(n int) operators.NodeStatus {
		s := operators.NodeStatus{Name: appliance.NodeName(fmt.Sprint("n", n)), Health: wire.Looping, Resources: map[wire.Status]int{wire.Failed: n}, Warnings: []wire.Warning{}}
		for i := range n {
			s.Failures = append(s.Failures, wire.Outcome{ID: fmt.Sprint(i), Status: wire.Failed, Error: text, Log: []string{text}})
			s.Drift = append(s.Drift, operators.Drift{ID: fmt.Sprint(i), What: text})
			s.Instances = append(s.Instances, operators.InstanceStatus{Name: "a", Why: text, Log: []string{text}})
			s.Kept = append(s.Kept, wire.Kept{Path: text})
			s.Warnings = append(s.Warnings, wire.Warning{Text: text})
		}
		return s
	}
	for _, many := range []int{2, 20, 500} {
		nodes := []operators.NodeStatus{node(400)}
		for len(nodes) < many {
			nodes = append(nodes, node(0))
		}
		nodes[1] = node(1)
		honest, worst := nodes[many-1], nodes[0].Resources[wire.Failed]
		fit(nodes, maxStatus)
		data, err := wire.Encode(operators.Status{Nodes: nodes})
		if err != nil || len(data) > wire.MaxEnvelope-8<<10 {
			t.Errorf("of %d nodes: %d bytes, %v", many, len(data), err)
		}
		if nodes[0].Health != wire.Looping || nodes[0].Resources[wire.Failed] != worst || nodes[0].Warnings[0].Code != "cut" {
			t.Errorf("of %d nodes, the one cut: %v", many, nodes[0].Warnings)
		}
		if many > 2 {
			if diff := cmp.Diff(honest, nodes[many-1], addresses); diff != "" {
				t.Errorf("of %d nodes, another one:\n%s", many, diff)
			}
		}
	}
	few := []operators.NodeStatus{node(20), node(0)}
	fit(few, maxStatus)
	if diff := cmp.Diff([]operators.NodeStatus{node(20), node(0)}, few, addresses); diff != "" {
		t.Errorf("nothing had to be cut:\n%s", diff)
	}
}

var addresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
