package agent

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// earlier is of how many plans before the present one the artifacts are kept (DEC-14).
const earlier = 2

// digests are the artifacts that resources name, sorted.
func digests(resources []wire.Resource) []appliance.Digest {
	all := []appliance.Digest{}
	for _, r := range resources {
		var spec struct{ Reference string }
		if r.Kind != wire.Artifact && r.Kind != wire.Container || json.Unmarshal(r.Spec, &spec) != nil {
			continue
		}
		if _, digest, ok := strings.Cut(spec.Reference, "@"); ok {
			all = append(all, appliance.Digest(digest))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// reach puts the present artifacts before those of earlier plans. What was there before and is again is no other plan.
func reach(sets [][]appliance.Digest, present []appliance.Digest) [][]appliance.Digest {
	sets = slices.DeleteFunc(slices.Clone(sets), func(s []appliance.Digest) bool { return slices.Equal(s, present) })
	return slices.Insert(sets, 0, present)[:min(len(sets)+1, earlier+1)]
}

// collect removes the artifacts out of reach, once what is declared is as it should be without them. What fails comes round with the next look.
func (a *Agent) collect(ctx context.Context, declared []wire.Resource) {
	a.state.applied.Artifacts = reach(a.state.applied.Artifacts, digests(declared))
	if a.cfg.Machine.Collect == nil {
		return
	}
	if err := a.cfg.Machine.Collect(ctx, slices.Concat(a.state.applied.Artifacts...)); err != nil && ctx.Err() == nil {
		a.cfg.Log.Error("remove artifacts out of reach", "err", err)
	}
}

// pulls says whether making a resource of the kind may take as long as the network wants.
func pulls(kind wire.ResourceKind) bool { return kind == wire.Artifact || kind == wire.Container }

// meanwhile runs a step that may take long and goes on hearing: a membership is taken up at once, since it may revoke; a newer declaration
// ends the step, and is carried out after the pass. What was pulled so far stays.
func (a *Agent) meanwhile(ctx context.Context, step func(context.Context) error) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- step(within) }()
	for {
		select {
		case err := <-done:
			return err
		case <-a.memberships.wake:
			if doc, ok := a.memberships.take(); ok {
				a.takeMembership(ctx, doc)
			}
		case <-a.declarations.wake:
			if !a.declarations.newer(a.held.number) {
				continue // the same once more: its account is not there yet
			}
			cancel()
			if err := <-done; err == nil || ctx.Err() != nil {
				return err
			}
			return appliance.Errorf(appliance.NotReady, "a newer declaration has come")
		case <-a.health:
			a.report(nil)
		}
	}
}
