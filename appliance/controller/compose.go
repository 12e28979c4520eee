package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// composeUsers makes the broker's users from the records and hands them over at once (BUS-1).
func (c *Controller) composeUsers(ctx context.Context) error {
	c.composing.Lock()
	defer c.composing.Unlock()
	records, err := c.cfg.Store.BusUsers(ctx)
	if err != nil {
		return err
	}
	file, left, err := busauth.Compose(records)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		c.log.Warn("bus users without a credential are left out", "users", strings.Join(left, ", "))
	}
	if err := c.cfg.SetUsers(file); err != nil {
		return fmt.Errorf("apply bus users: %w", err)
	}
	return c.cfg.Store.SetUsersDigest(ctx, appliance.DigestOf(file))
}

// networkModule is what every node carries out from its enrolment on; nothing else is approved without a push.
const networkModule appliance.ModuleName = "mesh-network"

// approveFirst approves the first plan of every node that has none: what enrolment gives it, and no change that is only recorded.
func (c *Controller) approveFirst(ctx context.Context) error {
	c.composing.Lock()
	defer c.composing.Unlock()
	approved, err := c.cfg.Store.ApprovedPlans(ctx)
	if err != nil {
		return err
	}
	intent, err := c.cfg.Store.Intent(ctx)
	if err != nil {
		return err
	}
	var without bool
	for _, n := range intent.Nodes {
		if _, ok := approved[n.ID]; !ok {
			without = true
		}
	}
	if !without {
		return nil
	}
	plans, err := resolve.Resolve(intent)
	if err != nil {
		return err
	}
	first := map[appliance.NodeID]resolve.Plan{}
	for _, n := range intent.Nodes {
		if _, ok := approved[n.ID]; ok {
			continue
		}
		plan := plans[n.ID]
		if !n.Hub { // what genesis gave the hub was approved by whoever ran it
			plan.Instances = slices.DeleteFunc(slices.Clone(plan.Instances), func(i resolve.Instance) bool { return i.Module != networkModule })
		}
		first[n.ID] = plan
	}
	return c.cfg.Store.ApprovePlans(ctx, own(), first)
}

// sent says what became of one node in declare.
type sent struct {
	node   appliance.NodeID
	number appliance.Number
	digest appliance.Digest
	issued bool
}

// declare renders the approved plans of nodes (nil: of all) with today's facts, and sends where the digest changed (DEC-1). A node for
// which that fails stops no other; the errors come back together.
func (c *Controller) declare(ctx context.Context, nodes []appliance.NodeID) ([]sent, error) {
	c.composing.Lock()
	defer c.composing.Unlock()
	plans, err := c.cfg.Store.ApprovedPlans(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := c.cfg.Store.Facts(ctx)
	if err != nil {
		return nil, err
	}
	if nodes == nil {
		nodes = slices.Sorted(maps.Keys(plans))
	}
	var out []sent
	var failed []error
	for _, id := range nodes {
		plan, ok := plans[id]
		if !ok {
			continue
		}
		s, err := c.issue(ctx, plan.Plan, facts)
		if err != nil {
			failed = append(failed, fmt.Errorf("declare %s: %w", facts.Nodes[id].Name, err))
			continue
		}
		out = append(out, s)
	}
	return out, errors.Join(failed...)
}

// issue composes at the node's version, records the number, and publishes after that is on disk.
func (c *Controller) issue(ctx context.Context, plan resolve.Plan, facts render.Facts) (sent, error) {
	version, body, err := c.body(plan, facts)
	if err != nil {
		return sent{}, err
	}
	s := sent{node: plan.Node, digest: appliance.DigestOf(body)}
	var envelope []byte
	s.number, s.issued, err = c.cfg.Store.IssueDeclaration(ctx, plan.Node, s.digest, version, func(n appliance.Number) (data []byte, err error) {
		h := c.header(wire.KindDeclaration, string(plan.Node))
		h.Version, h.Epoch, h.Counter = version, n.Epoch, n.Counter
		envelope, err = wire.Seal(h, body, c.cfg.Keys.Signing)
		return envelope, err
	})
	if err != nil {
		return s, err
	}
	if !s.issued {
		var known appliance.Number
		if c.roster.with(plan.Node, func(n *member) { known = n.declared.Number }); known == s.number {
			return s, nil
		}
		// Its recording came through although we were told otherwise: nobody has heard it yet.
		if envelope, err = c.recordedEnvelope(ctx, plan.Node); err != nil {
			return s, err
		}
		s.issued = true
	}
	c.roster.with(plan.Node, func(n *member) {
		n.declared = store.Issued{Number: s.number, Digest: s.digest, Envelope: envelope}
		n.resent = time.Time{} // who connects only now has not heard it
	})
	c.publish(wire.DeclarationSubject(plan.Node), envelope)
	return s, nil
}

func (c *Controller) recordedEnvelope(ctx context.Context, id appliance.NodeID) ([]byte, error) {
	latest, err := c.cfg.Store.Latest(ctx)
	return latest[id].Envelope, err
}

// body gives what a node is told: its rendered plan, or the one thing an older agent can do (UPG-3).
func (c *Controller) body(plan resolve.Plan, facts render.Facts) (version int, body []byte, err error) {
	var understands wire.Capabilities
	c.roster.with(plan.Node, func(n *member) { understands = n.capabilities })
	if understands.Wire < wire.Oldest {
		replace, err := c.cfg.Downloads.Replace(understands.Architecture)
		if err != nil {
			return 0, nil, err
		}
		body, err = wire.Encode(replace)
		return 0, body, err
	}
	content, err := render.Render(plan, facts)
	if err != nil {
		return 0, nil, err
	}
	for _, r := range content.Resources {
		if !slices.Contains(understands.Kinds, r.Kind) {
			return 0, nil, appliance.Errorf(appliance.Conflict, "%s is of kind %s, which the node's agent (%s) does not say it carries out", r.ID, r.Kind, understands.Binary).
				WithHint("assign it to another node")
		}
	}
	body, _ = render.Bytes(content)
	return content.Version, body, nil
}
