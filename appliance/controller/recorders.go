package controller

import (
	"context"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

// recorders says who last recorded something about a thing, by the audit's subject.
type recorders map[string]operators.AuditEntry

func (c *Controller) recorders(ctx context.Context) (recorders, error) {
	changes, err := c.cfg.Store.Audit(ctx, time.Time{}, 0)
	if err != nil {
		return nil, err
	}
	out := recorders{}
	for _, ch := range changes {
		out[ch.Subject] = operators.AuditEntry{Who: ch.Who, At: ch.At}
	}
	return out, nil
}

// of gives who stands behind a change of a plan: of what could have caused it, whatever was recorded last.
func (r recorders) of(node resolve.Node, module appliance.ModuleName, ch resolve.Change) (last operators.AuditEntry) {
	subjects := []string{string(ch.Instance) + "@" + string(node.ID)}
	if name, is := strings.CutPrefix(ch.Resource, "setting/"); is {
		s := resolve.Setting{Module: module, Name: name}
		subjects = append(subjects, store.SettingSubject(s), string(module))
		s.Node = node.ID
		subjects = append(subjects, store.SettingSubject(s))
	} else if ch.Instance == "" {
		subjects = []string{string(node.Name)}
	} else if ch.Resource != "module" {
		subjects = append(subjects, string(module))
	}
	for _, subject := range subjects {
		if e := r[subject]; e.At.After(last.At) {
			last = e
		}
	}
	return last
}

// modules says of which module each instance is that is recorded for a node, or approved there.
func (p pending) modules(node appliance.NodeID) (map[appliance.InstanceName]appliance.ModuleName, error) {
	old, err := p.old(node)
	all := map[appliance.InstanceName]appliance.ModuleName{}
	for _, i := range append(old.Instances, p.plans[node].Instances...) {
		all[i.Name] = i.Module
	}
	return all, err
}
