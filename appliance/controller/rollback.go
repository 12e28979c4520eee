package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

const (
	maxPlans     = 100 // of a node in one answer
	maxChanges   = 30  // of one plan in that answer
	maxDistance  = 500 // how many plans back another version is looked for
	historyLimit = 20
)

func (c *Controller) listPlans(ctx context.Context, a asked, ask operators.ListPlans) (any, error) {
	if ask.Limit == 0 {
		ask.Limit = historyLimit
	}
	if ask.Limit < 1 || ask.Limit > maxPlans {
		return nil, appliance.Errorf(appliance.Invalid, "list plans: %d of them; 1 to %d", ask.Limit, maxPlans)
	}
	node, err := c.node(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	present, err := c.cfg.Store.ApprovedPlans(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := c.cfg.Store.Plans(ctx, node, 0, ask.Limit+1)
	if err != nil {
		return nil, err
	}
	out := operators.PlanHistory{Node: ask.Node, Plans: []operators.ApprovedPlan{}}
	for i, p := range plans[:min(len(plans), ask.Limit)] {
		before := resolve.Plan{Version: resolve.PlanVersion, Node: node}
		if i+1 < len(plans) {
			if before, err = plans[i+1].Plan(); err != nil {
				return nil, err
			}
		}
		plan, err := p.Plan()
		if err != nil {
			return nil, err
		}
		changes := shownChanges(resolve.Diff(before, plan))
		more := max(len(changes)-maxChanges, 0)
		out.Plans = append(out.Plans, operators.ApprovedPlan{Number: p.Number, At: p.At, By: p.By, Present: p.Number == present[node].Number, Changes: changes[:len(changes)-more], More: more})
	}
	return out, nil
}

// back is a way back for one node.
type back struct {
	node     resolve.Node
	from, to uint64
	present  resolve.Plan
	next     resolve.Plan
}

// rollback approves an earlier plan again and renders it with today's facts (DEC-9). Intent stays as it is recorded.
func (c *Controller) rollback(ctx context.Context, a asked, ask operators.Rollback) (any, error) {
	c.composing.Lock()
	defer c.composing.Unlock()
	p, err := c.pending(ctx)
	if err != nil {
		return nil, err
	}
	ways, err := c.waysBack(ctx, p, ask)
	if err != nil {
		return nil, err
	}
	out := operators.RolledBack{Steps: []operators.RollbackStep{}}
	approve := map[appliance.NodeID]resolve.Plan{}
	var all []told
	for _, w := range ways {
		if err := c.passable(p, w); err != nil {
			return nil, err
		}
		t, err := c.compose(w.next, p.Facts)
		if err != nil {
			return nil, fmt.Errorf("roll back %s: %w", w.node.Name, err)
		}
		all, approve[w.node.ID] = append(all, t), w.next
		out.Steps = append(out.Steps, operators.RollbackStep{Node: w.node.Name, From: w.from, To: w.to, Changes: shownChanges(resolve.Diff(w.present, w.next))})
	}
	if len(ask.Steps) == 0 {
		return out, nil
	}
	moved := func(x, y operators.RollbackStep) bool { return x.Node == y.Node && x.From == y.From && x.To == y.To }
	if !slices.EqualFunc(ask.Steps, out.Steps, moved) {
		return nil, appliance.Errorf(appliance.Conflict, "roll back %s: another plan was approved since it was shown", ask.Name).WithNext("mesh rollback " + ask.Name)
	}
	if err := c.cfg.Store.ApprovePlans(ctx, a.by, approve); err != nil {
		return nil, err
	}
	out.Nodes, err = c.issueAll(ctx, p.Snapshot, all)
	return out, err
}

// waysBack finds the plans to go back to.
func (c *Controller) waysBack(ctx context.Context, p pending, ask operators.Rollback) ([]back, error) {
	if i := slices.IndexFunc(p.nodes, func(n resolve.Node) bool { return string(n.Name) == ask.Name }); i >= 0 {
		w, err := c.wayBack(ctx, p, p.nodes[i], "", ask.To)
		if err == nil && w == nil {
			err = appliance.Errorf(appliance.NotFound, "roll back %s: no earlier plan has other instances", ask.Name).WithNext("mesh plan history " + ask.Name)
		}
		if err != nil {
			return nil, err
		}
		return []back{*w}, nil
	}
	module := appliance.ModuleName(ask.Name)
	nodes, err := p.with(module)
	if err != nil {
		return nil, appliance.Errorf(appliance.NotFound, "roll back: there is no node %s, and no module of that name is assigned", appliance.Quote(ask.Name)).WithNext("mesh status")
	}
	if ask.To != 0 {
		return nil, appliance.Errorf(appliance.Invalid, "roll back module %s: each node numbers its own plans", module).
			WithHint("without a number each instance goes back to what it was before; or roll back the node").WithNext("mesh plan history NODE")
	}
	var ways []back
	for _, n := range nodes {
		w, err := c.wayBack(ctx, p, n, module, 0)
		if err != nil {
			return nil, err
		}
		if w != nil {
			ways = append(ways, *w)
		}
	}
	if len(ways) == 0 {
		return nil, appliance.Errorf(appliance.NotFound, "roll back module %s: on no node was it approved otherwise before", module).WithNext("mesh plan history NODE")
	}
	return ways, nil
}

// wayBack is that of one node, nil where no earlier plan is another one. For a module, only a plan that has it is one to go back to.
func (c *Controller) wayBack(ctx context.Context, p pending, n resolve.Node, module appliance.ModuleName, to uint64) (*back, error) {
	approved, ok := p.Approved[n.ID]
	if !ok {
		return nil, nil
	}
	present, err := approved.Plan()
	if err != nil || module != "" && !present.Has(module) {
		return nil, err
	}
	from, distance := approved.Number-1, maxDistance
	if to != 0 {
		from, distance = to, 1
	}
	var plans []store.ApprovedPlan
	if from > 0 {
		if plans, err = c.cfg.Store.Plans(ctx, n.ID, from, distance); err != nil {
			return nil, err
		}
	}
	if to != 0 && (len(plans) == 0 || plans[0].Number != to || to == approved.Number) {
		return nil, appliance.Errorf(appliance.NotFound, "roll back %s: it has no plan %d to go back to", n.Name, to).WithNext("mesh plan history " + string(n.Name))
	}
	for _, earlier := range plans {
		plan, err := earlier.Plan()
		if err != nil {
			return nil, err
		}
		if resolve.Differ(present, plan, module) && (module == "" || plan.Has(module)) {
			return &back{node: n, from: approved.Number, to: earlier.Number, present: present, next: drained(p, n, resolve.Back(present, plan, module))}, nil
		}
	}
	if to != 0 {
		return nil, appliance.Errorf(appliance.Conflict, "roll back %s: plan %d has the same instances as the present one", n.Name, to).WithNext("mesh plan history " + string(n.Name))
	}
	return nil, nil
}

// drained keeps what comes back on a drained node from running, but for the base.
func drained(p pending, n resolve.Node, plan resolve.Plan) resolve.Plan {
	for i, in := range plan.Instances {
		if m := p.Intent.Modules[in.Module]; n.Drained && (m == nil || !m.Base()) {
			plan.Instances[i].Stopped = true
		}
	}
	return plan
}

// passable refuses a way that leads nowhere: one that a module rules out, or on which something is gone or in the way.
func (c *Controller) passable(p pending, w back) error {
	if err := c.roster.behind(w.node.ID, w.node.Name); err != nil {
		return err
	}
	if err := resolve.CheckBack(w.present, w.next, w.node.Name); err != nil {
		return err
	}
	if err := p.Intent.CheckPlan(w.next); err != nil {
		return err
	}
	var gone []string
	for _, i := range w.next.Instances {
		now := w.present.Instance(i.Name)
		for name, artifact := range i.Artifacts {
			if now != nil && now.Artifacts[name] == artifact {
				continue // the node has it
			}
			stored, err := c.cfg.Artifacts.Find(artifact.Digest)
			if err != nil {
				return err
			}
			if !slices.ContainsFunc(stored, func(s artifacts.Stored) bool { return s.Module == i.Module && len(s.Damaged) == 0 }) {
				gone = append(gone, fmt.Sprintf("%s/%s@%s of instance %s", i.Module, name, artifact.Digest.Short(), i.Name))
			}
		}
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		return appliance.Errorf(appliance.Conflict, "roll back %s to plan %d: the artifact store does not have %s", w.node.Name, w.to, strings.Join(gone, ", ")).
			WithHint("push the same files again, and the plan can be approved again")
	}
	return nil
}
