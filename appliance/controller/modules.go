package controller

import (
	"context"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

func (c *Controller) registerModule(ctx context.Context, a asked, ask operators.RegisterModule) (any, error) {
	m, err := manifest.Parse(ask.Manifest)
	if err != nil {
		return nil, err
	}
	if err := m.Registrable(); err != nil {
		return nil, err
	}
	before, err := c.module(ctx, m.Module)
	if err != nil && appliance.KindOf(err) != appliance.NotFound {
		return nil, err
	}
	if err := c.cfg.Store.RegisterModule(ctx, a.by, m); err != nil {
		return nil, err
	}
	done, err := c.recorded(ctx, "", m.Module)
	return operators.Registered{Module: m.Module, Version: m.Digest(), Changed: before.Digest != m.Digest(), Nodes: done.Nodes, Privileged: privileges(m, "")}, err
}

func (c *Controller) module(ctx context.Context, name appliance.ModuleName) (store.Module, error) {
	modules, err := c.cfg.Store.Modules(ctx)
	if err != nil {
		return store.Module{}, err
	}
	i := slices.IndexFunc(modules, func(m store.Module) bool { return m.Name == name })
	if i < 0 {
		return store.Module{}, appliance.Errorf(appliance.NotFound, "there is no module %s", appliance.Quote(string(name))).
			WithHint("modules known to the mesh are listed by `mesh module list`").WithNext("mesh module register " + string(name))
	}
	return modules[i], nil
}

func (c *Controller) listModules(ctx context.Context, _ asked) (any, error) {
	modules, err := c.cfg.Store.Modules(ctx)
	if err != nil {
		return nil, err
	}
	instances, err := c.instances(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]operators.Module, 0, len(modules))
	for _, m := range modules {
		out = append(out, shown(m, instances[m.Name]))
	}
	return out, nil
}

func (c *Controller) showModule(ctx context.Context, a asked, ask operators.ShowModule) (any, error) {
	m, err := c.module(ctx, ask.Module)
	if err != nil {
		return nil, err
	}
	instances, err := c.instances(ctx)
	if err != nil {
		return nil, err
	}
	return shown(m, instances[m.Name]), nil
}

func shown(m store.Module, instances []operators.Instance) operators.Module {
	if instances == nil {
		instances = []operators.Instance{}
	}
	return operators.Module{Name: m.Name, Description: m.Manifest.Description, Version: m.Digest, Base: m.Manifest.Base(),
		Privileged: privileges(m.Manifest, ""), Instances: instances}
}

// privileges are what a module may do, of an instance where one is named (MOD-14).
func privileges(m *manifest.Manifest, instance appliance.InstanceName) (out []operators.Privilege) {
	for _, p := range m.Privileged {
		out = append(out, operators.Privilege{Instance: instance, What: p.String(), Reason: p.Reason})
	}
	return out
}

// removeModule forgets a module, or only tells what could not be without it.
func (c *Controller) removeModule(ctx context.Context, a asked, ask operators.RemoveModule) (any, error) {
	out := operators.RemovedModule{Module: ask.Module, Broken: []operators.ModuleUse{}, Nodes: []appliance.NodeName{}}
	var broken []store.Use
	var err error
	if ask.Show {
		broken, err = c.cfg.Store.Uses(ctx, ask.Module)
	} else {
		broken, err = c.cfg.Store.RemoveModule(ctx, a.by, ask.Module, ask.Force)
	}
	if err != nil {
		return nil, err
	}
	for _, u := range broken {
		out.Broken = append(out.Broken, operators.ModuleUse{Instance: u.Instance, Node: u.NodeName, Seat: u.Seat})
	}
	if ask.Show {
		return out, nil
	}
	recorded, err := c.recorded(ctx, "", "")
	out.Nodes = recorded.Nodes
	return out, err
}

// instances gives every assignment with its ports and its health, by module.
func (c *Controller) instances(ctx context.Context) (map[appliance.ModuleName][]operators.Instance, error) {
	intent, err := c.cfg.Store.Intent(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := resolve.Resolve(intent)
	if err != nil {
		return nil, err
	}
	states, err := c.cfg.Store.NodeStates(ctx)
	if err != nil {
		return nil, err
	}
	out := map[appliance.ModuleName][]operators.Instance{}
	for _, s := range states {
		for _, i := range plans[s.Node].Instances {
			numbers := map[string]uint16{}
			for name, p := range i.Ports {
				numbers[name] = p.Number
			}
			out[i.Module] = append(out[i.Module], operators.Instance{Name: i.Name, Node: s.Name, Health: healthOf(s, i.Name), Ports: numbers})
		}
	}
	return out, nil
}

// healthOf is an instance's reported health; one that was not reported on is starting.
func healthOf(s store.NodeState, name appliance.InstanceName) wire.HealthState {
	for _, h := range s.Health {
		if h.Instance == name {
			return h.State
		}
	}
	return wire.Starting
}

func (c *Controller) assignModule(ctx context.Context, a asked, ask operators.AssignModule) (any, error) {
	node, err := c.node(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	if ask.As == "" {
		ask.As = appliance.InstanceName(ask.Module)
	}
	if _, err := appliance.ParseName[appliance.InstanceName]("instance", string(ask.As)); err != nil {
		return nil, err
	}
	if err := c.cfg.Store.Assign(ctx, a.by, resolve.Assignment{Instance: ask.As, Node: node, Module: ask.Module}); err != nil {
		return nil, err
	}
	return c.recorded(ctx, ask.As, "")
}

func (c *Controller) unassignModule(ctx context.Context, a asked, ask operators.UnassignModule) (any, error) {
	node, err := c.node(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Store.Unassign(ctx, a.by, ask.Instance, node); err != nil {
		return nil, err
	}
	return c.recorded(ctx, ask.Instance, "")
}

func (c *Controller) node(ctx context.Context, name appliance.NodeName) (appliance.NodeID, error) {
	nodes, err := c.cfg.Store.Nodes(ctx)
	if err != nil {
		return "", err
	}
	for _, n := range nodes {
		if n.Name == name {
			return n.ID, nil
		}
	}
	return "", appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(name))).WithNext("mesh node list")
}

// recorded says where changes wait for a push; where a module is named, changes of that alone.
func (c *Controller) recorded(ctx context.Context, instance appliance.InstanceName, module appliance.ModuleName) (operators.Recorded, error) {
	out := operators.Recorded{Instance: instance, Nodes: []appliance.NodeName{}}
	p, err := c.pending(ctx)
	if err != nil {
		return out, err
	}
	for _, n := range p.nodes {
		changes, err := p.changes(n.ID, module)
		if err != nil {
			return out, err
		}
		if len(changes) > 0 {
			out.Nodes = append(out.Nodes, n.Name)
		}
	}
	return out, nil
}

func (c *Controller) listAudit(ctx context.Context, a asked, ask operators.ListAudit) (any, error) {
	if ask.Limit == 0 {
		ask.Limit = 100
	}
	changes, err := c.cfg.Store.Audit(ctx, time.Time{}, ask.Limit)
	if err != nil {
		return nil, err
	}
	out := make([]operators.AuditEntry, 0, len(changes))
	for _, ch := range slices.Backward(changes) {
		out = append(out, operators.AuditEntry{At: ch.At, Who: ch.Who, What: ch.What, Subject: ch.Subject, Before: ch.Before, After: ch.After})
	}
	return out, nil
}
