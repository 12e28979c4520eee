package agent

import (
	"context"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// look observes everything declared and changes nothing (OPS-3): what is as it was made is unchanged, everything else waits, and where it
// has drifted that is named.
func (e *Engine) look(ctx context.Context, desired []wire.Resource) ([]wire.Outcome, error) {
	var outcomes []wire.Outcome
	for _, rec := range removals(e.state.applied.Records, desired) {
		r := rec.Resource
		outcomes = append(outcomes, wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Waiting, Step: stepHold, Error: "it leaves when the node is resumed"})
	}
	for _, r := range desired {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		outcomes = append(outcomes, e.seen(ctx, r))
	}
	return outcomes, nil
}

// seen is the account of a resource that is only looked at.
func (e *Engine) seen(ctx context.Context, r wire.Resource) wire.Outcome {
	o := wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Unchanged}
	effector, err := e.effector(r.Kind)
	if err != nil {
		o.Status, o.Step, o.Error = wire.Refused, "choose", err.Error()
		return o
	}
	seen, err := effector.Observe(ctx, r)
	have := e.state.record(r.ID)
	switch {
	case err != nil && appliance.KindOf(err) == appliance.NotReady:
		o.Status, o.Step, o.Error = wire.Waiting, stepHold, err.Error()
	case err != nil:
		o.Status, o.Step, o.Error = wire.Failed, "observe", err.Error()
	case !seen.Matches || !have.made(r):
		o.Status, o.Step, o.Error = wire.Waiting, stepHold, "the node is held"
		o.Drift = e.drifted(r, have, seen)
	}
	return o
}

// made says whether this is how the resource was last made for a declaration.
func (r *Record) made(as wire.Resource) bool {
	return r != nil && !r.Kept && r.Declared && sameResource(r.Resource, as)
}

// running is what was last made and declared: what a held node watches, whatever it was told since.
func (e *Engine) running() (all []wire.Resource) {
	for _, rec := range e.state.applied.Records {
		if rec.Declared {
			all = append(all, rec.Resource)
		}
	}
	return all
}

// Steps of outcomes that wait for a look, and for nothing that is tried before.
const (
	stepHold  = "hold"
	stepDrift = "drift"
)

// rests says whether nothing has to be tried before the next look.
func rests(outcomes []wire.Outcome) bool {
	for _, o := range outcomes {
		if !clean([]wire.Outcome{o}) && !(o.Status == wire.Waiting && (o.Step == stepHold || o.Step == stepDrift)) {
			return false
		}
	}
	return true
}
