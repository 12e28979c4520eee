package controller

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

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
	m.number, m.digest, m.envelope = latest.Number, latest.Digest, latest.Envelope
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

func (c *Controller) published(envelope []byte) {
	if c.cfg.Published != nil && envelope != nil {
		c.cfg.Published(envelope)
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
	if m.Revoked, err = c.cfg.Store.Revoked(ctx, time.Now(), membership.MaxRevoked); err != nil {
		return err
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
	number, issued, err := c.cfg.Store.IssueMembership(ctx, body, func(n appliance.Number) ([]byte, error) {
		envelope, err = membership.Sign(c.mesh.ID, n, time.Now(), body, c.cfg.Keys.Signing)
		return envelope, err
	})
	if err == nil && !issued { // its recording came through although we were told otherwise
		var last store.Issued
		last, err = c.cfg.Store.LatestMembership(ctx)
		envelope = last.Envelope
	}
	if err != nil {
		return err
	}
	c.members.mu.Lock()
	c.members.number, c.members.digest, c.members.envelope = number, appliance.DigestOf(body), envelope
	c.members.mu.Unlock()
	c.published(envelope)
	c.publish(wire.SubjectMembership, envelope)
	return nil
}
