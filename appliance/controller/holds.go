package controller

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

func (c *Controller) holdNode(ctx context.Context, a asked, ask operators.HoldNode) (any, error) {
	defer c.wakeHolds()
	return c.switchNode(ctx, ask.Node, held, func(id appliance.NodeID, decide store.Decide) error {
		return c.cfg.Store.HoldNode(ctx, a.by, id, ask.For, decide)
	})
}

func (c *Controller) drainNode(ctx context.Context, a asked, ask operators.DrainNode) (any, error) {
	drained := func(old, new resolve.Plan) resolve.Plan { return resolve.Switch(old, new) }
	return c.switchNode(ctx, ask.Node, drained, func(id appliance.NodeID, decide store.Decide) error {
		return c.cfg.Store.DrainNode(ctx, a.by, id, decide)
	})
}

func (c *Controller) resumeNode(ctx context.Context, a asked, ask operators.ResumeNode) (any, error) {
	resumed := func(old, new resolve.Plan) resolve.Plan { return held(resolve.Switch(old, new), new) }
	return c.switchNode(ctx, ask.Node, resumed, func(id appliance.NodeID, decide store.Decide) error {
		return c.cfg.Store.ResumeNode(ctx, a.by, id, decide)
	})
}

// held is old with only whether the node is held as new has it.
func held(old, new resolve.Plan) resolve.Plan {
	old.Hold = new.Hold
	return old
}

// switchNode makes a change of one node as a whole that takes effect at once.
func (c *Controller) switchNode(ctx context.Context, name appliance.NodeName, choose func(old, new resolve.Plan) resolve.Plan, change func(appliance.NodeID, store.Decide) error) (any, error) {
	id, err := c.node(ctx, name)
	if err != nil {
		return nil, err
	}
	about := func(n resolve.Node, _ resolve.Plan) bool { return n.ID == id }
	return c.switched(ctx, about, choose, func(decide store.Decide) error { return change(id, decide) })
}

// holdsEvery is the longest between two looks at the holds; a clock may jump.
const holdsEvery = time.Minute

func (c *Controller) wakeHolds() {
	select {
	case c.holds <- struct{}{}:
	default:
	}
}

// watchHolds resumes nodes whose time is over (OPS-3), also those whose time ended while nobody was here.
func (c *Controller) watchHolds(ctx context.Context) error {
	for {
		pause, err := c.endHolds(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Error("end holds, trying again", "in", pause, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.holds:
		case <-time.After(pause):
		}
	}
}

// endHolds says when to look again. A node that cannot be told keeps no other from being resumed.
func (c *Controller) endHolds(ctx context.Context) (pause time.Duration, err error) {
	holds, err := c.cfg.Store.Holds(ctx)
	if err != nil {
		return 10 * time.Second, err
	}
	var failed []error
	for _, h := range holds {
		if h.Left > 0 {
			pause = min(h.Left, holdsEvery)
			break
		}
		about := func(n resolve.Node, _ resolve.Plan) bool { return n.ID == h.Node }
		_, err := c.switched(ctx, about, held, func(decide store.Decide) error { return c.cfg.Store.EndHold(ctx, own(), h.Node, decide) })
		failed = append(failed, err)
	}
	if err := errors.Join(failed...); err != nil {
		return 10 * time.Second, err
	}
	return cmp.Or(pause, holdsEvery), nil
}
