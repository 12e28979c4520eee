package resolve

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/wire"
)

// Resolve gives a plan for every node, an empty one where nothing is assigned. It refuses an intent in which two things exclude
// each other, naming both; the first such pair in order of names, whatever order the intent came in.
func Resolve(in Intent) (map[appliance.NodeID]Plan, error) {
	in.Nodes = slices.SortedFunc(slices.Values(in.Nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	nodes := map[appliance.NodeID]Node{}
	for i, n := range in.Nodes {
		if _, twice := nodes[n.ID]; twice {
			return nil, appliance.Errorf(appliance.Conflict, "resolve: node %s is there twice", n.ID)
		}
		if i > 0 && in.Nodes[i-1].Name == n.Name {
			return nil, appliance.Errorf(appliance.Conflict, "resolve: nodes %s and %s are both called %s", in.Nodes[i-1].ID, n.ID, n.Name)
		}
		nodes[n.ID] = n
	}
	in.Assignments = slices.SortedFunc(slices.Values(in.Assignments), func(a, b Assignment) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(nodes[a.Node].Name, nodes[b.Node].Name), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Module, b.Module))
	})
	if err := in.checkAssignments(nodes); err != nil {
		return nil, err
	}
	if err := in.checkNames(); err != nil {
		return nil, err
	}
	if err := in.checkSeats(nodes); err != nil {
		return nil, err
	}
	assigned, numbers := map[appliance.NodeID][]Assignment{}, map[appliance.NodeID][]Port{}
	for _, a := range in.Assignments {
		assigned[a.Node] = append(assigned[a.Node], a)
	}
	for _, p := range in.Ports {
		numbers[p.Node] = append(numbers[p.Node], p)
	}
	chosen, digests := in.Choices(), map[appliance.ModuleName]appliance.Digest{}
	for name, m := range in.Modules {
		digests[name] = m.Digest()
	}
	plans := map[appliance.NodeID]Plan{}
	for _, n := range in.Nodes {
		plan := Plan{Version: PlanVersion, Node: n.ID, Hold: n.Held, Instances: []Instance{}}
		for _, a := range assigned[n.ID] {
			i, err := in.resolveInstance(n, a, numbers[n.ID], chosen)
			if err != nil {
				return nil, err
			}
			i.Digest = digests[a.Module]
			plan.Instances = append(plan.Instances, i)
		}
		if err := in.checkNode(n, plan); err != nil {
			return nil, err
		}
		plans[n.ID] = plan
	}
	return plans, nil
}

// resolveInstance resolves one assignment; of the node's recorded numbers it takes its own, by the one derivation (PORT-4).
func (in Intent) resolveInstance(n Node, a Assignment, recorded []Port, chosen Choices) (Instance, error) {
	m := in.Modules[a.Module]
	i := Instance{Name: a.Instance, Module: a.Module, Stopped: a.Stopped || n.Drained && !m.Base(), Resources: m.Resources,
		NoRollback: m.Upgrade != nil && m.Upgrade.Rollback == "none"}
	i.Ports = resolvePorts(m, a.Instance, recorded)
	i.Certificates = certificates(m, a.Instance, n.Name)
	i.Artifacts = artifacts(m)
	var err error
	i.Settings, err = settings(chosen, m, n, a.Instance)
	return i, err
}

// resolvePorts gives an instance's ports with their numbers; of those recorded on its node it takes its own.
func resolvePorts(m *manifest.Manifest, instance appliance.InstanceName, recorded []Port) map[string]ResolvedPort {
	var resolved map[string]ResolvedPort
	for name, p := range m.Ports {
		var given, assigned uint16
		for _, r := range recorded {
			switch {
			case r.Instance != instance || r.Name != name:
			case r.Given:
				given = r.Number
			case p.Assign:
				assigned = r.Number
			}
		}
		if resolved == nil {
			resolved = map[string]ResolvedPort{}
		}
		resolved[name] = ResolvedPort{Number: ports.Number(given, assigned, p.Number), Protocol: p.Protocol, From: p.From}
	}
	return resolved
}

func (in Intent) checkAssignments(nodes map[appliance.NodeID]Node) error {
	for i, a := range in.Assignments {
		n, known := nodes[a.Node]
		if !known {
			return appliance.Errorf(appliance.NotFound, "resolve instance %s: no node %s", a.Instance, a.Node)
		}
		if in.Modules[a.Module] == nil {
			return appliance.Errorf(appliance.NotFound, "resolve instance %s on node %s: no module %s is registered", a.Instance, n.Name, a.Module).
				WithNext("mesh module register " + string(a.Module))
		}
		if i > 0 && in.Assignments[i-1].Instance == a.Instance && in.Assignments[i-1].Node == a.Node {
			return appliance.Errorf(appliance.Conflict, "resolve: instance %s is assigned to node %s twice", a.Instance, n.Name)
		}
	}
	return nil
}

// checkNames holds nodes, modules and instances to one namespace (MOD-2): an instance may only be called as its own module is.
func (in Intent) checkNames() error {
	nodes := map[string]bool{}
	for _, n := range in.Nodes {
		nodes[string(n.Name)] = true
		if in.Modules[appliance.ModuleName(n.Name)] != nil {
			return appliance.Errorf(appliance.Conflict, "resolve: a node and a module are both called %s", n.Name).
				WithHint("nodes, modules and instances share one namespace")
		}
	}
	for _, a := range in.Assignments {
		if nodes[string(a.Instance)] {
			return appliance.Errorf(appliance.Conflict, "resolve: a node and an instance of module %s are both called %s", a.Module, a.Instance).
				WithHint("nodes, modules and instances share one namespace; assign the module with another --as")
		}
		if other := appliance.ModuleName(a.Instance); other != a.Module && in.Modules[other] != nil {
			return appliance.Errorf(appliance.Conflict, "resolve: an instance of module %s has the name of module %s", a.Module, other).
				WithHint("nodes, modules and instances share one namespace; assign the module with another --as")
		}
	}
	return nil
}

// checkSeats sees that every claimed seat is declared once, and held once in its scope (MOD-3).
func (in Intent) checkSeats(nodes map[appliance.NodeID]Node) error {
	type declared struct {
		manifest.Seat
		by appliance.ModuleName
	}
	seats := map[appliance.SeatName]declared{}
	for _, name := range slices.Sorted(maps.Keys(in.Modules)) {
		for _, s := range in.Modules[name].Seats {
			if first, twice := seats[s.Name]; twice {
				return appliance.Errorf(appliance.Conflict, "resolve: seat %s is declared by module %s and by module %s", s.Name, first.by, name)
			}
			seats[s.Name] = declared{s, name}
		}
	}
	type scope struct {
		seat appliance.SeatName
		node appliance.NodeID // empty in the scope of the mesh
	}
	holders := map[scope]Assignment{}
	for _, a := range in.Assignments {
		for _, claim := range in.Modules[a.Module].Claims {
			seat, known := seats[claim]
			if !known {
				return appliance.Errorf(appliance.NotFound, "resolve instance %s: no module declares seat %s", a.Instance, claim).
					WithHint("register the module that declares it")
			}
			at, where := scope{seat: claim}, "the mesh"
			if seat.Scope == manifest.ScopeNode {
				at.node, where = a.Node, "node "+string(nodes[a.Node].Name)
			}
			if first, taken := holders[at]; taken {
				return appliance.Errorf(appliance.Conflict, "resolve: seat %s has one holder in %s, and is claimed by instance %s on node %s and by instance %s on node %s",
					claim, where, first.Instance, nodes[first.Node].Name, a.Instance, nodes[a.Node].Name).
					WithHint("unassign one of the two")
			}
			holders[at] = a
		}
	}
	return nil
}

// checkNode sees that nothing on one node has two owners: ports (PORT-2), and paths outside the instances' own folders (DEC-13).
func (in Intent) checkNode(n Node, plan Plan) error {
	var bound []ports.Bound
	for _, i := range plan.Instances {
		for name, p := range i.Ports {
			bound = append(bound, ports.Bound{Number: p.Number, Protocol: p.Protocol, Holder: ports.Holder(i.Name, name)})
		}
	}
	if err := ports.Check(n.Name, bound); err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	type owned struct {
		manifest.Resource
		by appliance.InstanceName
	}
	paths := map[string]owned{}
	for _, i := range plan.Instances {
		for _, r := range i.Resources {
			if r.Path == "" || strings.HasPrefix(r.Path, "${dir}/") {
				continue
			}
			first, taken := paths[r.Path]
			if taken && !(r.Kind == wire.Directory && len(fields(first.Resource, r)) == 0) {
				return appliance.Errorf(appliance.Conflict, "resolve: %s on node %s is wanted by instance %s as a %s and by instance %s as a %s",
					r.Path, n.Name, first.by, first.Kind, i.Name, r.Kind).
					WithHint("a file has one owner, and a directory that is shared is the same for all")
			}
			paths[r.Path] = owned{r, i.Name}
		}
	}
	return nil
}
