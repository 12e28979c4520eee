package agent

import (
	"context"
	"slices"

	"github.com/novox/mesh/appliance"
)

// restart starts anew what runs of instances, in the order in which it is declared (OPS-1).
func (a *Agent) restart(ctx context.Context, instances []appliance.InstanceName) {
	if len(instances) > 0 && a.watch.still() {
		a.cfg.Log.Warn("restart: the node is held", "instances", instances)
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
