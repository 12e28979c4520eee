package controller

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

func (c *Controller) setSetting(ctx context.Context, a asked, ask operators.SetSetting) (any, error) {
	node, err := c.nodeOrAll(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Store.SetSetting(ctx, a.by, resolve.Setting{Module: ask.Module, Node: node, Name: ask.Name, Value: ask.Value}); err != nil {
		return nil, err
	}
	return c.recorded(ctx, "", ask.Module)
}

func (c *Controller) unsetSetting(ctx context.Context, a asked, ask operators.UnsetSetting) (any, error) {
	node, err := c.nodeOrAll(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	if err := c.cfg.Store.UnsetSetting(ctx, a.by, resolve.Setting{Module: ask.Module, Node: node, Name: ask.Name}); err != nil {
		return nil, err
	}
	return c.recorded(ctx, "", ask.Module)
}

// nodeOrAll gives the id of a node, none where none is named.
func (c *Controller) nodeOrAll(ctx context.Context, name appliance.NodeName) (appliance.NodeID, error) {
	if name == "" {
		return "", nil
	}
	return c.node(ctx, name)
}

func (c *Controller) listSettings(ctx context.Context, a asked, ask operators.ListSettings) (any, error) {
	if _, err := c.module(ctx, ask.Module); err != nil {
		return nil, err
	}
	node, err := c.nodeOrAll(ctx, ask.Node)
	if err != nil {
		return nil, err
	}
	intent, err := c.cfg.Store.Intent(ctx)
	if err != nil {
		return nil, err
	}
	return fitSettings(settings(intent, ask.Module, node), maxAnswer), nil
}

// settings lists those that the module's manifest names, as they are on a node or everywhere; then what single nodes have of their own,
// and what was chosen for settings that an earlier manifest named.
func settings(in resolve.Intent, module appliance.ModuleName, node appliance.NodeID) []operators.Setting {
	out := []operators.Setting{}
	m, chosen := in.Modules[module], in.Choices()
	if m == nil {
		return out // gone since it was asked about
	}
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		value, from := chosen.Of(m, node, name)
		out = append(out, operators.Setting{Name: name, Value: value, From: string(from), Description: m.Settings[name].Description})
	}
	names := map[appliance.NodeID]appliance.NodeName{}
	for _, n := range in.Nodes {
		names[n.ID] = n.Name
	}
	for _, s := range in.Settings {
		setting, known := m.Settings[s.Name]
		if s.Module != module || node != "" && s.Node != "" && s.Node != node || known && (node != "" || s.Node == "") {
			continue
		}
		from := resolve.FromNode
		if s.Node == "" {
			from = resolve.FromMesh
		}
		out = append(out, operators.Setting{Name: s.Name, Node: names[s.Node], Value: s.Value, From: string(from), Unused: !known, Description: setting.Description})
	}
	slices.SortStableFunc(out, func(a, b operators.Setting) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// maxAnswer is what an answer may take, in bytes.
const maxAnswer = wire.MaxEnvelope - 64<<10

// fitSettings cuts the longest values where all together are too long for one answer.
func fitSettings(all []operators.Setting, budget int) []operators.Setting {
	for limit := resolve.MaxSetting; limit > 0; limit /= 2 {
		if data, err := wire.Encode(all); err != nil || len(data) <= budget {
			break
		}
		for i, s := range all {
			if len(s.Value) > limit {
				all[i].Value, all[i].Cut = strings.ToValidUTF8(s.Value[:limit], ""), true
			}
		}
	}
	return all
}
