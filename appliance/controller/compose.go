package controller

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/membership"
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

// declare renders the approved plans of nodes (nil: of all) with today's facts, and sends where the digest changed (DEC-1).
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
	for _, id := range nodes {
		plan, ok := plans[id]
		if !ok {
			continue
		}
		s, err := c.issue(ctx, plan.Plan, facts)
		if err != nil {
			return out, fmt.Errorf("declare %s: %w", facts.Nodes[id].Name, err)
		}
		out = append(out, s)
	}
	return out, nil
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
	if err != nil || !s.issued {
		return s, err
	}
	c.roster.with(plan.Node, func(n *member) {
		n.declared = store.Issued{Number: s.number, Digest: s.digest, Envelope: envelope}
		n.resent = time.Time{} // who connects only now has not heard it
	})
	c.publish(wire.DeclarationSubject(plan.Node), envelope)
	return s, nil
}

// body gives what a node is told: its rendered plan, or the one thing an older agent can do (UPG-3).
func (c *Controller) body(plan resolve.Plan, facts render.Facts) (version int, body []byte, err error) {
	understands := wire.Version
	c.roster.with(plan.Node, func(n *member) { understands = n.capabilities.Wire })
	if understands < wire.Oldest {
		replace, err := c.cfg.Binary()
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
	body, _ = render.Bytes(content)
	return content.Version, body, nil
}

// members is the membership last issued, and when the next may be.
type members struct {
	mu       sync.Mutex
	number   appliance.Number
	digest   appliance.Digest
	envelope []byte
	dirty    chan struct{}
}

func (m *members) load(ctx context.Context, s *store.Store) error {
	latest, err := s.LatestMembership(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number, m.digest, m.envelope, m.dirty = latest.Number, latest.Digest, latest.Envelope, make(chan struct{}, 1)
	return nil
}

// after gives the envelope where have is older.
func (m *members) after(have appliance.Number) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have.Compare(m.number) >= 0 {
		return nil
	}
	return m.envelope
}

func (m *members) changed() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// publishMembers issues a membership at once after a change; further changes within the second go together (NET-11).
func (c *Controller) publishMembers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.members.dirty:
		}
		if err := c.composeMembers(ctx); err != nil {
			c.log.Error("compose membership", "err", err)
			c.members.changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// composeMembers issues a new membership where it differs from the last.
func (c *Controller) composeMembers(ctx context.Context) error {
	c.composing.Lock()
	defer c.composing.Unlock()
	nodes, err := c.cfg.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	m := wire.Membership{Version: wire.Version, Range: c.mesh.Range, Port: c.mesh.OverlayPort, Broker: slices.Clone(c.mesh.Endpoints)}
	for _, n := range nodes {
		m.Members = append(m.Members, wire.Member{ID: n.ID, Name: n.Name, Address: n.Address, Key: n.Keys.Overlay, Endpoint: n.Endpoint, Hub: n.Hub})
		if n.Hub && len(m.Broker) > 0 { // over the overlay after the public ones: an agent never depends on the tunnel it configures
			if _, port, err := net.SplitHostPort(m.Broker[0]); err == nil {
				m.Broker = append(m.Broker, net.JoinHostPort(n.Address.String(), port))
			}
		}
	}
	body, err := membership.Body(m)
	if err != nil {
		return err
	}
	c.members.mu.Lock()
	same := c.members.digest == appliance.DigestOf(body)
	c.members.mu.Unlock()
	if same {
		return nil
	}
	var envelope []byte
	number, _, err := c.cfg.Store.IssueMembership(ctx, body, func(n appliance.Number) ([]byte, error) {
		envelope, err = membership.Sign(c.mesh.ID, n, time.Now(), body, c.cfg.Keys.Signing)
		return envelope, err
	})
	if err != nil {
		return err
	}
	c.members.mu.Lock()
	c.members.number, c.members.digest, c.members.envelope = number, appliance.DigestOf(body), envelope
	c.members.mu.Unlock()
	c.publish(wire.SubjectMembership, envelope)
	return nil
}
