package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

// pending is what is recorded and not approved, as one look at the records.
type pending struct {
	store.Snapshot
	nodes []resolve.Node                    // by name
	plans map[appliance.NodeID]resolve.Plan // resolved from today's intent
}

func (c *Controller) pending(ctx context.Context) (pending, error) {
	records, err := c.cfg.Store.Snapshot(ctx)
	if err != nil {
		return pending{}, err
	}
	return pendingOf(records)
}

func pendingOf(records store.Snapshot) (pending, error) {
	plans, err := resolve.Resolve(records.Intent)
	if err != nil {
		return pending{}, err
	}
	nodes := slices.SortedFunc(slices.Values(records.Intent.Nodes), func(a, b resolve.Node) int { return cmp.Compare(a.Name, b.Name) })
	return pending{records, nodes, plans}, nil
}

// old is a node's approved plan; while none is approved, one that holds nothing.
func (p pending) old(node appliance.NodeID) (resolve.Plan, error) {
	if approved, ok := p.Approved[node]; ok {
		return approved.Plan()
	}
	return resolve.Plan{Version: resolve.PlanVersion, Node: node}, nil
}

// approves says whether the node's approved plan is this one.
func (p pending) approves(plan resolve.Plan) bool {
	return p.Approved[plan.Node].Digest == appliance.DigestOf(plan.Bytes())
}

// changes says what a push would change on a node; where a module is named, a push of that alone.
func (p pending) changes(node appliance.NodeID, module appliance.ModuleName) ([]resolve.Change, error) {
	next, known := p.plans[node]
	if !known || p.approves(next) {
		return nil, nil
	}
	old, err := p.old(node)
	if module != "" {
		next = resolve.Only(old, next, module)
	}
	return resolve.Diff(old, next), err
}

// scope picks the nodes a plan or push is about; a name that no node has is refused.
func (p pending) scope(names []appliance.NodeName) ([]resolve.Node, error) {
	if len(names) == 0 {
		return p.nodes, nil
	}
	var out []resolve.Node
	for _, name := range names {
		i := slices.IndexFunc(p.nodes, func(n resolve.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, noNode(name)
		}
		out = append(out, p.nodes[i])
	}
	return out, nil
}

func noNode(name appliance.NodeName) error {
	return appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(name))).WithNext("mesh node list")
}

// only is what a push of one module approves on a node: the approved plan with that module's instances as they are recorded now.
func (p pending) only(node appliance.NodeID, module appliance.ModuleName) (resolve.Plan, error) {
	old, err := p.old(node)
	return resolve.Only(old, p.plans[node], module), err
}

// has says whether a module is recorded for a node, or approved there.
func (p pending) has(node appliance.NodeID, module appliance.ModuleName) (bool, error) {
	old, err := p.old(node)
	return old.Has(module) || p.plans[node].Has(module), err
}

// with gives the nodes that have a module. Where none has it that is refused, so that a slip is not taken for nothing to do.
func (p pending) with(module appliance.ModuleName) (nodes []resolve.Node, err error) {
	for _, n := range p.nodes {
		has, err := p.has(n.ID, module)
		if err != nil {
			return nil, err
		}
		if has {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, appliance.Errorf(appliance.NotFound, "module %s is assigned to no node", appliance.Quote(string(module))).WithNext("mesh module list")
	}
	return nodes, nil
}

// scoped gives the nodes that a plan or push is about, and what is pending there.
func (c *Controller) scoped(ctx context.Context, ask operators.Scope) (p pending, nodes []resolve.Node, err error) {
	if p, err = c.pending(ctx); err != nil {
		return p, nil, err
	}
	if nodes, err = p.scope(ask.Nodes); err != nil || ask.Only == "" {
		return p, nodes, err
	}
	with, err := p.with(ask.Only)
	if len(ask.Nodes) == 0 {
		nodes = with
	}
	return p, nodes, err
}

func (c *Controller) showPlan(ctx context.Context, a asked, ask operators.Scope) (any, error) {
	p, nodes, err := c.scoped(ctx, ask)
	if err != nil {
		return nil, err
	}
	who, err := c.recorders(ctx)
	if err != nil {
		return nil, err
	}
	out := operators.Plan{Nodes: []operators.NodePlan{}}
	for _, n := range nodes {
		changes, err := p.changes(n.ID, ask.Only)
		if err != nil {
			return nil, err
		}
		if len(changes) == 0 {
			continue
		}
		modules, err := p.modules(n.ID)
		if err != nil {
			return nil, err
		}
		plan := operators.NodePlan{Node: n.Name, Changes: shownChanges(changes)}
		for i, ch := range changes {
			by := who.of(n, modules[ch.Instance], ch)
			plan.Changes[i].By, plan.Changes[i].At = by.Who, by.At
			if m := p.Intent.Modules[modules[ch.Instance]]; m != nil && (ch.Resource == "manifest" || ch.Resource == "module" && ch.What == resolve.Add) {
				plan.Privileged = append(plan.Privileged, privileges(m, ch.Instance)...)
			}
		}
		out.Nodes = append(out.Nodes, plan)
	}
	return out, nil
}

func shownChanges(changes []resolve.Change) []operators.Change {
	out := make([]operators.Change, 0, len(changes))
	for _, ch := range changes {
		out = append(out, operators.Change{Instance: ch.Instance, Resource: ch.Resource, What: ch.What, Detail: ch.Detail})
	}
	return out
}

// pushPlan approves and sends. Where nothing changed nothing is sent.
func (c *Controller) pushPlan(ctx context.Context, a asked, ask operators.Scope) (any, error) {
	c.composing.Lock()
	defer c.composing.Unlock()
	p, nodes, err := c.scoped(ctx, ask)
	if err != nil {
		return nil, err
	}
	var all []told
	var failed []error
	changed := map[appliance.NodeID]resolve.Plan{}
	for _, n := range nodes {
		if err := c.roster.behind(n.ID, n.Name); err != nil {
			return nil, err
		}
		plan := p.plans[n.ID]
		if ask.Only != "" {
			if plan, err = p.only(n.ID, ask.Only); err != nil {
				return nil, err
			}
		}
		t, err := c.compose(plan, p.Facts)
		if err != nil { // what cannot be sent is not approved
			failed = append(failed, fmt.Errorf("push to %s: %w", n.Name, err))
			continue
		}
		all = append(all, t)
		if !p.approves(plan) {
			changed[n.ID] = plan
		}
	}
	if len(all) == 0 {
		return nil, errors.Join(failed...)
	}
	if err := c.cfg.Store.ApprovePlans(ctx, a.by, changed); err != nil {
		return nil, err
	}
	for id, plan := range changed {
		if slices.ContainsFunc(plan.Instances, func(i resolve.Instance) bool { return len(i.Certificates) > 0 }) {
			c.due.add(id) // for a key that is known already there may be another name to sign
		}
	}
	done, err := c.issueAll(ctx, p.Snapshot, all)
	if err := errors.Join(append(failed, err)...); err != nil {
		return nil, err
	}
	return operators.Pushed{Nodes: done}, nil
}
