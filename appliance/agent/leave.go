package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// Leaving says how much goes when a machine leaves.
type Leaving struct {
	Carried bool // also what was raised from the binary: on a hub
	Purge   bool // also data
	// BeforeUsers removes what else belongs to users, when all but them is undone; nil: nothing does.
	BeforeUsers func() error
}

// KeptFiles are what of the agent's folder belongs to what Leave has kept.
var KeptFiles = []string{"applied.json", "data.json"}

// Leave undoes what was made on this machine, last made first, each from its undo record; no agent may run meanwhile. Users go at the
// end, when nothing of theirs is left to go. What stays is given with the reason, and its records are kept. What could not be undone is
// in the error: the same call goes on with that, and with what a kill has left.
func Leave(ctx context.Context, machine host.Machine, dir string, o Leaving, told func(wire.Outcome)) ([]host.Left, error) {
	s, err := openState(dir)
	if err != nil {
		return nil, err
	}
	none := func() (host.OverlayState, error) { return host.OverlayState{}, nil }
	l := leaving{Engine: &Engine{machine: machine, state: s, overlay: none, told: told}, Leaving: o, left: []host.Left{}}
	for _, users := range []bool{false, true} {
		if users && o.BeforeUsers != nil {
			if err := o.BeforeUsers(); err != nil {
				return l.left, err
			}
		}
		for _, rec := range slices.Backward(slices.Clone(s.applied.Records)) {
			if users != (rec.Resource.Kind == wire.User) || rec.Carried && !o.Carried {
				continue
			}
			if err := ctx.Err(); err != nil {
				return l.left, err
			}
			if err := l.take(ctx, rec); err != nil {
				return l.left, err
			}
		}
	}
	s.applied.About, s.applied.Outcomes = wire.About{}, nil
	return l.left, errors.Join(append(l.failed, s.saveApplied())...)
}

// leaving is one run of Leave.
type leaving struct {
	*Engine
	Leaving
	left   []host.Left
	stuck  []wire.Resource
	failed []error
}

// take undoes one record. Its error is about the records alone.
func (l *leaving) take(ctx context.Context, rec Record) error {
	r := rec.Resource
	out := wire.Outcome{ID: r.ID, Instance: r.Instance, Kind: r.Kind, Status: wire.Removed}
	why, err := l.undo(ctx, rec)
	switch {
	case err != nil:
		out.Status, out.Step, out.Error = wire.Failed, "undo", err.Error()
		l.stuck = append(l.stuck, r)
		l.failed = append(l.failed, fmt.Errorf("undo %s: %w", r.ID, err))
	case why != "":
		out.Status, out.Step = wire.StatusKept, why
		l.left = append(l.left, host.Left{What: what(r), Why: why})
		kept := l.state.record(r.ID)
		kept.Kept, kept.Declared, kept.Carried, kept.Owes = true, false, false, ""
		err = l.state.saveApplied()
	default:
		l.state.forget(r.ID)
		err = l.state.saveApplied()
	}
	if l.told != nil {
		l.told(out)
	}
	if out.Status == wire.Failed {
		return nil
	}
	return err
}

// undo says why a resource stays; empty where it is gone.
func (l *leaving) undo(ctx context.Context, rec Record) (why string, err error) {
	r := rec.Resource
	if l.state.sharer(r) != nil {
		return "", nil // it goes with the last that has it
	}
	if i := slices.IndexFunc(l.stuck, func(s wire.Resource) bool { return slices.Contains(s.After, r.ID) }); i >= 0 {
		return "", appliance.Errorf(appliance.Conflict, "%s depends on it, and is not removed yet", l.stuck[i].ID)
	}
	effector, err := l.effector(r.Kind)
	if err != nil {
		return "nothing here can remove it: " + err.Error(), nil
	}
	if h, ok := effector.(host.Holder); ok {
		if why, err := h.Holds(ctx, r, rec.Undo); why != "" || err != nil {
			return why, err
		}
	}
	undo := effector.Undo
	if p, ok := effector.(host.Purger); ok && l.Purge {
		undo = p.Purge
	}
	kept, err := undo(ctx, r, rec.Undo)
	if kept && err == nil {
		return l.whyKept(r), nil
	}
	if m, ok := effector.(host.Remnant); ok && err == nil {
		remains, err := m.Remains(ctx, r, rec.Undo)
		l.left = append(l.left, remains...)
		return "", err
	}
	return "", err
}

// whyKept is the reason of an effector that says only that something stays.
func (l *leaving) whyKept(r wire.Resource) string {
	switch {
	case r.Kind == wire.User:
		return "it owns data that stay"
	case r.Kind == wire.Package:
		return "other packages need it"
	case l.Purge:
		return "it was here before the mesh"
	case !strings.Contains(string(r.Spec), `"class":"data"`):
		return "data lie in it"
	}
	return "data"
}

// what names a resource for a person.
func what(r wire.Resource) string {
	var s struct {
		Name, Path string
		Names      map[string]string
	}
	_ = json.Unmarshal(r.Spec, &s) // what cannot be read is named by its id
	switch {
	case r.Kind == wire.Directory && s.Path != "":
		return "folder " + s.Path
	case s.Path != "":
		return string(r.Kind) + " " + s.Path
	case s.Name != "" && r.Kind == wire.User:
		return "user " + s.Name
	case r.Kind == wire.Package:
		for _, manager := range []string{"apt", "dnf", "apk"} {
			if name := s.Names[manager]; name != "" {
				return "package " + name
			}
		}
	}
	return r.ID
}

// SayLeaving tells the mesh that this node leaves it, and returns once that is stored; the mesh then removes the node. The report has a
// number that may come again: it changes nothing but the node's end.
func SayLeaving(ctx context.Context, b Believes, key ed25519.PrivateKey, dir string, send func(ctx context.Context, subject string, data []byte) error) error {
	s, err := openState(dir)
	if err != nil {
		return err
	}
	body, err := wire.Encode(wire.Report{Version: wire.Version, Facts: &wire.Facts{Leaving: true}})
	if err != nil {
		return err
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindReport, Version: wire.Version, Mesh: b.Mesh, From: string(b.Node), To: string(b.Mesh),
		Sequence: s.outbox.Sequence + 1, Time: now()}, body, key)
	if err != nil {
		return err
	}
	return send(ctx, wire.ReportSubject(b.Node), data)
}
