package controller

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// sessions are the operators attached to instances. They are in memory only: with the controller they end, and both ends notice.
type sessions struct {
	mu   sync.Mutex
	open map[string]*relay
}

// relay is one session: the two ends, and how far the frames to the node have come.
type relay struct {
	operator appliance.OperatorID
	node     appliance.NodeID
	output   string    // where the operator hears
	sent     uint64    // the operator's last frame
	asks     uint64    // to the node
	heard    time.Time // of either end
}

const (
	maxSessions    = 256
	maxPerNode     = 32
	maxOwn         = maxSessions / 4 // of one operator, so that there are some for others
	maxOwnPerNode  = maxPerNode / 2
	sessionGone    = 2 * wire.SessionQuiet
	neverHeardHint = "mesh status says when it was last heard of"
)

func (c *Controller) openLogs(_ context.Context, a asked, ask operators.OpenSession) (any, error) {
	return c.openSession(a, ask, func(appliance.NodeID) error {
		if ask.Open.Logs == nil {
			return appliance.Errorf(appliance.Invalid, "open session: it is not for logs")
		}
		return nil
	})
}

// openExec is audited before anything runs (OPS-2).
func (c *Controller) openExec(ctx context.Context, a asked, ask operators.OpenSession) (any, error) {
	return c.openSession(a, ask, func(node appliance.NodeID) error {
		if len(ask.Open.Command) == 0 {
			return appliance.Errorf(appliance.Invalid, "open session: it has no command")
		}
		return c.cfg.Store.RecordAction(ctx, a.by, "module exec", string(ask.Open.Instance)+"@"+string(node), map[string]any{"command": ask.Open.Command})
	})
}

func (c *Controller) openSession(a asked, ask operators.OpenSession, admit func(appliance.NodeID) error) (any, error) {
	if !wire.ValidSession(ask.Session) || !wire.OwnsInbox(wire.OperatorUser(a.operator), ask.Output) || ask.Credit < 1 || ask.Credit > wire.MaxCredit {
		return nil, appliance.Errorf(appliance.Invalid, "open session: its name, where its output goes, or its credit is none")
	}
	if err := ask.Open.Check(); err != nil {
		return nil, err
	}
	nodes, err := c.roster.chosen([]appliance.NodeName{ask.Node})
	if err != nil {
		return nil, err
	}
	r := &relay{operator: a.operator, output: ask.Output, heard: a.by.At}
	for id := range nodes {
		r.node = id
	}
	var seen time.Time
	c.roster.with(r.node, func(m *member) { ask.Open.Run, seen = m.runs.current, m.seen })
	if ask.Open.Run == "" || a.by.At.Sub(seen) > lostAfter {
		return nil, appliance.Errorf(appliance.Unavailable, "open session: node %s is not there now", ask.Node).WithHint(neverHeardHint).WithNext("mesh status")
	}
	if err := admit(r.node); err != nil {
		return nil, err
	}
	if err := c.sessions.add(ask.Session, r, a.by.At); err != nil {
		return nil, err
	}
	return struct{}{}, c.forward(r, wire.Ask{Session: ask.Session, Open: &ask.Open, Credit: ask.Credit})
}

// add takes a session up; those of which neither end was heard for long are forgotten.
func (s *sessions) add(name string, r *relay, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[string]*relay{}
	}
	maps.DeleteFunc(s.open, func(_ string, have *relay) bool { return now.Sub(have.heard) > sessionGone })
	count := func(is func(*relay) bool) (n int) {
		for _, have := range s.open {
			if is(have) {
				n++
			}
		}
		return n
	}
	here := count(func(have *relay) bool { return have.node == r.node })
	own := count(func(have *relay) bool { return have.operator == r.operator })
	ownHere := count(func(have *relay) bool { return have.operator == r.operator && have.node == r.node })
	switch {
	case s.open[name] != nil:
		return appliance.Errorf(appliance.Conflict, "open session: there is one of that name")
	case len(s.open) >= maxSessions || here >= maxPerNode:
		return appliance.Errorf(appliance.NotReady, "open session: %d are open, %d to this node; at most %d and %d", len(s.open), here, maxSessions, maxPerNode).
			WithHint("end one of them, or try again in a minute")
	case own >= maxOwn || ownHere >= maxOwnPerNode:
		return appliance.Errorf(appliance.NotReady, "open session: %d of yours are open, %d to this node; at most %d and %d", own, ownHere, maxOwn, maxOwnPerNode).
			WithHint("end one of them, or try again in a minute")
	}
	s.open[name] = r
	return nil
}

// of gives a session to the end that it belongs to, and to nobody else.
func (s *sessions) of(name string, mine func(*relay) bool) *relay {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.open[name]
	if r == nil || !mine(r) {
		return nil
	}
	r.heard = time.Now()
	return r
}

func (s *sessions) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, name)
}

func (c *Controller) sendSession(_ context.Context, a asked, ask operators.SendSession) (any, error) {
	if len(ask.Input) > wire.MaxFrame || ask.Credit < 0 || ask.Credit > wire.MaxCredit {
		return nil, appliance.Errorf(appliance.Invalid, "send to session: too much at once")
	}
	again := false
	r := c.sessions.of(ask.Session, func(r *relay) bool {
		if r.operator != a.operator {
			return false
		}
		again = ask.Sequence <= r.sent
		r.sent = max(r.sent, ask.Sequence)
		return true
	})
	if r == nil && ask.Close {
		return struct{}{}, nil // so it is
	}
	if r == nil {
		return nil, appliance.Errorf(appliance.NotFound, "send to session: it is over").WithHint("the hub may have restarted; begin another one")
	}
	if again {
		return nil, appliance.Errorf(appliance.Denied, "send to session: frame %d came before", ask.Sequence)
	}
	if ask.Close {
		c.sessions.drop(ask.Session)
	}
	return struct{}{}, c.forward(r, wire.Ask{Session: ask.Session, Input: ask.Input, End: ask.End, Size: ask.Size, Credit: ask.Credit, Close: ask.Close})
}

// forward numbers a frame and sends it to the node; the lock keeps the numbers in the order of sending.
func (c *Controller) forward(r *relay, frame wire.Ask) error {
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	r.asks++
	frame.Version, frame.Sequence = wire.Version, r.asks
	body, err := wire.Encode(frame)
	if err != nil {
		return err
	}
	data, err := wire.Seal(c.header(wire.KindAsk, string(r.node)), body, c.cfg.Keys.Signing)
	if err != nil {
		return err
	}
	return c.cfg.Link.Publish(wire.AskSubject(r.node), data)
}

// hearOutput hands a node's frame to the operator of the session, signed by the mesh.
func (c *Controller) hearOutput(_ context.Context, m bus.Message) {
	who, _, body, err := c.said(m, 2, wire.KindOutput)
	id := who.Node
	if err != nil {
		c.log.Warn("output refused", "subject", m.Subject, "err", err)
		return
	}
	frame, err := wire.ParseOutput(body)
	if err != nil {
		c.log.Warn("output refused", "node", id, "err", err)
		return
	}
	r := c.sessions.of(frame.Session, func(r *relay) bool { return r.node == id })
	if r == nil {
		return // it is over here; the node hears nothing more and ends it
	}
	if frame.End != nil {
		c.sessions.drop(frame.Session)
	}
	h := c.header(wire.KindOutput, string(r.operator))
	h.Nonce = frame.Session
	data, err := wire.Seal(h, body, c.cfg.Keys.Signing)
	if err == nil {
		err = c.cfg.Link.Answer(wire.OperatorUser(r.operator), r.output, data)
	}
	if err != nil {
		c.log.Warn("output not delivered", "node", id, "err", err)
	}
}
