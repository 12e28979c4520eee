package operators

import (
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// SwitchModule names an instance to stop, start or restart, on one node or on all that have it.
type SwitchModule struct {
	Instance appliance.InstanceName `json:"instance"`
	Node     appliance.NodeName     `json:"node,omitempty"`
}

// HoldNode has a node change nothing, for some time or until it is resumed.
type HoldNode struct {
	Node appliance.NodeName `json:"node"`
	For  time.Duration      `json:"for,omitempty"` // nanoseconds
}

// DrainNode has a node's modules not run, but for the base.
type DrainNode struct {
	Node appliance.NodeName `json:"node"`
}

// ResumeNode undoes both.
type ResumeNode struct {
	Node appliance.NodeName `json:"node"`
}

// ConvergeNode has a node made as declared where something was before the mesh, too. Force goes on where that would be cut off.
type ConvergeNode struct {
	Node  appliance.NodeName `json:"node"`
	Force bool               `json:"force,omitempty"`
}

// Switched is the answer to what takes effect at once: on which nodes, and which instances stop or start there, in that order.
type Switched struct {
	Nodes     []PushedNode     `json:"nodes"`
	Instances []SwitchedModule `json:"instances"`
}

// SwitchedModule is one instance that stops, or starts.
type SwitchedModule struct {
	Name    appliance.InstanceName `json:"name"`
	Node    appliance.NodeName     `json:"node"`
	Stopped bool                   `json:"stopped"`
}

// Restarted names the instances whose nodes were asked, and since when each was as it is, by its node's clock: once it is healthy since
// another time, it was restarted.
type Restarted struct {
	Instances []RestartedModule `json:"instances"`
}

// RestartedModule is one of them.
type RestartedModule struct {
	Name  appliance.InstanceName `json:"name"`
	Node  appliance.NodeName     `json:"node"`
	Since time.Time              `json:"since,omitzero"`
}

// Settled judges a status for those who wait for a restart, as Status.Settled does for a push.
func (r Restarted) Settled(s Status) (good bool, bad, waiting []string) {
	for _, i := range r.Instances {
		have := s.instance(i.Node, i.Name)
		switch {
		case have == nil:
			bad = append(bad, fmt.Sprintf("%s: %s is not there", i.Node, i.Name))
		case have.Since.Equal(i.Since):
			waiting = append(waiting, fmt.Sprintf("%s: %s is not restarted yet", i.Node, i.Name))
		case have.Health == wire.Unhealthy || have.Health == wire.Looping:
			bad = append(bad, fmt.Sprintf("%s: %s is %s (%s)", i.Node, i.Name, have.Health, have.Why))
		case have.Health != wire.Healthy:
			waiting = append(waiting, fmt.Sprintf("%s: %s is %s", i.Node, i.Name, have.Health))
		}
	}
	return len(bad) == 0 && len(waiting) == 0, bad, waiting
}

func (s Status) instance(node appliance.NodeName, name appliance.InstanceName) *InstanceStatus {
	for _, n := range s.Nodes {
		i := slices.IndexFunc(n.Instances, func(i InstanceStatus) bool { return i.Name == name })
		if n.Name == node && i >= 0 {
			return &n.Instances[i]
		}
	}
	return nil
}
