package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/wire"
)

// Config is what Run needs. Every field is required unless it says otherwise.
type Config struct {
	Believes
	Identity ed25519.PrivateKey
	Dir      string // the node folder
	Machine  host.Machine
	// Connect opens the bus and keeps it open; connected is called after each connection, also the later ones.
	Connect func(ctx context.Context, connected func()) (*bus.Link, error)
	// Become fetches the binary a version-0 declaration names and turns into it; it returns only an error.
	Become  func(ctx context.Context, to wire.Replace) error
	Carried []wire.CarriedPort // what carried parts bind on this machine; stated once at start. Empty on most nodes.
	Beat    time.Duration      // between two alives; 0 means 20 s
	Log     *slog.Logger
}

// Agent is the loop's state. Only the loop touches engine, state and account; the heartbeat reads the snapshot.
type Agent struct {
	cfg          Config
	state        *state
	engine       *Engine
	watch        *watch
	outbox       *outbox
	declarations *latest
	memberships  *latest
	health       chan struct{}
	members      *wire.Membership
	member       document // the envelope of members
	retry        time.Duration
	warnings     []wire.Warning
	run          string

	mu    sync.Mutex
	alive wire.Alive
	link  *bus.Link
	beats uint64
}

// Run is the agent's life; it ends with ctx or with an error that a restart will not mend.
func Run(ctx context.Context, cfg Config) error {
	a, err := start(ctx, cfg)
	if err != nil {
		return err
	}
	defer cfg.Machine.Overlay.Close()
	a.resume(ctx)
	go a.outbox.run(ctx)
	go a.heartbeat(ctx)
	go a.connect(ctx)
	for {
		if err := a.step(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func start(ctx context.Context, cfg Config) (*Agent, error) {
	s, err := openState(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.Beat == 0 {
		cfg.Beat = 20 * time.Second
	}
	a := &Agent{cfg: cfg, state: s, declarations: newLatest(), memberships: newLatest(), health: make(chan struct{}, 1), run: appliance.NewRunID()}
	a.engine = &Engine{machine: cfg.Machine, state: s, overlay: a.overlay}
	a.watch = newWatch(cfg.Machine, func() {
		select {
		case a.health <- struct{}{}:
		default:
		}
	})
	a.outbox = &outbox{believes: cfg.Believes, key: cfg.Identity, send: a.send, log: cfg.Log, state: s, wake: make(chan struct{}, 1)}
	a.snapshot()
	return a, nil
}

// resume brings back what this node was before it stopped, without asking anybody: the overlay first, then everything else.
func (a *Agent) resume(ctx context.Context) {
	if data, err := a.state.stored("membership"); err == nil && data != nil {
		a.member, err = a.cfg.open(data, wire.KindMembership, wire.Everybody)
		if err == nil {
			err = a.takeMembers(ctx)
		}
		if err != nil {
			a.cfg.Log.Error("stored membership", "err", err)
		}
	}
	if doc, ok := a.stored(); ok {
		a.apply(ctx, doc)
	}
	if len(a.cfg.Carried) > 0 {
		a.report(&wire.Facts{Carried: &a.cfg.Carried})
	}
}

// stored gives the last accepted declaration.
func (a *Agent) stored() (document, bool) {
	data, err := a.state.stored("declaration")
	if err != nil || data == nil {
		return document{}, false
	}
	doc, err := a.cfg.open(data, wire.KindDeclaration, string(a.cfg.Node))
	if err != nil {
		a.cfg.Log.Error("stored declaration", "err", err)
		return document{}, false
	}
	return doc, true
}

// step waits for one thing and deals with it.
func (a *Agent) step(ctx context.Context) error {
	var again <-chan time.Time
	if a.retry > 0 {
		again = time.After(a.retry + rand.N(a.retry/4+1))
	}
	select {
	case <-ctx.Done():
	case <-a.memberships.wake:
		if data := a.memberships.take(); data != nil {
			a.hearMembership(ctx, data)
		}
	case <-a.declarations.wake:
		if data := a.declarations.take(); data != nil {
			a.hearDeclaration(ctx, data)
		}
	case <-a.health:
		a.report(nil)
	case <-again:
		if doc, ok := a.stored(); ok {
			a.apply(ctx, doc)
		}
	}
	return nil
}

func (a *Agent) hearDeclaration(ctx context.Context, data []byte) {
	doc, err := a.cfg.open(data, wire.KindDeclaration, string(a.cfg.Node))
	if err != nil {
		a.refuse("declaration", err)
		return
	}
	have, known := a.stored()
	if known {
		if err := wire.Judge(have.number, have.digest, doc.number, doc.digest); err != nil {
			a.refuse("declaration", err)
			return
		}
	}
	if known && doc.number == have.number && a.state.applied.About.Number == have.number {
		a.report(nil) // sent again: what the controller lacks is the account
		return
	}
	if err := a.state.keep("declaration", data); err != nil { // the number is on disk before anything is applied
		a.cfg.Log.Error("keep declaration", "err", err)
		return
	}
	a.retry = 0
	a.apply(ctx, doc)
}

func (a *Agent) hearMembership(ctx context.Context, data []byte) {
	doc, err := a.cfg.open(data, wire.KindMembership, wire.Everybody)
	if err != nil {
		a.refuse("membership", err)
		return
	}
	if err := wire.Judge(a.member.number, a.member.digest, doc.number, doc.digest); err != nil {
		a.refuse("membership", err)
		return
	}
	if a.members != nil && doc.number == a.member.number {
		a.beat(ctx) // sent again by a controller that came back: it wants to know who is there
		return
	}
	if err := a.state.keep("membership", data); err != nil {
		a.cfg.Log.Error("keep membership", "err", err)
		return
	}
	a.member = doc
	if err := a.takeMembers(ctx); err != nil {
		a.refuse("membership", err)
	}
	a.snapshot()
	if doc, ok := a.stored(); ok && !clean(a.state.applied.Outcomes) {
		a.apply(ctx, doc) // what failed may have waited for a member
	}
}

// takeMembers reads the membership and brings the overlay in line where it is declared.
func (a *Agent) takeMembers(ctx context.Context) error {
	var m wire.Membership
	if err := wire.Decode(a.member.body, &m); err != nil {
		return appliance.Errorf(appliance.Invalid, "read membership: %w", err)
	}
	a.members = &m
	for _, r := range a.state.applied.Records {
		if r.Resource.Kind == wire.Overlay {
			want, err := a.overlay()
			if err != nil {
				return err
			}
			return a.cfg.Machine.Overlay.Set(ctx, want)
		}
	}
	return nil
}

func (a *Agent) overlay() (host.OverlayState, error) {
	if a.members == nil {
		return host.OverlayState{}, appliance.Errorf(appliance.NotReady, "raise overlay: no membership has arrived yet")
	}
	return membership.Peers(*a.members, a.cfg.Node)
}

// apply makes a declaration true and gives the account of it.
func (a *Agent) apply(ctx context.Context, doc document) {
	outcomes, desired, err := a.carryOut(ctx, doc)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		a.cfg.Log.Error("apply declaration", "number", doc.number, "err", err)
		outcomes = append(outcomes, wire.Outcome{ID: "declaration", Status: wire.Refused, Step: "read", Error: err.Error()})
	}
	same := a.state.applied.About == wire.About{Number: doc.number, Digest: doc.digest} && sameAccount(a.state.applied.Outcomes, outcomes)
	a.state.applied.About = wire.About{Number: doc.number, Digest: doc.digest}
	a.state.applied.Outcomes = outcomes
	a.snapshot()
	a.watch.set(ctx, desired)
	if clean(outcomes) {
		a.retry = 0
	} else {
		a.retry = min(max(time.Second, 2*a.retry), 5*time.Minute)
	}
	if !same {
		a.report(nil)
	}
	if err := a.state.saveApplied(); err != nil { // lost, it is made again by applying the stored declaration
		a.cfg.Log.Error("keep account", "err", err)
	}
}

func (a *Agent) carryOut(ctx context.Context, doc document) ([]wire.Outcome, []wire.Resource, error) {
	if doc.version == 0 {
		var to wire.Replace
		if err := json.Unmarshal(doc.body, &to); err != nil {
			return nil, nil, appliance.Errorf(appliance.Invalid, "read declaration: %w", err)
		}
		return nil, nil, a.cfg.Become(ctx, to)
	}
	content, err := decodeContent(doc.body)
	if err != nil {
		return nil, nil, err
	}
	outcomes, err := a.engine.apply(ctx, content.Resources, false)
	return outcomes, content.Resources, err
}

func sameAccount(a, b []wire.Outcome) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return errors.Join(err1, err2) == nil && string(x) == string(y)
}

// report puts the present account into the outbox, with facts where given.
func (a *Agent) report(facts *wire.Facts) {
	if a.state.applied.About.Digest == "" && facts == nil {
		return // nothing to account for yet: that would be a heartbeat
	}
	r := wire.Report{Version: wire.Version, Facts: facts, Warnings: a.warnings}
	if a.state.applied.About.Digest != "" {
		about := a.state.applied.About
		r.About, r.Outcomes, r.Health, r.Kept = &about, a.state.applied.Outcomes, a.watch.report(), keptData(a.state.applied.Records)
	}
	if err := a.outbox.add(r); err != nil {
		a.cfg.Log.Error("keep report", "err", err)
	}
}

// refuse says that a document was not accepted. Nothing changed; the next report carries the warning.
func (a *Agent) refuse(what string, err error) {
	if appliance.IsReason(err, wire.Superseded) {
		a.cfg.Log.Debug("superseded", "what", what, "err", err)
		return
	}
	a.cfg.Log.Error("refused", "what", what, "err", err)
	a.warnings = []wire.Warning{{Code: what + "-refused", Severity: "error", Text: err.Error(), Remedy: "if nobody tampered with the bus, push once more"}}
	a.report(nil)
}
