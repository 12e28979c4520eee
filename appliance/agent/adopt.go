package agent

import (
	"slices"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// found says what stands in the way of a resource on an adopted node: something that was there before the mesh, and is not what the resource
// says (NODE-7). Empty where it may be made.
func (e *Engine) found(r wire.Resource, have *Record, seen host.Observation) string {
	foreign := []wire.ResourceKind{wire.File, wire.Directory, wire.User, wire.Package}
	if !e.adopted || have != nil || !seen.Present || seen.Matches || !slices.Contains(foreign, r.Kind) || e.state.sharer(r) != nil {
		return ""
	}
	return "it was there before, and differs: " + seen.Differs
}

// untold says whether drift has to be told before it is put right: on an adopted node, until the look after the one that told it.
func (e *Engine) untold(o wire.Outcome) bool {
	if !e.adopted || o.Drift == "" {
		return false
	}
	told := slices.ContainsFunc(e.state.applied.Outcomes, func(before wire.Outcome) bool {
		return before.ID == o.ID && before.Status == wire.Waiting && before.Step == stepDrift
	})
	return !told || !e.looking
}
