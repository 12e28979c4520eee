package agent

import (
	"context"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/wire"
)

// connect opens the bus and hears the node's own subjects. Documents are verified before they may take another's place in the queue.
func (a *Agent) connect(ctx context.Context) {
	link, err := a.cfg.Connect(ctx, func() { a.connected(ctx) })
	if err != nil {
		if ctx.Err() == nil {
			a.cfg.Log.Error("connect", "err", err)
		}
		return
	}
	declaration := a.verified(wire.KindDeclaration, string(a.cfg.Node), a.declarations)
	members := a.verified(wire.KindMembership, wire.Everybody, a.memberships)
	hear := map[string]func([]byte){
		// A membership that is sent again comes there too, out of a removed machine's hearing. The header is not proven yet: it only
		// says under which kind to open.
		wire.DeclarationSubject(a.cfg.Node): func(data []byte) {
			if h, err := wire.Peek(data); err == nil && h.Kind == wire.KindMembership {
				members(data)
			} else {
				declaration(data)
			}
		},
		wire.NoticeSubject(a.cfg.Node): a.noticed,
		wire.AskSubject(a.cfg.Node):    a.sessions.hear(ctx),
		wire.SubjectMembership:         members,
	}
	for subject, take := range hear {
		if _, err := link.Subscribe(subject, func(m bus.Message) { take(m.Data) }); err != nil {
			a.cfg.Log.Error("subscribe", "subject", subject, "err", err)
		}
	}
	a.mu.Lock()
	a.link = link
	a.mu.Unlock()
	a.connected(ctx)
	<-ctx.Done()
	link.Close()
}

func (a *Agent) verified(kind wire.Kind, to string, into *latest) func([]byte) {
	return func(data []byte) {
		doc, err := a.cfg.open(data, kind, to)
		if err == nil {
			err = into.put(doc)
		}
		if err == nil {
			return
		}
		a.refused(kind, err)
	}
}

// refused hands a refusal to the loop.
func (a *Agent) refused(kind wire.Kind, err error) {
	select {
	case a.refusals <- refusal{kind, err}:
	default:
		a.cfg.Log.Error("refused", "what", kind, "err", err)
	}
}

// connected follows each connection: the controller learns at once what is lacking here, and the hub where we are now (NET-1).
func (a *Agent) connected(ctx context.Context) {
	a.cfg.Machine.Overlay.Handshake()
	a.beat(ctx)
	a.outbox.hurry()
}

// send publishes with acknowledgement.
func (a *Agent) send(ctx context.Context, subject string, data []byte) error {
	link := a.linked()
	if link == nil {
		return appliance.Errorf(appliance.Unavailable, "not connected to the bus yet")
	}
	return link.PublishStored(ctx, subject, data)
}

func (a *Agent) linked() *bus.Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.link
}

// snapshot takes what an alive says from the loop's state.
func (a *Agent) snapshot() {
	about := a.state.applied.About
	if a.held.envelope == nil {
		about.Digest = "" // its bytes are lost here: they are needed again
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.alive = wire.Alive{Number: about.Number, Digest: about.Digest, Membership: a.member.number, Run: a.run,
		Machine: a.cfg.Machine.MachineID(), Capabilities: a.cfg.Machine.Capabilities()}
}

// heartbeat sends an alive at every beat, and one soon after the overlay's first handshake: until it is told, no path is known to lead here.
func (a *Agent) heartbeat(ctx context.Context) {
	tick := time.NewTicker(a.cfg.Beat)
	defer tick.Stop()
	pause := 100 * time.Millisecond
	look := time.NewTimer(pause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.beat(ctx)
		case <-look.C:
			if !a.handshake(ctx).IsZero() {
				a.beat(ctx)
				continue
			}
			pause = min(2*pause, a.cfg.Beat)
			look.Reset(pause)
		}
	}
}

// beat sends one alive. Its sequence rises within a run.
func (a *Agent) beat(ctx context.Context) {
	a.mu.Lock()
	a.beats++
	sequence, alive, link := a.beats, a.alive, a.link
	a.mu.Unlock()
	if link == nil {
		return
	}
	alive.Handshake = a.handshake(ctx)
	if err := a.publish(wire.KindAlive, wire.AliveSubject(a.cfg.Node), sequence, alive); err != nil && ctx.Err() == nil {
		a.cfg.Log.Warn("alive not sent", "err", err)
	}
}

// publish signs and sends what nobody stores.
func (a *Agent) publish(kind wire.Kind, subject string, sequence uint64, what any) error {
	link := a.linked()
	if link == nil {
		return appliance.Errorf(appliance.Unavailable, "not connected to the bus")
	}
	body, err := wire.Encode(what)
	if err != nil {
		return err
	}
	data, err := wire.Seal(wire.Header{Kind: kind, Version: wire.Version, Mesh: a.cfg.Mesh, From: string(a.cfg.Node),
		To: string(a.cfg.Mesh), Sequence: sequence, Time: now()}, body, a.cfg.Identity)
	if err != nil {
		return err
	}
	return link.Publish(subject, data)
}

// handshake is the overlay's last one with anybody; zero where there is none, or no overlay.
func (a *Agent) handshake(ctx context.Context) (last time.Time) {
	peers, err := a.cfg.Machine.Overlay.State(ctx)
	if err != nil {
		return last
	}
	for _, p := range peers {
		if p.Handshake.After(last) {
			last = p.Handshake
		}
	}
	return last.UTC().Truncate(time.Second)
}
