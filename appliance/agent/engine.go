package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// logLines is how many of a process's last lines go into a failed outcome.
const logLines = 10

// Engine makes resources true on one machine and keeps the record of what it did. It serves declarations and genesis alike.
type Engine struct {
	machine host.Machine
	state   *state
	overlay func() (host.OverlayState, error) // what the overlay shall be while it is declared
	room    func() error                      // why nothing new may be made here now; may be nil
	told    func(wire.Outcome)                // progress; may be nil
	waking  bool                              // the first pass after the agent started
	looking bool                              // a pass that nothing but its time, or a person, asked for
	adopted bool                              // the node reports what it found and leaves it (NODE-7)

	meanwhile func(ctx context.Context, step func(context.Context) error) error // runs a step that may take long; may be nil
}

// Raise applies resources as carried: raised from the binary, before any declaration. It returns the first failure as an error.
func Raise(ctx context.Context, machine host.Machine, dir string, resources []wire.Resource, told func(wire.Outcome)) error {
	s, err := openState(dir)
	if err != nil {
		return err
	}
	e := &Engine{machine: machine, state: s, told: told}
	outcomes, err := e.apply(ctx, resources, true)
	if err == nil {
		err = s.saveApplied()
	}
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		if o.Status == wire.Failed || o.Status == wire.Refused {
			return appliance.Errorf(appliance.Unavailable, "raise %s: %s: %s", o.ID, o.Step, o.Error)
		}
	}
	return nil
}

// apply makes desired true, in order, after removing what left. The caller saves the records afterwards; only a first touch is on
// disk before it happens, since everything else is found again by looking. The error is the end of ctx; what became of resources is in
// the outcomes.
func (e *Engine) apply(ctx context.Context, desired []wire.Resource, carried bool) ([]wire.Outcome, error) {
	var outcomes []wire.Outcome
	done := map[string]wire.Status{}
	note := func(o wire.Outcome) {
		outcomes = append(outcomes, o)
		if done[o.ID] = o.Status; o.Status == wire.Waiting && o.Step == stepDrift {
			done[o.ID] = wire.Unchanged // it is there: what depends on it goes on
		}
		if e.told != nil {
			e.told(o)
		}
	}
	if !carried {
		e.remove(ctx, desired, note)
		e.measure(ctx)
	}
	halted := e.halt(ctx, desired)
	for _, r := range desired {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if o, ok := halted[r.ID]; ok {
			note(o)
			continue
		}
		if id := blocked(r, done); id != "" {
			o := wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Failed, Step: "wait", Error: "depends on " + id + ", which did not come about"}
			if done[id] == wire.Waiting {
				o.Status, o.Error = wire.Waiting, "depends on "+id+", which waits"
			}
			note(o)
			continue
		}
		note(e.make(ctx, r, desired, carried))
	}
	for i := range outcomes {
		e.act(ctx, desired, &outcomes[i], done)
	}
	return outcomes, nil
}

// halt stops what was made and shall not run any more, last declared first, whatever becomes of what it depends on (OPS-1). What does not
// succeed here is tried again in its turn.
func (e *Engine) halt(ctx context.Context, desired []wire.Resource) map[string]wire.Outcome {
	halted := map[string]wire.Outcome{}
	for _, r := range slices.Backward(desired) {
		if ctx.Err() != nil || !stopped(r) || e.state.record(r.ID) == nil {
			continue
		}
		if o := e.make(ctx, r, desired, false); made(o) {
			halted[r.ID] = o
		}
	}
	return halted
}

// make brings one resource about.
func (e *Engine) make(ctx context.Context, r wire.Resource, desired []wire.Resource, carried bool) wire.Outcome {
	o := wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Unchanged}
	fail := func(step string, err error) wire.Outcome {
		o.Status, o.Step, o.Error = wire.Failed, step, err.Error()
		if appliance.KindOf(err) == appliance.NotReady {
			o.Status = wire.Waiting
		} else if runner := e.machine.Runner(r.Kind); runner != nil {
			o.Log, _ = runner.Log(ctx, r, logLines)
		}
		return o
	}
	effector, err := e.effector(r.Kind)
	if err != nil {
		o.Status, o.Step, o.Error = wire.Refused, "choose", err.Error()
		return o
	}
	seen, err := effector.Observe(ctx, r)
	if err != nil {
		return fail("observe", err)
	}
	have := e.state.record(r.ID)
	if why := e.found(r, have, seen); why != "" && !carried {
		o.Status, o.Step, o.Error = wire.Refused, wire.StepFound, why
		return o
	}
	known := have != nil && !have.Kept && sameResource(have.Resource, r)
	if seen.Matches && known && (have.Declared || carried) && (have.Carried || !carried) {
		return o
	}
	if !known && e.room != nil && !stopped(r) { // what was made before is put right all the same
		if err := e.room(); err != nil {
			o.Status, o.Step, o.Error = wire.Refused, "disk", err.Error()
			return o
		}
	}
	if !carried {
		o.Drift = e.drifted(r, have, seen)
	}
	if e.untold(o) {
		o.Status, o.Step, o.Error = wire.Waiting, stepDrift, "it is put right at the next look, or by `mesh check`"
		return o
	}
	var undo json.RawMessage
	before := slices.Clone(e.state.applied.Records)
	if have == nil {
		switch other := e.state.sharer(r); {
		case other != nil && other.Kept:
			e.state.bequeath(other.Resource.ID, r)
		case other != nil && seen.Present:
			undo = other.Undo // what is there now is ours
		default:
			if undo, err = effector.Before(ctx, r); err != nil {
				return fail("look before", err)
			}
		}
	}
	if err := e.begin(r, undo, carried, !seen.Matches && e.owe(desired, r.ID)); err != nil {
		e.state.applied.Records = before // what is not on disk is not begun (DEC-14)
		return fail("record", err)
	}
	do := func(ctx context.Context) error { return effector.Do(ctx, r) }
	if pulls(r.Kind) && e.meanwhile != nil {
		err = e.meanwhile(ctx, do)
	} else {
		err = do(ctx)
	}
	if err != nil {
		return fail("do", err)
	}
	if !seen.Matches {
		o.Status = wire.Applied
		if o.Drift != "" {
			o.Step = stepDrift
		}
		e.state.record(r.ID).Owes = "" // just started, it has taken up everything
	}
	return o
}

// owe notes that processes have something to do once the resource has changed; it says whether that was news.
func (e *Engine) owe(desired []wire.Resource, changed string) (news bool) {
	for id, action := range watchers(desired, changed) {
		if p := e.state.record(id); p != nil && p.Owes != action && p.Owes != "restart" {
			p.Owes, news = action, true
		}
	}
	return news
}

// begin records that r is about to be made. At the first touch it is on disk, with what was there before, or nothing is done: a killed
// agent would not know what it had begun, and take its own work for the machine's. So is what processes owe because of it.
func (e *Engine) begin(r wire.Resource, undo json.RawMessage, carried, owing bool) error {
	rec := e.state.record(r.ID)
	first := rec == nil
	if first {
		e.state.applied.Records = append(e.state.applied.Records, Record{Undo: undo})
		rec = &e.state.applied.Records[len(e.state.applied.Records)-1]
	}
	rec.Resource, rec.Kept, rec.KeptAt = r, false, time.Time{}
	rec.Carried = rec.Carried || carried
	rec.Declared = rec.Declared || !carried
	if !first && !owing {
		return nil
	}
	return e.state.saveApplied()
}

// remove takes away what left the declaration, last made first.
func (e *Engine) remove(ctx context.Context, desired []wire.Resource, note func(wire.Outcome)) {
	var stuck []wire.Resource
	for _, rec := range removals(e.state.applied.Records, desired) {
		if ctx.Err() != nil {
			return
		}
		r := rec.Resource
		o := wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Removed}
		effector, err := e.effector(r.Kind)
		if err != nil {
			o.Status, o.Step, o.Error = wire.Refused, "choose", err.Error()
			note(o)
			continue
		}
		if i := slices.IndexFunc(stuck, func(s wire.Resource) bool { return slices.Contains(s.After, r.ID) }); i >= 0 {
			o.Status, o.Step, o.Error = wire.Failed, "wait", stuck[i].ID+" depends on it, and is not removed yet"
			stuck = append(stuck, r)
			note(o)
			continue
		}
		if to, ok := heir(r, e.state.applied.Records, desired); ok {
			o.Step = "shared with " + to.ID
			e.state.bequeath(r.ID, to)
			note(o)
			continue
		}
		if by := needed(r, e.state.applied.Records, desired); by != "" { // until that leaves, too
			o.Status, o.Step = wire.StatusKept, "needed by "+by
			e.state.record(r.ID).Declared = false
			note(o)
			continue
		}
		kept := userStays(r, e.state.applied.Records)
		if !kept {
			kept, err = effector.Undo(ctx, r, rec.Undo)
		}
		switch {
		case err != nil:
			o.Status, o.Step, o.Error = wire.Failed, "undo", err.Error()
			stuck = append(stuck, r)
			note(o)
			continue
		case kept:
			o.Status = wire.StatusKept
			e.state.record(r.ID).Kept = true
			e.state.record(r.ID).Declared = false
		default:
			e.state.forget(r.ID)
		}
		note(o)
	}
	for i, rec := range e.state.applied.Records { // carried resources that left stay, but are no longer declared
		if rec.Carried && rec.Declared && !slices.ContainsFunc(desired, func(r wire.Resource) bool { return r.ID == rec.Resource.ID }) {
			e.state.applied.Records[i].Declared = false
		}
	}
}

// act has a process take up what changed beneath it, unless what it watches did not come about. A failure is the process's, and what
// it owes stays owed.
func (e *Engine) act(ctx context.Context, desired []wire.Resource, o *wire.Outcome, done map[string]wire.Status) {
	rec := e.state.record(o.ID)
	i := slices.IndexFunc(desired, func(r wire.Resource) bool { return r.ID == o.ID })
	if i < 0 || rec == nil || rec.Owes == "" || o.Status != wire.Unchanged || waits(desired[i], done) {
		return
	}
	if stopped(desired[i]) { // once started, it takes up everything
		rec.Owes = ""
		return
	}
	o.Step = rec.Owes
	runner := e.machine.Runner(o.Kind)
	if err := runner.Act(ctx, desired[i], rec.Owes); err != nil {
		o.Status, o.Error = wire.Failed, err.Error()
		o.Log, _ = runner.Log(ctx, desired[i], logLines)
		return
	}
	o.Status, rec.Owes = wire.Applied, ""
}

func (e *Engine) effector(kind wire.ResourceKind) (host.Effector, error) {
	switch {
	case kind.Runs():
		if runner := e.machine.Runner(kind); runner != nil {
			return runner, nil
		}
	case kind == wire.Overlay:
		if e.overlay != nil {
			return overlayEffector{e.machine.Overlay, e.overlay}, nil
		}
	default:
		if f, ok := e.machine.Effectors[kind]; ok {
			return f, nil
		}
	}
	return nil, appliance.Errorf(appliance.Invalid, "resource kind %q is not carried out here", kind)
}

// overlayEffector makes the device what the membership says; the declaration says only that the node takes part (NET-11).
type overlayEffector struct {
	device host.Overlay
	want   func() (host.OverlayState, error)
}

func (o overlayEffector) Observe(ctx context.Context, _ wire.Resource) (host.Observation, error) {
	peers, err := o.device.State(ctx)
	if err != nil {
		return host.Observation{Differs: err.Error()}, nil // not up
	}
	return host.Observation{Present: peers != nil, Matches: peers != nil}, nil
}

func (o overlayEffector) Before(context.Context, wire.Resource) (json.RawMessage, error) {
	return nil, nil
}

func (o overlayEffector) Do(ctx context.Context, _ wire.Resource) error {
	want, err := o.want()
	if err != nil {
		return err
	}
	return o.device.Set(ctx, want)
}

func (o overlayEffector) Undo(ctx context.Context, _ wire.Resource, _ json.RawMessage) (bool, error) {
	return false, o.device.Set(ctx, host.OverlayState{})
}

func sameResource(a, b wire.Resource) bool {
	return a.ID == b.ID && a.Kind == b.Kind && a.Instance == b.Instance && bytes.Equal(a.Spec, b.Spec)
}

// clean says whether every outcome is good.
func clean(outcomes []wire.Outcome) bool {
	return !slices.ContainsFunc(outcomes, func(o wire.Outcome) bool {
		return o.Status == wire.Failed || o.Status == wire.Refused || o.Status == wire.Waiting
	})
}

// decodeContent reads a declaration's body for this version.
func decodeContent(body []byte) (wire.Content, error) {
	var c wire.Content
	if err := wire.Decode(body, &c); err != nil {
		return c, appliance.Errorf(appliance.Invalid, "read declaration: %w", err)
	}
	seen := map[string]bool{}
	for _, r := range c.Resources {
		switch {
		case r.ID == "" || r.Instance == "" || seen[r.ID]:
			return c, appliance.Errorf(appliance.Invalid, "read declaration: resource id %s is empty or twice there", appliance.Quote(r.ID))
		case slices.ContainsFunc(r.After, func(id string) bool { return !seen[id] }):
			return c, appliance.Errorf(appliance.Invalid, "read declaration: %s comes after something that is not before it", r.ID)
		}
		seen[r.ID] = true
	}
	if c.Version != wire.Version {
		return c, fmt.Errorf("read declaration: %w", appliance.Errorf(appliance.Invalid, "version %d, this agent reads %d", c.Version, wire.Version))
	}
	return c, nil
}
