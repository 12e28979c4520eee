package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// convergeNode moves an adopted node to converged; while something that was there before would be cut off that is refused, by name (NODE-7).
func (c *Controller) convergeNode(ctx context.Context, a asked, ask operators.ConvergeNode) (any, error) {
	if !ask.Force {
		states, err := c.cfg.Store.NodeStates(ctx)
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			if err := convergeable(s); s.Name == ask.Node && err != nil {
				return nil, err
			}
		}
	}
	same := func(old, _ resolve.Plan) resolve.Plan { return old }
	return c.switchNode(ctx, ask.Node, same, func(id appliance.NodeID, decide store.Decide) error {
		return c.cfg.Store.ConvergeNode(ctx, a.by, id, decide)
	})
}

// convergeable refuses a node that has said what would be overwritten there, or has not said yet.
func convergeable(s store.NodeState) error {
	if s.Mode == "converged" {
		return nil
	}
	if !s.Current() {
		return appliance.Errorf(appliance.NotReady, "converge %s: it has not accounted for its last declaration yet: what it would cut off is not known", s.Name).
			WithHint("wait until it is current; --force does not wait").WithNext("mesh status")
	}
	found := slices.DeleteFunc(slices.Clone(s.Outcomes), func(o wire.Outcome) bool { return o.Status != wire.Refused || o.Step != wire.StepFound })
	if len(found) == 0 {
		return nil
	}
	const most = 10
	var names []string
	for _, o := range found[:min(most, len(found))] {
		names = append(names, o.ID)
	}
	if more := len(found) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return appliance.Errorf(appliance.Conflict, "converge %s: there before the mesh, and declared otherwise: %s", s.Name, strings.Join(names, ", ")).
		WithHint("move them away or make them as declared; --force overwrites them, and keeps what they were for when the module leaves").WithNext("mesh node show " + string(s.Name))
}
