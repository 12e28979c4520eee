package resolve

import (
	"bytes"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Back is what a rollback approves (DEC-9): present with the instances of an earlier plan, where a module is named with its instances alone.
// Whether the node is held, and what is stopped, stays as it is.
func Back(present, earlier Plan, module appliance.ModuleName) Plan {
	next := earlier
	if module != "" {
		next = Only(present, earlier, module)
	}
	next.Hold = present.Hold
	return Switch(next, present)
}

// Differ says whether two plans have other instances, where a module is named of that. Whether they run is no difference.
func Differ(a, b Plan, module appliance.ModuleName) bool {
	return !bytes.Equal(essence(a, module), essence(b, module))
}

func essence(p Plan, module appliance.ModuleName) []byte {
	p.Instances = slices.DeleteFunc(slices.Clone(p.Instances), func(i Instance) bool { return module != "" && i.Module != module })
	for i := range p.Instances {
		p.Instances[i].Stopped = false
	}
	data, err := wire.Encode(p.Instances)
	if err != nil {
		panic(err) // strings, numbers and maps of strings always encode
	}
	return data
}

// Has says whether the plan has an instance of a module.
func (p Plan) Has(module appliance.ModuleName) bool {
	return slices.ContainsFunc(p.Instances, func(i Instance) bool { return i.Module == module })
}

// Instance gives one by its name; nil where there is none.
func (p Plan) Instance(name appliance.InstanceName) *Instance {
	i := slices.IndexFunc(p.Instances, func(i Instance) bool { return i.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Instances[i]
}

// CheckBack refuses a way back that a module rules out: its upgrade to what runs now cannot be taken back.
func CheckBack(present, next Plan, node appliance.NodeName) error {
	for _, i := range next.Instances {
		if now := present.Instance(i.Name); now != nil && now.NoRollback && now.Digest != i.Digest {
			return appliance.Errorf(appliance.Conflict, "roll back %s on %s: module %s says that its present version cannot be taken back (upgrade.rollback: none)", i.Name, node, i.Module).
				WithHint("register a version that mends it, and push that")
		}
	}
	return nil
}

// CheckPlan refuses a plan that cannot stand on its node beside what is carried there: one with two owners of a port or a path.
func (in Intent) CheckPlan(p Plan) error {
	i := slices.IndexFunc(in.Nodes, func(n Node) bool { return n.ID == p.Node })
	if i < 0 {
		return appliance.Errorf(appliance.NotFound, "there is no node %s", p.Node).WithNext("mesh node list")
	}
	return in.checkNode(in.Nodes[i], p)
}
