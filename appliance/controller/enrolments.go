package controller

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// hearEnrolment answers a joiner: a challenge for its hello, admission or a refusal by name for its claim.
func (c *Controller) hearEnrolment(ctx context.Context, m bus.Message) bus.Verdict {
	id := appliance.TokenID(strings.TrimPrefix(wire.Token(m.Subject, 2), "token-"))
	data, err := c.enrol(ctx, id, m)
	if store.IsUnavailable(err) {
		return bus.StoreAway(time.Second)
	}
	if err != nil {
		c.log.Info("enrolment refused", "token", id, "err", err)
		if data, err = enrol.SealRefusal(c.mesh.ID, c.cfg.Keys.Signing, m.Header, err, time.Now()); err != nil {
			return bus.Dead(err.Error())
		}
	}
	if err := c.cfg.Link.Answer(wire.TokenUser(id), m.Header.Reply, data); err != nil {
		c.log.Warn("answer joiner", "token", id, "err", err) // it asks again, and gets the same answer
	}
	return bus.Done()
}

// enrol gives the signed answer to a hello or a claim.
func (c *Controller) enrol(ctx context.Context, id appliance.TokenID, m bus.Message) ([]byte, error) {
	if !c.tokens.allow(id) {
		return nil, enrol.Refuse(enrol.Rate, "too many tries with token "+string(id))
	}
	token, err := c.cfg.Store.Token(ctx, id)
	if appliance.IsReason(err, enrol.TokenUnknown) {
		return nil, enrol.Unknown(c.mesh.ID, m.Header)
	}
	if err != nil {
		return nil, err
	}
	record := enrol.Record{ID: token.ID, Bus: token.Bus, Claim: token.Claim}
	if m.Header.Kind == wire.KindHello {
		hello, h, err := enrol.OpenHello(m.Data, c.mesh.ID, record)
		if err != nil {
			return nil, err
		}
		challenge, err := enrol.NewChallenge(c.cfg.Keys.Challenge, c.mesh.ID, hello, c.mesh.Range, time.Now())
		if err != nil {
			return nil, err
		}
		return enrol.SealChallenge(c.mesh.ID, c.cfg.Keys.Signing, h, challenge, time.Now())
	}
	claimed, err := enrol.VerifyClaim(m.Data, c.mesh.ID, c.cfg.Keys.Challenge, record, m.Time)
	if err != nil {
		return nil, err
	}
	return c.admit(ctx, id, claimed)
}

// admit records the node and gives its answer; what follows from the new node is composed afterwards, so that the answer waits for nothing.
func (c *Controller) admit(ctx context.Context, token appliance.TokenID, claimed enrol.Claimed) ([]byte, error) {
	claim := claimed.Claim
	done, err := c.cfg.Store.Enrol(ctx, store.By{Who: wire.TokenUser(token), At: time.Now()}, store.Enrolment{
		Token: token, Keys: claim.Keys, Name: claim.Name, Labels: claim.Labels, Adopted: claim.Adopt, State: claim.Capabilities.State, Capabilities: claim.Capabilities,
		Modules:  []appliance.ModuleName{networkModule},
		Allocate: func(used []netip.Addr) (netip.Addr, error) { return overlay.Allocate(c.mesh.Range, used) },
		Issue: func(node appliance.NodeID, name appliance.NodeName, _ netip.Addr) ([]byte, error) {
			return c.cfg.Authority.Issue(pki.Request{Public: claimed.Keys.TLS, Names: []string{pki.NodeCertName(node), string(name) + ".internal"},
				Usage: pki.Client | pki.Server, Now: time.Now()})
		},
	})
	if err != nil {
		return nil, err
	}
	c.members.mu.Lock()
	current := c.members.envelope
	c.members.mu.Unlock()
	answer, err := enrol.SealAnswer(c.mesh.ID, c.cfg.Keys.Signing, claimed, wire.Enrolled{Node: done.Node, Name: done.Name, MeshName: c.mesh.Name, Address: done.Address,
		Certificate: done.Certificate, Authority: c.mesh.Authority, Membership: current}, time.Now())
	if err != nil {
		return nil, err
	}
	c.roster.add(done.Node, &member{name: done.Name, identity: claimed.Keys.Identity, tls: claimed.Keys.TLS, capabilities: claim.Capabilities})
	c.due.add(done.Node)
	return answer, nil
}

// limits bounds what one token may ask: a spent token keeps its right to be told so, not to keep the mesh busy.
type limits struct {
	mu  sync.Mutex
	per map[appliance.TokenID]*rate.Limiter
}

const (
	triesPerSecond = 20
	triesAtOnce    = 1000 // a few hundred machines at once, each with a hello and a claim
	maxLimits      = 10_000
)

func (l *limits) allow(id appliance.TokenID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.per == nil || len(l.per) >= maxLimits {
		l.per = map[appliance.TokenID]*rate.Limiter{}
	}
	if l.per[id] == nil {
		l.per[id] = rate.NewLimiter(triesPerSecond, triesAtOnce)
	}
	return l.per[id].Allow()
}
