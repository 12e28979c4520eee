package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// purgeData asks a node to remove the data that it keeps of an instance (MOD-10). What is kept afterwards is in its next report.
func (c *Controller) purgeData(ctx context.Context, a asked, ask operators.PurgeData) (any, error) {
	p, err := c.pending(ctx)
	if err != nil {
		return nil, err
	}
	states, err := c.cfg.Store.NodeStates(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := p.scope([]appliance.NodeName{ask.Node})
	if err != nil {
		return nil, err
	}
	n := nodes[0]
	old, err := p.old(n.ID)
	if err != nil {
		return nil, err
	}
	done := operators.Purged{PurgeData: ask, Data: keptOf(states, n.ID, ask.Instance)}
	if err := c.purgeable(n, ask, old, p.plans[n.ID], done.Data); err != nil {
		return nil, err
	}
	if err := c.cfg.Store.RecordAction(ctx, a.by, "module purge", fmt.Sprintf("%s@%s", ask.Instance, n.ID), done); err != nil {
		return nil, err
	}
	return done, c.notify(n.ID, wire.Notice{Version: wire.Version, Purge: ask.Instance})
}

// purgeable refuses what is in use, or would not be carried out. The node judges once more by what it has.
func (c *Controller) purgeable(n resolve.Node, ask operators.PurgeData, old, now resolve.Plan, data []wire.Kept) error {
	refuse := func(kind appliance.Kind, format string, args ...any) *appliance.Error {
		return appliance.Errorf(kind, "purge %s@%s: "+format, append([]any{ask.Instance, n.Name}, args...)...)
	}
	var lost bool
	c.roster.with(n.ID, func(m *member) { lost = time.Since(m.seen) > lostAfter })
	switch {
	case now.Instance(ask.Instance) != nil:
		return refuse(appliance.Conflict, "the instance is assigned there").WithHint("data in use stays").
			WithNext(fmt.Sprintf("mesh module unassign %s %s --push", ask.Instance, n.Name))
	case old.Instance(ask.Instance) != nil:
		return refuse(appliance.Conflict, "that the instance leaves is not pushed yet").WithNext("mesh push " + string(n.Name))
	case len(data) == 0:
		return refuse(appliance.NotFound, "the node keeps no data of it").WithNext("mesh status")
	case n.Held:
		return refuse(appliance.Conflict, "the node is held, and changes nothing").WithNext("mesh node resume " + string(n.Name))
	case lost:
		return refuse(appliance.NotReady, "the node has not been heard of for a while").WithHint("it has to be there to remove something")
	}
	return nil
}

func keptOf(states []store.NodeState, node appliance.NodeID, instance appliance.InstanceName) []wire.Kept {
	data := []wire.Kept{}
	for _, s := range states {
		for _, k := range s.Kept {
			if s.Node == node && k.Instance == instance {
				data = append(data, k)
			}
		}
	}
	return data
}
