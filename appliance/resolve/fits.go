package resolve

import (
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/wire"
)

// Fits refuses the assignments that changes says are being made or made otherwise, where their node is not what their module needs: by its
// engine and platform (BLD-7), and by the ports that its carried resources bind (PORT-2). That is what machines say of themselves, and it
// changes: so it is asked when something is recorded, and never again. A node that says something else later stops no other node's plan.
func (in Intent) Fits(changes func(Assignment) bool) error {
	for _, a := range in.Assignments {
		i := slices.IndexFunc(in.Nodes, func(n Node) bool { return n.ID == a.Node })
		m := in.Modules[a.Module]
		if i < 0 || m == nil || !changes(a) {
			continue // the first two are Resolve's to refuse
		}
		n := in.Nodes[i]
		if err := runs(m, n, a.Instance); err != nil {
			return err
		}
		if err := in.free(m, n, a); err != nil {
			return err
		}
	}
	return nil
}

func runs(m *manifest.Manifest, n Node, instance appliance.InstanceName) error {
	for _, r := range m.Resources {
		if r.Kind == wire.Container && n.Runtime == "" {
			return appliance.Errorf(appliance.Conflict, "resolve instance %s: module %s has a container, and node %s has no container engine", instance, m.Module, n.Name).
				WithHint("install Docker there, or assign the module to another node; a node tells of a new engine within half a minute")
		}
	}
	for _, name := range union(m.Artifacts, nil) {
		a := m.Artifacts[name]
		if len(a.Platforms) > 0 && n.Platform != "" && !slices.Contains(a.Platforms, n.Platform) {
			return appliance.Errorf(appliance.Conflict, "resolve instance %s: artifact %s of module %s is for %s, and node %s is %s",
				instance, name, m.Module, strings.Join(a.Platforms, ", "), n.Name, n.Platform).
				WithHint("assign the module to another node, or push the artifact for that platform too")
		}
	}
	return nil
}

// free sees that none of the instance's ports is bound by a carried resource.
func (in Intent) free(m *manifest.Manifest, n Node, a Assignment) error {
	bound := slices.Clone(in.Carried[n.ID])
	for name, p := range resolvePorts(m, a.Instance, slices.DeleteFunc(slices.Clone(in.Ports), func(p Port) bool { return p.Node != n.ID })) {
		bound = append(bound, ports.Bound{Number: p.Number, Protocol: p.Protocol, Holder: ports.Holder(a.Instance, name)})
	}
	if err := ports.Check(n.Name, bound); err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	return nil
}
