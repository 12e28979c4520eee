package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// switched makes a change that takes effect at once, and approves exactly that on the nodes whose approved plans it is about: choose makes
// the plan to approve of the approved one and of what is recorded. What colleagues recorded and did not push stays unpushed. Where one node cannot be told,
// nothing is changed.
func (c *Controller) switched(ctx context.Context, about func(resolve.Node, resolve.Plan) bool, choose func(old, new resolve.Plan) resolve.Plan, change func(store.Decide) error) (operators.Switched, error) {
	c.composing.Lock()
	defer c.composing.Unlock()
	var p pending
	var all []told
	out := operators.Switched{Instances: []operators.SwitchedModule{}}
	err := change(func(records store.Snapshot) (_ map[appliance.NodeID]resolve.Plan, err error) {
		if p, err = pendingOf(records); err != nil {
			return nil, err
		}
		approve := map[appliance.NodeID]resolve.Plan{}
		for _, n := range p.nodes {
			if _, approved := p.Approved[n.ID]; !approved {
				continue // its first plan is made of what is recorded
			}
			old, err := p.old(n.ID)
			if err != nil {
				return nil, err
			}
			if !about(n, old) {
				continue
			}
			if err := c.roster.behind(n.ID, n.Name); err != nil {
				return nil, err
			}
			plan := choose(old, p.plans[n.ID])
			t, err := c.compose(plan, p.Facts)
			if err != nil {
				return nil, fmt.Errorf("tell %s: %w", n.Name, err)
			}
			all, approve[n.ID] = append(all, t), plan
			out.Instances = append(out.Instances, switchedModules(n.Name, old, plan)...)
		}
		return approve, nil
	})
	if err != nil {
		return out, err
	}
	out.Nodes, err = c.issueAll(ctx, p.Snapshot, all)
	return out, err
}

// switchedModules lists what stops, last declared first as the node does it, then what starts.
func switchedModules(node appliance.NodeName, old, new resolve.Plan) (out []operators.SwitchedModule) {
	for i, n := range slices.Backward(new.Instances) {
		if n.Stopped && !old.Instances[i].Stopped {
			out = append(out, operators.SwitchedModule{Name: n.Name, Node: node, Stopped: true})
		}
	}
	for i, n := range new.Instances {
		if !n.Stopped && old.Instances[i].Stopped {
			out = append(out, operators.SwitchedModule{Name: n.Name, Node: node})
		}
	}
	return out
}

func (c *Controller) stopModule(ctx context.Context, a asked, ask operators.SwitchModule) (any, error) {
	return c.switchModule(ctx, a, ask, true)
}

func (c *Controller) startModule(ctx context.Context, a asked, ask operators.SwitchModule) (any, error) {
	return c.switchModule(ctx, a, ask, false)
}

func (c *Controller) switchModule(ctx context.Context, a asked, ask operators.SwitchModule, stopped bool) (any, error) {
	node, err := c.nodeOrAll(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	about := func(n resolve.Node, old resolve.Plan) bool {
		return (node == "" || n.ID == node) && old.Instance(ask.Instance) != nil
	}
	choose := func(old, new resolve.Plan) resolve.Plan { return resolve.Switch(old, new, ask.Instance) }
	return c.switched(ctx, about, choose, func(decide store.Decide) error {
		return c.cfg.Store.StopInstance(ctx, a.by, ask.Instance, node, stopped, decide)
	})
}

// restartModule asks the nodes on which an instance runs to start it anew. It records nothing but that it was asked for.
func (c *Controller) restartModule(ctx context.Context, a asked, ask operators.SwitchModule) (any, error) {
	node, err := c.nodeOrAll(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	p, err := c.pending(ctx)
	if err != nil {
		return nil, err
	}
	states, err := c.cfg.Store.NodeStates(ctx)
	if err != nil {
		return nil, err
	}
	out := operators.Restarted{Instances: []operators.RestartedModule{}}
	var nodes []appliance.NodeID
	for _, n := range p.nodes {
		plan, err := p.old(n.ID)
		if err != nil {
			return nil, err
		}
		i := plan.Instance(ask.Instance)
		if i == nil || node != "" && n.ID != node {
			continue
		}
		if err := restartable(n, plan, *i, p.Intent.Modules[i.Module]); err != nil {
			return nil, err
		}
		nodes = append(nodes, n.ID)
		out.Instances = append(out.Instances, operators.RestartedModule{Name: i.Name, Node: n.Name, Since: since(states, n.ID, i.Name)})
	}
	if len(nodes) == 0 {
		return nil, appliance.Errorf(appliance.NotFound, "restart: no instance %s runs there", appliance.Quote(string(ask.Instance))).
			WithHint("what is only recorded does not run before it is pushed").WithNext("mesh module list")
	}
	if err := c.cfg.Store.RecordAction(ctx, a.by, "module restart", string(ask.Instance), map[string]any{"nodes": len(nodes)}); err != nil {
		return nil, err
	}
	for _, id := range nodes {
		if err := c.notify(id, wire.Notice{Version: wire.Version, Restart: ask.Instance}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// restartable refuses what does not run, or would not be carried out.
func restartable(n resolve.Node, plan resolve.Plan, i resolve.Instance, m *manifest.Manifest) error {
	switch {
	case m != nil && m.Base():
		return appliance.Errorf(appliance.Conflict, "restart: %s is a base module, and the mesh stands on it", i.Name).
			WithHint("`mesh stop` and `mesh start`, given on the machine itself, restart the mesh's own processes there")
	case i.Stopped:
		return appliance.Errorf(appliance.Conflict, "restart: %s is stopped on %s", i.Name, n.Name).WithNext(fmt.Sprintf("mesh module start %s@%s", i.Name, n.Name))
	case plan.Hold:
		return appliance.Errorf(appliance.Conflict, "restart: %s is held, and changes nothing", n.Name).WithNext("mesh node resume " + string(n.Name))
	}
	return nil
}

// since says since when an instance has been as its node reported; zero: nothing was reported.
func since(states []store.NodeState, node appliance.NodeID, instance appliance.InstanceName) time.Time {
	for _, s := range states {
		for _, h := range s.Health {
			if s.Node == node && h.Instance == instance {
				return h.Since
			}
		}
	}
	return time.Time{}
}
