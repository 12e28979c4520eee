package operators

import (
	"fmt"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Settled judges a status for those who wait (DEC-7): good when every node is current, clean and healthy; bad when a current node
// has failed; else waiting, with a reason for each node that is not there yet.
func (s Status) Settled(nodes ...appliance.NodeName) (good bool, bad, waiting []string) {
	wanted := map[appliance.NodeName]bool{}
	for _, n := range nodes {
		wanted[n] = true
	}
	for _, n := range s.Nodes {
		if len(nodes) > 0 && !wanted[n.Name] {
			continue
		}
		delete(wanted, n.Name)
		switch {
		case !n.Current && n.Lost:
			waiting = append(waiting, fmt.Sprintf("%s: lost, it has not been heard of for a while", n.Name))
		case !n.Current:
			waiting = append(waiting, fmt.Sprintf("%s: its report does not name declaration %s yet", n.Name, n.Number))
		case n.Outcome == "failed":
			bad = append(bad, n.failure())
		case n.Outcome == "waiting":
			waiting = append(waiting, n.unfinished())
		case n.Health == wire.Unhealthy || n.Health == wire.Looping:
			bad = append(bad, n.unhealthy())
		case n.Health != wire.Healthy:
			waiting = append(waiting, fmt.Sprintf("%s: %s", n.Name, n.instancesNot(wire.Healthy)))
		}
	}
	for n := range wanted {
		bad = append(bad, fmt.Sprintf("%s: no such node", n))
	}
	return len(bad) == 0 && len(waiting) == 0, bad, waiting
}

func (n NodeStatus) failure() string {
	if len(n.Failures) == 0 {
		return fmt.Sprintf("%s: applying failed", n.Name)
	}
	f := n.Failures[0]
	return fmt.Sprintf("%s: %s: %s: %s", n.Name, f.ID, f.Step, f.Error)
}

// Found are the things that were on an adopted node before the mesh, and that a declaration would have otherwise (NODE-7).
func (n NodeStatus) Found() (found []wire.Outcome) {
	for _, f := range n.Failures {
		if f.Status == wire.Refused && f.Step == wire.StepFound {
			found = append(found, f)
		}
	}
	return found
}

// unfinished says what a node waits for.
func (n NodeStatus) unfinished() string {
	if len(n.Waiting) == 0 {
		return fmt.Sprintf("%s: something has to come first", n.Name)
	}
	if n.Held {
		return fmt.Sprintf("%s: it is held: %d resources wait until it is resumed", n.Name, len(n.Waiting))
	}
	w := n.Waiting[0]
	return fmt.Sprintf("%s: %s: %s", n.Name, w.ID, w.Error)
}

func (n NodeStatus) unhealthy() string {
	return fmt.Sprintf("%s: %s", n.Name, n.instancesNot(wire.Healthy))
}

func (n NodeStatus) instancesNot(state wire.HealthState) string {
	var parts []string
	for _, i := range n.Instances {
		if i.Health != state && !i.Stopped {
			part := fmt.Sprintf("%s is %s", i.Name, i.Health)
			if i.Why != "" {
				part += " (" + i.Why + ")"
			}
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		return "is " + string(n.Health)
	}
	return strings.Join(parts, ", ")
}

// Placed says on which nodes an instance is, all of them or the one named.
func (s Status) Placed(instance appliance.InstanceName, node appliance.NodeName) (appliance.InstanceName, []appliance.NodeName, error) {
	var found []appliance.NodeName
	known := node == ""
	for _, n := range s.Nodes {
		known = known || n.Name == node
		for _, i := range n.Instances {
			if i.Name == instance && (node == "" || n.Name == node) {
				found = append(found, n.Name)
			}
		}
	}
	switch {
	case !known:
		return "", nil, appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(node))).WithNext("mesh node list")
	case len(found) == 0 && node != "":
		return "", nil, appliance.Errorf(appliance.NotFound, "no instance %s is on node %s", appliance.Quote(string(instance)), node).WithNext("mesh status")
	case len(found) == 0:
		return "", nil, appliance.Errorf(appliance.NotFound, "no node has an instance %s", appliance.Quote(string(instance))).WithNext("mesh status")
	}
	return instance, found, nil
}
