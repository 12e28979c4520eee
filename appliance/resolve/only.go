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

// Switch is old with the named instances, where none is named all, stopped or not as new has them: what an operator's stop, start, drain
// and resume approve. What colleagues recorded meanwhile stays unapproved.
func Switch(old, new Plan, named ...appliance.InstanceName) Plan {
	out := old
	out.Instances = slices.Clone(old.Instances)
	for i, have := range out.Instances {
		at := slices.IndexFunc(new.Instances, func(n Instance) bool { return n.Name == have.Name })
		if at >= 0 && (len(named) == 0 || slices.Contains(named, have.Name)) {
			out.Instances[i].Stopped = new.Instances[at].Stopped
		}
	}
	return out
}
