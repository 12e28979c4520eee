// Package ports holds the one derivation of a port's number, and the choice of numbers for ports that the mesh may assign.
// It looks at nothing: what is bound comes in as values. Nobody else decides what number a port has.
package ports

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/novox/mesh/appliance"
)

// First and Last bound what the mesh assigns; the range lies below what Linux uses for outgoing connections.
const (
	First = 20000
	Last  = 29999
)

// Number is the port's number: given, over assigned, over the manifest's (PORT-4). Zero stands for none.
func Number(given, assigned, manifest uint16) uint16 { return cmp.Or(given, assigned, manifest) }

// Bound is a port that somebody holds on a node.
type Bound struct {
	Number   uint16
	Protocol string // tcp, udp
	Holder   string // for a person: "port http of hello", "the broker (carried)"
}

// Holder is how a module's port is called in a message.
func Holder(instance appliance.InstanceName, name string) string {
	return fmt.Sprintf("port %s of %s", name, instance)
}

// Request asks for a number for one port of an instance.
type Request struct {
	Instance appliance.InstanceName
	Name     string
}

// Assign chooses a number on one node for each request: the lowest from First on that nothing taken has, whatever its protocol.
// The choice does not depend on the order of either list; a request named twice gets one number.
func Assign(requests []Request, taken []Bound) (map[Request]uint16, error) {
	used := map[uint16]bool{}
	for _, t := range taken {
		used[t.Number] = true
	}
	requests = slices.SortedFunc(slices.Values(requests), func(a, b Request) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Name, b.Name))
	})
	assigned := map[Request]uint16{}
	next := First
	for _, r := range slices.Compact(requests) {
		for next <= Last && used[uint16(next)] {
			next++
		}
		if next > Last {
			return nil, appliance.Errorf(appliance.Conflict, "assign %s: every port from %d to %d is taken", Holder(r.Instance, r.Name), First, Last).
				WithHint("move an instance to another node, or give the port a number outside that range")
		}
		assigned[r] = uint16(next)
		next++
	}
	return assigned, nil
}

// Conflict is one port with two holders on one node.
type Conflict struct {
	Node     appliance.NodeName
	Number   uint16
	Protocol string
	A, B     string // the holders, in order
}

func (c *Conflict) Error() string {
	return fmt.Sprintf("port %d/%s on node %s is wanted by %s and by %s", c.Number, c.Protocol, c.Node, c.A, c.B)
}

// Unwrap makes a Conflict an appliance.Error of that kind.
func (c *Conflict) Unwrap() error {
	return appliance.Errorf(appliance.Conflict, "%s", c.Error()).WithHint("give one of the two another number, or put it on another node")
}

// Check refuses two holders of one number and protocol on a node, naming the lowest such number and both holders.
func Check(node appliance.NodeName, bound []Bound) error {
	sorted := slices.SortedFunc(slices.Values(bound), func(a, b Bound) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Holder, b.Holder))
	})
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.Number == b.Number && a.Protocol == b.Protocol {
			return &Conflict{Node: node, Number: a.Number, Protocol: a.Protocol, A: a.Holder, B: b.Holder}
		}
	}
	return nil
}
