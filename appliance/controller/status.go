package controller

import (
	"cmp"
	"context"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// A node is lost when nothing was heard of it for this long (NODE-6); a handshake older than a session means no path.
const (
	lostAfter    = 90 * time.Second
	sessionLasts = 180 * time.Second
)

func (c *Controller) showStatus(ctx context.Context, a asked) (any, error) {
	states, err := c.cfg.Store.NodeStates(ctx)
	if err != nil {
		return nil, err
	}
	p, err := c.pending(ctx)
	if err != nil {
		return nil, err
	}
	out := operators.Status{Mesh: operators.StatusMesh{ID: c.mesh.ID, Name: c.mesh.Name}, Nodes: []operators.NodeStatus{}}
	for _, s := range states {
		n := nodeStatus(s, p.plans[s.Node], a.by.At)
		changes, err := p.changes(s.Node, "")
		if err != nil {
			return nil, err
		}
		n.Unpushed = len(changes)
		c.roster.with(s.Node, func(m *member) {
			if m.seen.After(n.LastSeen) {
				n.LastSeen, n.Lost = m.seen, a.by.At.Sub(m.seen) > lostAfter
			}
			if n.Clone = m.runs.clone(a.by.At); n.Clone {
				n.Warnings = append(n.Warnings, wire.Warning{Code: "clone", Severity: "error", Text: "two machines speak under this node's key",
					Remedy: "stop one of them, then `mesh node replace " + string(s.Name) + "`"})
			}
		})
		if s.Hub && c.cfg.Warnings != nil {
			n.Warnings = append(n.Warnings, c.cfg.Warnings()...)
		}
		if s.Hub {
			n.Warnings = append(n.Warnings, c.cfg.Artifacts.Warnings()...)
		}
		if err := c.roster.behind(s.Node, s.Name); err != nil {
			n.Warnings = append(n.Warnings, wire.Warning{Code: "store-older", Severity: "error", Text: err.Error(), Remedy: appliance.AsError(err).Hint})
		}
		out.Nodes = append(out.Nodes, n)
	}
	fit(out.Nodes, maxStatus)
	return out, nil
}

// explained adds what the hub knows of itself to "the store is out of reach": with a full disk it is.
func (c *Controller) explained(err error) error {
	if !store.IsUnavailable(err) || c.cfg.Warnings == nil {
		return err
	}
	for _, w := range c.cfg.Warnings() {
		err = appliance.AsError(err).WithHint(w.Text + "; " + w.Remedy)
	}
	return err
}

// nodeStatus says what the records know of one node, for which recorded is the plan. What an operator stopped makes it no worse.
func nodeStatus(s store.NodeState, recorded resolve.Plan, now time.Time) operators.NodeStatus {
	n := operators.NodeStatus{Name: s.Name, ID: s.Node, Mode: s.Mode, Machine: operators.Machine{Address: s.Address, Platform: s.Says.OS + "/" + s.Says.Architecture,
		Distribution: s.Says.Distribution, Init: s.Says.Init, Runtime: s.Says.Runtime, Version: s.Says.Binary, Labels: s.Labels}, LastSeen: s.LastSeen, Lost: now.Sub(s.LastSeen) > lostAfter,
		Current: s.Current(), Declared: s.Declared, Reported: s.Reported, Outcome: cmp.Or(s.Outcome, "none"), Health: wire.Healthy,
		Resources: map[wire.Status]int{wire.Unchanged: 0, wire.Applied: 0, wire.Failed: 0}, Instances: []operators.InstanceStatus{}, Kept: s.Kept, Warnings: s.Warnings}
	if n.Held, n.Drained = s.Held, s.Drained; n.Held {
		n.HeldUntil = s.HeldUntil
	}
	if !s.Sent.IsZero() {
		n.Number = s.Sent.String()
	}
	if n.Outcome == "refused" {
		n.Outcome = "failed"
	}
	if n.Warnings == nil {
		n.Warnings = []wire.Warning{}
	}
	for _, o := range s.Outcomes {
		n.Resources[o.Status]++
		if o.Status == wire.Failed || o.Status == wire.Refused {
			n.Failures = append(n.Failures, o)
		}
		if o.Status == wire.Waiting {
			n.Waiting = append(n.Waiting, o)
		}
		if o.Drift != "" {
			n.Drift = append(n.Drift, operators.Drift{ID: o.ID, What: o.Drift, Repaired: o.Status == wire.Applied || o.Status == wire.Unchanged})
		}
	}
	for _, h := range s.Health {
		i := recorded.Instance(h.Instance)
		stopped := i != nil && i.Stopped
		n.Instances = append(n.Instances, operators.InstanceStatus{Name: h.Instance, Health: h.State, Since: h.Since, Stopped: stopped, Why: h.Why, Log: h.Log})
		if !stopped {
			n.Health = wire.Worse(n.Health, h.State)
		}
	}
	if n.Reported == "" {
		n.Health = wire.Starting
	}
	return n
}

func (c *Controller) showOverlay(ctx context.Context, a asked) (any, error) {
	nodes, err := c.cfg.Store.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := operators.Overlay{Range: c.mesh.Range, Nodes: []operators.OverlayNode{}}
	for _, n := range nodes {
		o := operators.OverlayNode{Name: n.Name, Address: n.Address, Hub: n.Hub, Endpoint: n.Endpoint, Path: "down"}
		c.roster.with(n.ID, func(m *member) { o.Handshake = m.handshake })
		if n.Hub || !o.Handshake.IsZero() && a.by.At.Sub(o.Handshake) < sessionLasts {
			o.Path = "direct"
		}
		out.Nodes = append(out.Nodes, o)
	}
	return out, nil
}
