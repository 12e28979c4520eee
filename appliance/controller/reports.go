package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// said opens what a node says on a subject of its own: under its live key, in its name, to this mesh (NODE-5).
func (c *Controller) said(m bus.Message, token int, kind wire.Kind) (store.Speaker, wire.Header, []byte, error) {
	id := appliance.NodeID(wire.Token(m.Subject, token))
	key, ok := c.roster.key(id)
	who := store.Speaker{Node: id, Identity: key}
	if !ok {
		return who, wire.Header{}, nil, appliance.Errorf(appliance.Denied, "hear %s: no node %s", kind, appliance.Quote(string(id)))
	}
	h, body, err := wire.Open(m.Data, kind, key)
	if err != nil {
		return who, h, nil, err
	}
	if h.From != string(id) || h.Mesh != c.mesh.ID || h.To != string(c.mesh.ID) {
		return who, h, nil, appliance.Errorf(appliance.Denied, "hear %s: signed from %s to %s, heard from %s", kind, appliance.Quote(h.From), appliance.Quote(h.To), id)
	}
	return who, h, body, nil
}

// hearReport records what a node did, or a fact it states.
func (c *Controller) hearReport(ctx context.Context, m bus.Message) bus.Verdict {
	who, h, body, err := c.said(m, 2, wire.KindReport)
	id := who.Node
	if err != nil {
		return bus.Dead(err.Error())
	}
	report, err := wire.ParseReport(body)
	if err != nil {
		return bus.Dead(err.Error())
	}
	if report.Facts != nil && report.Facts.Leaving {
		return c.hearLeaving(ctx, who)
	}
	superseded := false
	c.roster.with(id, func(n *member) {
		n.seen = time.Now()
		if report.About != nil {
			// With the digests unknown nothing is superseded (BUS-13).
			superseded = n.declared.Digest != "" && n.declared.Digest != report.About.Digest
			if report.About.Number.Compare(n.declared.Number) > 0 {
				n.ahead = report.About.Number
			}
		}
	})
	recorded, err := c.cfg.Store.RecordReport(ctx, who, h.Sequence, h.Time, report, superseded)
	if recorded && report.Facts != nil && report.Facts.Requests != nil {
		c.due.add(id) // there may be something to sign
	}
	return c.judged(fmt.Sprintf("record report %d of %s", h.Sequence, id), err)
}

// hearRekey refuses until key changes are carried out: nothing of it may be lost silently.
func (c *Controller) hearRekey(_ context.Context, m bus.Message) bus.Verdict {
	return bus.Dead("a changed overlay key is not carried out by this version")
}

// sendAgain is the least time between two sendings of one document to one node, whatever its alives say.
const sendAgain = 2 * time.Second

// hearAlive notes that a node is there, and sends again what its alive shows to be lacking. It waits for nothing.
func (c *Controller) hearAlive(_ context.Context, m bus.Message) {
	who, h, body, err := c.said(m, 2, wire.KindAlive)
	id := who.Node
	if err != nil {
		if !c.hearDeparted(id, m) {
			c.log.Warn("alive refused", "subject", m.Subject, "err", err)
		}
		return
	}
	alive, err := wire.ParseAlive(body)
	if err != nil {
		c.log.Warn("alive refused", "node", id, "err", err)
		return
	}
	now := time.Now()
	var fresh, changed bool
	var again []byte
	members := c.members.after(alive.Membership)
	c.roster.with(id, func(n *member) {
		if fresh = n.runs.take(alive.Run, h.Sequence, now); !fresh {
			return
		}
		n.seen, n.handshake = now, alive.Handshake
		if n.capabilities.Wire == alive.Capabilities.Wire {
			n.capabilities = alive.Capabilities
		} else if n.turns.take(now) { // else a later alive says so again
			n.capabilities, changed = alive.Capabilities, true
		}
		if n.declared.Digest == "" && now.Sub(n.resent) > sendAgain { // its first declaration failed
			n.resent, changed = now, true
		}
		if members != nil && now.Sub(n.noticed) < sendAgain {
			members = nil
		} else if members != nil {
			n.noticed = now
		}
		if n.declared.Digest != "" && n.declared.Digest != alive.Digest && now.Sub(n.resent) > sendAgain {
			n.resent = now
			if h, err := wire.Peek(n.declared.Envelope); err == nil && h.Version <= n.capabilities.Wire {
				again = n.declared.Envelope
			} else { // composed for what it understood before
				changed = true
			}
		}
	})
	if !fresh {
		return
	}
	select {
	case c.seen <- store.Seen{Speaker: who, At: now, Alive: alive}:
	default: // the store is away and the queue full: the next alive says the same
	}
	if changed { // it understands something else now: compose for that
		c.due.add(id)
	} else if again != nil {
		c.publish(wire.DeclarationSubject(id), again)
	}
	if members != nil {
		c.publish(wire.DeclarationSubject(id), members)
	}
}

func (c *Controller) publish(subject string, data []byte) {
	if err := c.cfg.Link.Publish(subject, data); err != nil {
		c.log.Warn("publish", "subject", subject, "err", err) // its next alive asks again
	}
}

// recordSeen moves last_seen in batches and touches nothing else.
func (c *Controller) recordSeen(ctx context.Context) error {
	for {
		var batch []store.Seen
		select {
		case <-ctx.Done():
			return nil
		case s := <-c.seen:
			batch = append(batch, s)
		}
		for more := true; more && len(batch) < cap(c.seen); {
			select {
			case s := <-c.seen:
				batch = append(batch, s)
			default:
				more = false
			}
		}
		if err := c.cfg.Store.Seen(ctx, batch); err != nil && ctx.Err() == nil {
			c.log.Warn("record heartbeats", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(250 * time.Millisecond):
		}
	}
}
