package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
)

// pending is what is recorded and not approved, as one look at the records.
type pending struct {
	nodes   []resolve.Node
	plans   map[appliance.NodeID]resolve.Plan // resolved from today's intent
	old     map[appliance.NodeID]resolve.Plan // approved
	changes map[appliance.NodeID][]resolve.Change
}

func (c *Controller) pending(ctx context.Context) (pending, error) {
	intent, err := c.cfg.Store.Intent(ctx)
	if err != nil {
		return pending{}, err
	}
	approved, err := c.cfg.Store.ApprovedPlans(ctx)
	if err != nil {
		return pending{}, err
	}
	plans, err := resolve.Resolve(intent)
	if err != nil {
		return pending{}, err
	}
	p := pending{nodes: intent.Nodes, plans: plans, old: map[appliance.NodeID]resolve.Plan{}, changes: map[appliance.NodeID][]resolve.Change{}}
	slices.SortFunc(p.nodes, func(a, b resolve.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range p.nodes {
		p.old[n.ID] = approved[n.ID].Plan
		if p.old[n.ID].Version == 0 { // none approved yet: compare with one that holds nothing
			p.old[n.ID] = resolve.Plan{Version: plans[n.ID].Version, Node: n.ID}
		}
		p.changes[n.ID] = resolve.Diff(p.old[n.ID], plans[n.ID])
	}
	return p, nil
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

// known refuses a module that is neither recorded for a node nor approved there, so that a slip is not taken for nothing to do.
func (p pending) known(only appliance.ModuleName) error {
	if only == "" {
		return nil
	}
	for _, plans := range []map[appliance.NodeID]resolve.Plan{p.plans, p.old} {
		for _, plan := range plans {
			if slices.ContainsFunc(plan.Instances, func(i resolve.Instance) bool { return i.Module == only }) {
				return nil
			}
		}
	}
	return appliance.Errorf(appliance.NotFound, "module %s is assigned to no node", appliance.Quote(string(only))).WithNext("mesh module list")
}

// next is the plan a push of one module approves: the approved plan with that module's instances as they are recorded now.
func (p pending) next(node appliance.NodeID, only appliance.ModuleName) resolve.Plan {
	if only == "" {
		return p.plans[node]
	}
	return resolve.Only(p.old[node], p.plans[node], only)
}

// scoped reads what a plan or push is about, and what is pending there.
func (c *Controller) scoped(ctx context.Context, a asked) (ask operators.Scope, p pending, nodes []resolve.Node, err error) {
	if err = a.read(&ask); err == nil {
		p, err = c.pending(ctx)
	}
	if err == nil {
		nodes, err = p.scope(ask.Nodes)
	}
	if err == nil {
		err = p.known(ask.Only)
	}
	return ask, p, nodes, err
}

func (c *Controller) showPlan(ctx context.Context, a asked) (any, error) {
	ask, p, nodes, err := c.scoped(ctx, a)
	if err != nil {
		return nil, err
	}
	who, err := c.recorders(ctx)
	if err != nil {
		return nil, err
	}
	out := operators.Plan{Nodes: []operators.NodePlan{}}
	for _, n := range nodes {
		plan := operators.NodePlan{Node: n.Name}
		for _, ch := range resolve.Diff(p.old[n.ID], p.next(n.ID, ask.Only)) {
			by := who[string(ch.Instance)+"@"+string(n.ID)]
			plan.Changes = append(plan.Changes, operators.Change{Instance: ch.Instance, Resource: ch.Resource, What: ch.What, Detail: ch.Detail, By: by.Who, At: by.At})
		}
		if len(plan.Changes) > 0 {
			out.Nodes = append(out.Nodes, plan)
		}
	}
	return out, nil
}

// recorders says who last recorded something about a thing, by the audit's subject.
func (c *Controller) recorders(ctx context.Context) (map[string]operators.AuditEntry, error) {
	changes, err := c.cfg.Store.Audit(ctx, time.Time{}, 0)
	if err != nil {
		return nil, err
	}
	out := map[string]operators.AuditEntry{}
	for _, ch := range changes {
		out[ch.Subject] = operators.AuditEntry{Who: ch.Who, At: ch.At}
	}
	return out, nil
}

// pushPlan approves and sends. Where nothing changed nothing is sent.
func (c *Controller) pushPlan(ctx context.Context, a asked) (any, error) {
	ask, p, nodes, err := c.scoped(ctx, a)
	if err != nil {
		return nil, err
	}
	facts, err := c.cfg.Store.Facts(ctx)
	if err != nil {
		return nil, err
	}
	var ids []appliance.NodeID
	var failed []error
	names := map[appliance.NodeID]appliance.NodeName{}
	plans := map[appliance.NodeID]resolve.Plan{}
	for _, n := range nodes {
		if err := c.roster.behind(n.ID, n.Name); err != nil {
			return nil, err
		}
		plan := p.next(n.ID, ask.Only)
		if _, _, err := c.body(plan, facts); err != nil { // what cannot be sent is not approved
			failed = append(failed, fmt.Errorf("push to %s: %w", n.Name, err))
			continue
		}
		ids, names[n.ID], plans[n.ID] = append(ids, n.ID), n.Name, plan
	}
	if len(ids) == 0 {
		return nil, errors.Join(failed...)
	}
	if err := c.cfg.Store.ApprovePlans(ctx, a.by, plans); err != nil {
		return nil, err
	}
	done, err := c.declare(ctx, ids)
	if err := errors.Join(append(failed, err)...); err != nil {
		return nil, err
	}
	out := operators.Pushed{Nodes: []operators.PushedNode{}}
	for _, s := range done {
		out.Nodes = append(out.Nodes, operators.PushedNode{Node: names[s.node], Number: s.number, Digest: s.digest, Sent: s.issued})
	}
	return out, nil
}
