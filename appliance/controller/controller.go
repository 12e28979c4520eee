// Package controller is the process that hears nodes and operators, keeps the records, and sends what follows from them. It owns the
// loops and their order; what is decided in them belongs to resolve, render, enrol, busauth, membership and operators. Whatever decides
// anything must not be put here.
package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// Config is what Run needs; every field is required but Warnings, Collect and Scrub.
type Config struct {
	Store     *store.Store
	Link      *bus.Link // the controller's user in account CONTROL
	Keys      identity.MeshKeys
	Authority *pki.Authority
	SetUsers  func(file []byte) error // hands a composed users file to the broker
	Downloads *downloads.Server       // where agents of another version and bare machines get the binary
	Artifacts Artifacts               // the artifact store
	Published func(membership []byte) // told each membership, the last one at start too; nil: nobody
	Warnings  func() []wire.Warning   // of the hub itself, beside what its agent reports; nil: none
	Collect   time.Duration           // between two collections of artifacts; 0: an hour
	Scrub     time.Duration           // between two scrubs of the artifact store; 0: a day
	Log       *slog.Logger
}

// Controller is the state of the loops. The records are the truth; the roster is what the loops need of them at every message, also
// while the store is away.
type Controller struct {
	cfg  Config
	log  *slog.Logger
	mesh store.Mesh

	roster  roster
	members members
	due     due
	waiting waiting // for their next certificate
	tokens  limits
	turns   turns

	sessions sessions

	composing sync.Mutex // one composition at a time: users, membership, declarations
	notifying sync.Mutex // one notice at a time
	notified  time.Time  // of the last
	seen      chan store.Seen
	holds     chan struct{} // one has begun
}

// Run is the controller's life once the store stands and the mesh is founded. It ends with ctx, or with an error that starting anew may mend.
func Run(ctx context.Context, cfg Config) error {
	c := &Controller{cfg: cfg, log: cfg.Log, seen: make(chan store.Seen, 4096), holds: make(chan struct{}, 1), turns: newTurns(), due: newDue()}
	c.members.dirty = make(chan struct{}, 1)
	if err := c.start(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // the link lives on
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	follow := func(consumer string, handle func(context.Context, bus.Message) bus.Verdict) {
		g.Go(func() error { return c.cfg.Link.Follow(ctx, consumer, handle) })
	}
	follow("reports", c.hearReport)
	follow("enrolments", c.hearEnrolment)
	follow("rekeys", c.hearRekey)
	g.Go(func() error { return c.recordSeen(ctx) })
	g.Go(func() error { return c.publishMembers(ctx) })
	g.Go(func() error { return c.catchUp(ctx) })
	g.Go(func() error { return c.watchHolds(ctx) })
	c.cfg.Artifacts.Follow(c.declaredArtifacts)
	g.Go(func() error { return c.collectArtifacts(ctx) })
	g.Go(func() error { return c.scrubArtifacts(ctx) })
	g.Go(func() error { return c.forget(ctx) })
	hear := func(subject string, handle func(context.Context, bus.Message)) error {
		stop, err := c.cfg.Link.Subscribe(subject, func(m bus.Message) { handle(ctx, m) })
		if err == nil {
			context.AfterFunc(ctx, stop)
		}
		return err
	}
	c.cfg.Link.OnFlood(func(subject string) { c.hearFlood(ctx, subject) })
	if err := hear(wire.SubjectAlives, c.hearAlive); err != nil {
		return err
	}
	if err := hear(wire.SubjectOutputs, c.hearOutput); err != nil {
		return err
	}
	if err := hear(wire.SubjectRequests, c.hearRequest); err != nil {
		return err
	}
	c.callOut()
	c.log.Info("controller up", "mesh", c.mesh.ID, "nodes", c.roster.size())
	return g.Wait()
}

// start reads the records and brings the bus in line with them.
func (c *Controller) start(ctx context.Context) (err error) {
	if c.mesh, err = c.cfg.Store.Mesh(ctx); err != nil {
		return err
	}
	if err := c.roster.load(ctx, c.cfg.Store); err != nil {
		return err
	}
	if err := c.composeUsers(ctx); err != nil {
		return err
	}
	if err := bus.Raise(ctx, c.cfg.Link); err != nil {
		return fmt.Errorf("raise streams: %w", err)
	}
	if err := c.members.load(ctx, c.cfg.Store); err != nil {
		return err
	}
	c.published(c.members.after(appliance.Number{}))
	if err := c.composeMembers(ctx); err != nil {
		return err
	}
	return c.settle(ctx)
}

// callOut asks every node for an alive: what was said while nobody listened would else be missed until the next one is due.
func (c *Controller) callOut() {
	if envelope := c.members.after(appliance.Number{}); envelope != nil {
		c.publish(wire.SubjectMembership, envelope)
	}
}

// settle makes up for what a kill may have left between an enrolment and its first declaration, or between a change and its sending.
// A node whose declaration cannot be made keeps nobody else from theirs.
func (c *Controller) settle(ctx context.Context) error {
	if err := c.approveFirst(ctx); err != nil {
		return err
	}
	err := c.declare(ctx, nil)
	if err != nil && !store.IsUnavailable(err) {
		c.log.Error("settle", "err", err)
		return nil
	}
	return err
}

// header is the envelope of something the mesh says.
func (c *Controller) header(kind wire.Kind, to string) wire.Header {
	return wire.Header{Kind: kind, Version: wire.Version, Mesh: c.mesh.ID, From: string(c.mesh.ID), To: to, Time: time.Now()}
}

// judged turns the error of a recording into what becomes of the message (BUS-12).
func (c *Controller) judged(what string, err error) bus.Verdict {
	switch {
	case err == nil:
		return bus.Done()
	case store.IsUnavailable(err):
		return bus.StoreAway(time.Second)
	case appliance.KindOf(err) == appliance.Invalid || appliance.KindOf(err) == appliance.Denied:
		return bus.Dead(fmt.Sprintf("%s: %v", what, err))
	}
	c.log.Error(what, "err", err)
	return bus.Later(2*time.Second, fmt.Sprintf("%s: %v", what, err))
}

// by is a change of the mesh's own.
func own() store.By { return store.By{Who: "controller", At: time.Now()} }
