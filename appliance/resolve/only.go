package resolve

import (
	"cmp"
	"slices"

	"github.com/novox/mesh/appliance"
)

// Only is old with one module's instances as new has them: what a push of that module alone approves.
func Only(old, new Plan, module appliance.ModuleName) Plan {
	out := Plan{Version: new.Version, Node: new.Node, Instances: []Instance{}}
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
