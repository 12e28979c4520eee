package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/disk"
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
	// Become fetches the binary a version-0 declaration names and turns into it; nil means that this agent is that binary already.
	Become  func(ctx context.Context, to wire.Replace) error
	Carried []wire.CarriedPort // what carried parts bind on this machine; stated once at start. Empty on most nodes.
	Secrets func() []string    // values that are struck out of every line of a log; may be nil
	Beat    time.Duration      // between two alives; 0 means 20 s
	Check   time.Duration      // between two looks at everything declared; 0 means 5 min
	// Below it only removals and revocations are carried out (DEC-14); nil means 1 GiB or the twentieth part, zero never.
	LeastFree *disk.Size
	Reserve   disk.Size // held in Dir for what is written there on a full disk; 0: none
	Log       *slog.Logger
}

// Agent is the loop's state. Only the loop touches engine, state and account; the heartbeat reads the snapshot.
type Agent struct {
	cfg          Config
	state        *state
	engine       *Engine
	watch        *watch
	outbox       *outbox
	sessions     *sessions
	declarations *latest
	memberships  *latest
	health       chan struct{}
	refusals     chan refusal
	notices      chan struct{}
	held         document // the last accepted declaration; without an envelope it is only known by its number
	members      *wire.Membership
	member       document // the envelope of members
	retry        time.Duration
	due          time.Time // of the next try; zero: nothing waits for one
	looked       time.Time // the end of the last pass over everything declared
	look         time.Time // when the next is due; zero: there is nothing to look at yet
	lookAsked    bool      // by a notice
	level        disk.Level
	spaceDue     time.Time // when the disk is looked at next
	unsaved      bool      // the account of the last apply is not on disk
	loose        bool      // the overlay is not what members say
	owes         bool      // a report could not be kept
	owed         *wire.Facts
	asked        []wire.CertificateRequest // said by this agent
	warnings     []wire.Warning
	standing     []wire.Warning       // the machine's own, as last told
	warned       map[string]time.Time // by code
	run          string
	removed      bool // this machine is a node no more

	mu     sync.Mutex
	alive  wire.Alive
	link   *bus.Link
	beats  uint64
	notice time.Time // of the last notice
	wishes wishes    // of notices
}

// Run is the agent's life; it ends with ctx or with an error that a restart will not mend.
func Run(ctx context.Context, cfg Config) error {
	a, err := start(ctx, cfg)
	if err != nil {
		return err
	}
	defer cfg.Machine.Overlay.Close()
	if !a.removed {
		a.live(ctx)
	}
	if a.removed {
		a.rest(ctx)
	}
	return nil
}

// live goes on until the context ends, or the mesh has removed the node.
func (a *Agent) live(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	go a.connect(ctx)
	var beside sync.WaitGroup
	defer beside.Wait() // nothing is written to the folder after the end
	defer cancel()
	beside.Go(func() { a.outbox.run(ctx) })
	beside.Go(func() { a.heartbeat(ctx) })
	a.resume(ctx) // may take its time; the mesh hears meanwhile that the node is there
	for ctx.Err() == nil && !a.removed {
		a.step(ctx)
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
	if cfg.Check == 0 {
		cfg.Check = 5 * time.Minute
	}
	a := &Agent{cfg: cfg, state: s, declarations: newLatest(), memberships: newLatest(), health: make(chan struct{}, 1),
		refusals: make(chan refusal, 16), notices: make(chan struct{}, 1), warned: map[string]time.Time{}, run: appliance.NewRunID()}
	s.reserve = disk.Ballast{Path: filepath.Join(cfg.Dir, "reserve"), Size: cfg.Reserve}
	a.engine = &Engine{machine: cfg.Machine, state: s, overlay: a.overlay, room: a.room, meanwhile: a.meanwhile}
	a.watch = newWatch(cfg.Machine, func() {
		select {
		case a.health <- struct{}{}:
		default:
		}
	})
	a.outbox = &outbox{believes: cfg.Believes, key: cfg.Identity, send: a.send, log: cfg.Log, state: s, wake: make(chan struct{}, 1)}
	a.sessions = newSessions(a)
	a.notice = s.applied.Noticed
	a.hold()
	a.snapshot()
	since, err := Removed(cfg.Dir)
	a.removed = !since.IsZero()
	return a, err
}

// hold takes up the last accepted membership and declaration. Where a declaration's bytes are lost, its number still holds against older
// ones, and the alive asks for it again.
func (a *Agent) hold() {
	if err := a.holdMembers(); err != nil {
		a.cfg.Log.Error("stored membership", "err", err)
	}
	data, err := a.state.stored("declaration")
	if err == nil && data != nil {
		a.held, err = a.cfg.open(data, wire.KindDeclaration, string(a.cfg.Node))
	}
	if err != nil {
		a.cfg.Log.Error("stored declaration", "err", err)
	}
	if about := a.state.applied.About; a.held.number.Compare(about.Number) < 0 {
		a.held = document{number: about.Number, digest: about.Digest}
	}
}

func (a *Agent) holdMembers() error {
	data, err := a.state.stored("membership")
	if err != nil || data == nil {
		return err
	}
	doc, err := a.cfg.open(data, wire.KindMembership, wire.Everybody)
	if err != nil {
		return err
	}
	m, err := membership.Parse(doc.body)
	if err != nil {
		return err
	}
	a.member, a.members = doc, &m
	return nil
}

// resume brings back what this node was before it stopped, without asking anybody: the overlay first, then everything else.
func (a *Agent) resume(ctx context.Context) {
	if a.members != nil {
		a.setOverlay(ctx)
	}
	a.engine.waking = true
	a.reapply(ctx)
	a.engine.waking = false
	a.stand()
	if len(a.cfg.Carried) > 0 {
		a.report(&wire.Facts{Carried: &a.cfg.Carried})
	}
}

// reapply makes the held declaration true once more.
func (a *Agent) reapply(ctx context.Context) {
	if a.held.envelope != nil {
		a.apply(ctx, a.held)
	}
}

// step waits for one thing and deals with it.
func (a *Agent) step(ctx context.Context) {
	var again, look <-chan time.Time
	if !a.due.IsZero() {
		again = time.After(time.Until(a.due))
	}
	if !a.look.IsZero() {
		look = time.After(time.Until(a.look))
	}
	select {
	case <-ctx.Done():
	case <-a.memberships.wake:
		a.hear(ctx)
	case <-a.declarations.wake:
		a.hear(ctx)
	case r := <-a.refusals:
		a.hear(ctx) // a good document that came before it does not end the warning
		a.refuse(r.what, r.err)
	case <-a.health:
		a.report(nil)
	case <-again:
		a.tryAgain(ctx)
	case <-a.notices:
		a.hearNotice(ctx)
	case <-look:
		a.check(ctx)
	case <-time.After(time.Until(a.spaceDue)):
		a.lookAtDisk(ctx)
	}
	a.stand()
}

// hear takes what the bus has brought: who is there first, then what shall be.
func (a *Agent) hear(ctx context.Context) {
	if doc, ok := a.memberships.take(); ok {
		a.hearMembership(ctx, doc)
	}
	if doc, ok := a.declarations.take(); ok {
		a.hearDeclaration(ctx, doc)
	}
}

// tryAgain makes up for what did not succeed.
func (a *Agent) tryAgain(ctx context.Context) {
	a.due = time.Time{}
	if a.loose {
		a.setOverlay(ctx)
	}
	if !rests(a.state.applied.Outcomes) {
		a.reapply(ctx)
	}
	if a.unsaved {
		a.saveAccount()
	}
	if a.owes {
		a.report(nil)
	}
}

// again asks for a further try, not later than after d and a little.
func (a *Agent) again(d time.Duration) {
	if due := time.Now().Add(d + rand.N(d/4+1)); a.due.IsZero() || due.Before(a.due) {
		a.due = due
	}
}

func (a *Agent) hearDeclaration(ctx context.Context, doc document) {
	if err := wire.Judge(a.held.number, a.held.digest, doc.number, doc.digest); err != nil {
		a.refuse(wire.KindDeclaration, err)
		return
	}
	if a.held.envelope != nil && doc.number == a.held.number && a.state.applied.About.Number == doc.number {
		a.report(nil) // sent again: what the controller lacks is the account
		return
	}
	if err := a.state.keep("declaration", doc.envelope); err != nil { // the number is on disk before anything is applied
		a.refuse(wire.KindDeclaration, err)
		return
	}
	a.accept(wire.KindDeclaration)
	a.held, a.retry = doc, 0
	a.apply(ctx, doc)
}

func (a *Agent) hearMembership(ctx context.Context, doc document) {
	if a.takeMembership(ctx, doc) && !rests(a.state.applied.Outcomes) {
		a.reapply(ctx) // what failed may have waited for a member
	}
}

// takeMembership says whether it is another one than before.
func (a *Agent) takeMembership(ctx context.Context, doc document) bool {
	defer a.outbox.hurry() // who says it has raised the streams
	err := wire.Judge(a.member.number, a.member.digest, doc.number, doc.digest)
	if err == nil && a.members != nil && doc.number == a.member.number {
		a.beat(ctx) // sent again by a controller that came back: it wants to know who is there
		return false
	}
	var m wire.Membership
	if err == nil {
		m, err = membership.Parse(doc.body)
	}
	if err == nil {
		err = a.state.keep("membership", doc.envelope)
	}
	if err != nil {
		a.refuse(wire.KindMembership, err)
		return false
	}
	a.accept(wire.KindMembership)
	a.member, a.members = doc, &m
	a.setOverlay(ctx)
	a.snapshot()
	return true
}

// setOverlay brings the overlay in line with the membership where it is declared. What fails is tried again.
func (a *Agent) setOverlay(ctx context.Context) {
	a.loose = false
	if !slices.ContainsFunc(a.state.applied.Records, func(r Record) bool { return r.Resource.Kind == wire.Overlay }) {
		return
	}
	want, err := a.overlay()
	if err == nil {
		err = a.cfg.Machine.Overlay.Set(ctx, want)
	}
	if err != nil {
		a.cfg.Log.Error("set overlay", "membership", a.member.number, "err", err)
		a.loose = true
		a.again(5 * time.Second)
	}
}

func (a *Agent) overlay() (host.OverlayState, error) {
	if a.members == nil {
		return host.OverlayState{}, appliance.Errorf(appliance.NotReady, "raise overlay: no membership has arrived yet")
	}
	return membership.Peers(*a.members, a.cfg.Node)
}

// apply makes a declaration true and gives the account of it.
func (a *Agent) apply(ctx context.Context, doc document) {
	defer a.lookLater()
	outcomes, desired, err := a.carryOut(ctx, doc)
	if ctx.Err() != nil {
		return
	}
	if doc.version == 0 && err == nil {
		a.retry = 0
		return // there is nothing to account for: the next alive says what this binary understands, and is answered with the real one
	}
	if err != nil {
		a.cfg.Log.Error("apply declaration", "number", doc.number, "err", err)
		outcomes = append(outcomes, wire.Outcome{ID: "declaration", Status: wire.Refused, Step: "read", Error: err.Error()})
	}
	about := wire.About{Number: doc.number, Digest: doc.digest}
	same := a.state.applied.About == about
	if same {
		outcomes = sum(a.state.applied.Outcomes, outcomes)
		same = sameAccount(a.state.applied.Outcomes, outcomes)
	}
	a.state.applied.About = about
	a.state.applied.Outcomes = outcomes
	a.snapshot()
	a.watch.set(ctx, desired)
	if clean(outcomes) && !a.watch.still() {
		a.collect(ctx, desired)
	}
	if rests(outcomes) {
		a.retry = 0
	} else {
		a.retry = min(max(time.Second, 2*a.retry), 5*time.Minute)
		a.again(a.retry)
	}
	if facts, news := a.asks(ctx), a.judgeDisk(); news || !same || facts != nil {
		a.report(facts)
	}
	a.saveAccount()
}

// saveAccount tries again what fails. Lost, the account is made again by applying the stored declaration.
func (a *Agent) saveAccount() {
	err := a.state.saveApplied()
	if a.unsaved = err != nil; a.unsaved {
		a.cfg.Log.Error("keep account", "err", err)
		a.again(5 * time.Second)
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
	a.engine.adopted = content.Adopted
	if a.watch.rest(content.Hold); content.Hold {
		outcomes, err := a.engine.look(ctx, content.Resources)
		return outcomes, a.engine.running(), err
	}
	outcomes, err := a.engine.apply(ctx, content.Resources, false)
	return outcomes, content.Resources, err
}

func sameAccount(a, b []wire.Outcome) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return errors.Join(err1, err2) == nil && string(x) == string(y)
}

// report puts the present account into the outbox, with facts where given. What cannot be kept now is said later.
func (a *Agent) report(facts *wire.Facts) {
	facts = mergeFacts(a.owed, facts)
	if a.state.applied.About.Digest == "" && facts == nil {
		return // nothing to account for yet: that would be a heartbeat
	}
	r := wire.Report{Version: wire.Version, Facts: facts, Warnings: slices.Concat(a.warnings, a.standing)}
	if a.state.applied.About.Digest != "" {
		about := a.state.applied.About
		r.About, r.Outcomes, r.Health, r.Kept = &about, a.state.applied.Outcomes, a.watch.report(), keptData(a.state.applied.Records)
	}
	a.strikeReport(&r)
	if err := a.outbox.add(r); err != nil {
		a.cfg.Log.Error("keep report", "err", err)
		a.owes, a.owed = true, facts
		a.again(5 * time.Second)
		return
	}
	a.owes, a.owed = false, nil
}

// stand tells the machine's standing conditions when they are others than last told.
func (a *Agent) stand() {
	if a.cfg.Machine.Warnings == nil {
		return
	}
	if now := a.cfg.Machine.Warnings(); !slices.Equal(now, a.standing) {
		a.standing = now
		a.report(nil)
	}
}
