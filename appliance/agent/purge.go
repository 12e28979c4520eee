package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// kindPurge is what a refusal to purge is warned of under.
const kindPurge wire.Kind = "purge"

// purge removes the data that is kept of instances (MOD-10), and says what is kept afterwards.
func (a *Agent) purge(ctx context.Context, instances []appliance.InstanceName) {
	for _, name := range instances {
		a.accept(kindPurge)
		if a.watch.still() {
			a.refuse(kindPurge, appliance.Errorf(appliance.Conflict, "purge %s: the node is held", name))
		} else if err := a.engine.purge(ctx, name); err != nil {
			a.refuse(kindPurge, err)
		}
	}
	if len(instances) > 0 {
		a.report(nil)
		a.saveAccount()
	}
}

// purge removes the data that is kept of an instance, then what stayed for its sake: folders around it, and users. While the instance is
// declared, or something of another lies in its data, nothing is removed.
func (e *Engine) purge(ctx context.Context, instance appliance.InstanceName) error {
	data, err := e.purgeable(instance)
	if err != nil {
		return err
	}
	for _, rec := range data {
		r := rec.Resource
		purger, ok := e.machine.Effectors[r.Kind].(host.Purger)
		if !ok {
			return appliance.Errorf(appliance.Internal, "purge %s: nothing here removes %s", instance, r.ID)
		}
		switch stays, err := purger.Purge(ctx, r, rec.Undo); {
		case err != nil:
			return fmt.Errorf("purge %s: %w", instance, err)
		case stays:
			return appliance.Errorf(appliance.Conflict, "purge %s: %s was here before the mesh", instance, r.ID).WithHint("nobody can tell its data from what was there: remove by hand what may go")
		}
		e.purged(r.ID)
	}
	for _, rec := range slices.Backward(slices.Clone(e.state.applied.Records)) {
		r := rec.Resource
		if !rec.Kept || r.Instance != instance && r.Kind != wire.User || userStays(r, e.state.applied.Records) {
			continue
		}
		effector, err := e.effector(r.Kind)
		if err != nil {
			return err
		}
		stays, err := effector.Undo(ctx, r, rec.Undo)
		if err != nil {
			return err
		}
		if !stays {
			e.purged(r.ID)
		}
	}
	return nil
}

// purgeable gives the data that is kept of an instance, last made first, where it may go.
func (e *Engine) purgeable(instance appliance.InstanceName) (data []Record, err error) {
	for _, rec := range slices.Backward(e.state.applied.Records) {
		path, is := dataOf(rec.Resource)
		switch {
		case rec.Resource.Instance != instance:
			continue
		case rec.Declared || rec.Carried:
			return nil, appliance.Errorf(appliance.Conflict, "purge %s: %s is in use", instance, rec.Resource.ID).WithHint("what is assigned here keeps its data; unassign and push it first")
		case !rec.Kept || !is:
			continue
		}
		for _, other := range e.state.applied.Records {
			if o := other.Resource; o.Instance != instance && (same(o, rec.Resource) || liesIn(o, path)) {
				return nil, appliance.Errorf(appliance.Conflict, "purge %s: %s is in %s", instance, o.ID, path).WithHint("that has to go first")
			}
		}
		data = append(data, rec)
	}
	if len(data) == 0 {
		return nil, appliance.Errorf(appliance.NotFound, "purge %s: nothing of it is kept", instance)
	}
	return data, nil
}

// dataOf is the path of a folder of class data.
func dataOf(r wire.Resource) (path string, is bool) {
	var spec wire.DirectorySpec
	is = r.Kind == wire.Directory && json.Unmarshal(r.Spec, &spec) == nil && spec.IsData()
	return spec.Path, is
}

// purged forgets a resource that is gone for good; the account says so.
func (e *Engine) purged(id string) {
	e.state.forget(id)
	for i, o := range e.state.applied.Outcomes {
		if o.ID == id {
			e.state.applied.Outcomes[i].Status, e.state.applied.Outcomes[i].Step = wire.Removed, "purge"
		}
	}
}

// measure notes since when data is kept, and how much it is.
func (e *Engine) measure(ctx context.Context) {
	kept := keptData(e.state.applied.Records)
	for i := range e.state.applied.Records {
		rec := &e.state.applied.Records[i]
		var spec wire.DirectorySpec
		if !rec.Kept || !rec.KeptAt.IsZero() || rec.Resource.Kind != wire.Directory || json.Unmarshal(rec.Resource.Spec, &spec) != nil {
			continue
		}
		rec.KeptAt = now()
		if !slices.ContainsFunc(kept, func(k wire.Kept) bool { return k.Path == spec.Path }) {
			continue // it is counted with what is around it
		}
		var err error
		if rec.Bytes, err = e.machine.Size(ctx, rec.Resource); err != nil {
			rec.Bytes = -1
		}
	}
}
