package resolve

import (
	"cmp"
	"slices"

	"github.com/novox/mesh/appliance"
)

// Only is old with one module's instances as new has them: what a push of that module alone approves.
func Only(old, new Plan, module appliance.ModuleName) Plan {
	out := Plan{Version: new.Version, Node: new.Node, Hold: old.Hold, Instances: []Instance{}}
	for _, i := range old.Instances {
		if i.Module != module {
			out.Instances = append(out.Instances, i)
		}
	}
	for _, i := range new.Instances {
		if i.Module == module {
			out.Instances = append(out.Instances, i)
		}
	}
	slices.SortFunc(out.Instances, func(a, b Instance) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Switch is old with only what runs as new has it: whether the node is held, and which instances are stopped. It is what an operator's stop,
// start, hold, drain and resume approve; what colleagues recorded meanwhile stays unapproved.
func Switch(old, new Plan) Plan {
	out := old
	out.Hold, out.Instances = new.Hold, slices.Clone(old.Instances)
	for i := range out.Instances {
		for _, n := range new.Instances {
			if n.Name == out.Instances[i].Name {
				out.Instances[i].Stopped = n.Stopped
			}
		}
	}
	return out
}
