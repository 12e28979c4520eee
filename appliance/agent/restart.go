package agent

import (
	"context"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// maxRestarts bounds those that were asked for and wait.
const maxRestarts = 16

// restart starts anew what runs of instances, in the order in which it is declared (OPS-1). That it was asked for is on disk before: played
// again, the notice finds itself known.
func (a *Agent) restart(ctx context.Context, instances []appliance.InstanceName, signed time.Time) {
	if a.watch.still() {
		a.cfg.Log.Warn("restart: the node is held", "instances", instances)
		return
	}
	before := a.state.applied.Noticed
	a.state.applied.Noticed = signed
	if err := a.state.saveApplied(); err != nil {
		a.state.applied.Noticed = before
		a.refuse(wire.KindNotice, appliance.Errorf(appliance.Unavailable, "restart: what was asked for cannot be kept: %w", err))
		return
	}
	for i, rec := range a.state.applied.Records {
		r := rec.Resource
		runner := a.cfg.Machine.Runner(r.Kind)
		if runner == nil || !rec.Declared || stopped(r) || !slices.Contains(instances, r.Instance) {
			continue
		}
		err := runner.Act(ctx, r, "restart")
		if err == nil {
			a.state.applied.Records[i].Owes = "" // just started, it has taken up everything
		} else {
			a.cfg.Log.Error("restart", "resource", r.ID, "err", err)
		}
		a.watch.restarted(ctx, r.ID, err)
	}
}
