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
	"github.com/novox/mesh/appliance/operators"
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
	records, err := c.cfg.Store.Snapshot(ctx)
	if err != nil {
		return err
	}
	without := slices.DeleteFunc(slices.Clone(records.Intent.Nodes), func(n resolve.Node) bool { _, ok := records.Approved[n.ID]; return ok })
	if len(without) == 0 {
		return nil
	}
	plans, err := resolve.Resolve(records.Intent)
	if err != nil {
		return err
	}
	first := map[appliance.NodeID]resolve.Plan{}
	for _, n := range without {
		plan := plans[n.ID]
		if !n.Hub { // what genesis gave the hub was approved by whoever ran it
			plan.Instances = slices.DeleteFunc(slices.Clone(plan.Instances), func(i resolve.Instance) bool { return i.Module != networkModule })
		}
		first[n.ID] = plan
	}
	return c.cfg.Store.ApprovePlans(ctx, own(), first)
}

// told is what a node is told once its plan is approved.
type told struct {
	node    appliance.NodeID
	held    bool
	version int
	body    []byte
	digest  appliance.Digest
}

// compose renders a plan with the facts, at the node's version.
func (c *Controller) compose(plan resolve.Plan, facts render.Facts) (told, error) {
	version, body, err := c.body(plan, facts)
	if len(body) > wire.MaxBody && err == nil {
		err = appliance.Errorf(appliance.Conflict, "its declaration has %d bytes, at most %d", len(body), wire.MaxBody).
			WithHint("fewer instances on one node, or shorter files and settings")
	}
	return told{plan.Node, plan.Hold, version, body, appliance.DigestOf(body)}, err
}

// declare renders the approved plans of nodes (nil: of all) with today's facts, and sends where the digest changed (DEC-1). A node for
// which that fails stops no other; the errors come back together.
func (c *Controller) declare(ctx context.Context, nodes []appliance.NodeID) error {
	c.composing.Lock()
	defer c.composing.Unlock()
	records, err := c.cfg.Store.Snapshot(ctx)
	if err != nil {
		return err
	}
	if nodes == nil {
		nodes = slices.Sorted(maps.Keys(records.Approved))
	}
	signed, err := c.certify(ctx, records.Approved, nodes)
	if err == nil && signed {
		records, err = c.cfg.Store.Snapshot(ctx)
	}
	if err != nil {
		return err
	}
	var all []told
	var failed []error
	for _, id := range nodes {
		approved, ok := records.Approved[id]
		if !ok {
			continue
		}
		var t told
		plan, err := approved.Plan()
		if err == nil {
			t, err = c.compose(plan, records.Facts)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("declare %s: %w", records.Facts.Nodes[id].Name, err))
			continue
		}
		all = append(all, t)
	}
	_, err = c.issueAll(ctx, records, all)
	return errors.Join(append(failed, err)...)
}

// issueAll sends what differs from what was issued last, and says what became of each.
func (c *Controller) issueAll(ctx context.Context, records store.Snapshot, all []told) ([]operators.PushedNode, error) {
	done := []operators.PushedNode{}
	var failed []error
	for _, t := range all {
		name := records.Facts.Nodes[t.node].Name
		number, sent, err := c.issue(ctx, t, records)
		if err != nil {
			failed = append(failed, fmt.Errorf("declare %s: %w", name, err))
			continue
		}
		done = append(done, operators.PushedNode{Node: name, Number: number, Digest: t.digest, Sent: sent, Held: t.held})
	}
	return done, errors.Join(failed...)
}

// issue records the number, and publishes after that is on disk.
func (c *Controller) issue(ctx context.Context, t told, records store.Snapshot) (number appliance.Number, sent bool, err error) {
	last := records.Issued[t.node]
	number = last.Number
	var envelope []byte
	if last.Digest != t.digest || last.Number.Epoch != records.Epoch {
		number, sent, err = c.cfg.Store.IssueDeclaration(ctx, t.node, t.digest, t.version, func(n appliance.Number) (data []byte, err error) {
			h := c.header(wire.KindDeclaration, string(t.node))
			h.Version, h.Epoch, h.Counter = t.version, n.Epoch, n.Counter
			envelope, err = wire.Seal(h, t.body, c.cfg.Keys.Signing)
			return envelope, err
		})
		if err != nil {
			return number, false, err
		}
	}
	if !sent {
		var known appliance.Number
		if c.roster.with(t.node, func(n *member) { known = n.declared.Number }); known == number {
			return number, false, nil
		}
		// Its recording came through although we were told otherwise: nobody has heard it yet.
		if envelope, err = c.recordedEnvelope(ctx, t.node); err != nil {
			return number, false, err
		}
	}
	c.roster.with(t.node, func(n *member) {
		n.declared = store.Issued{Number: number, Digest: t.digest, Envelope: envelope}
		n.resent = time.Time{} // who connects only now has not heard it
	})
	c.publish(wire.DeclarationSubject(t.node), envelope)
	return number, true, nil
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
