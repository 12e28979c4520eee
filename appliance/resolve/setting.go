package resolve

import (
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
)

// MaxSetting bounds a value that an operator chooses, in bytes.
const MaxSetting = 64 << 10

// Choices are the values that operators chose, by what they are for: a Setting without its value.
type Choices map[Setting]string

// Choices gives those of the intent.
func (in Intent) Choices() Choices {
	all := make(Choices, len(in.Settings))
	for _, s := range in.Settings {
		value := s.Value
		s.Value = ""
		all[s] = value
	}
	return all
}

// Origin says where the value of a setting comes from.
type Origin string

const (
	FromNode    Origin = "node"
	FromMesh    Origin = "mesh"
	FromDefault Origin = "default"
	FromNowhere Origin = "none"
)

// Of gives a module's setting on a node, or everywhere where that is empty: the node's value over the mesh's over the manifest's (MOD-11).
func (c Choices) Of(m *manifest.Manifest, node appliance.NodeID, name string) (value string, from Origin) {
	if value, ok := c[Setting{Module: m.Module, Node: node, Name: name}]; ok && node != "" {
		return value, FromNode
	}
	if value, ok := c[Setting{Module: m.Module, Name: name}]; ok {
		return value, FromMesh
	}
	if value := m.Settings[name].Default; value != nil {
		return *value, FromDefault
	}
	return "", FromNowhere
}

// Unset marks that a setting has neither a value nor a default.
const Unset appliance.Reason = "setting-unset"

// settings are the instance's values.
func settings(chosen Choices, m *manifest.Manifest, n Node, instance appliance.InstanceName) (map[string]string, error) {
	var values map[string]string
	for _, name := range union(m.Settings, nil) {
		value, from := chosen.Of(m, n.ID, name)
		if from == FromNowhere {
			return nil, appliance.Errorf(appliance.Conflict, "resolve instance %s on node %s: setting %s has no value, and no default", instance, n.Name, name).
				WithReason(Unset).WithHint(m.Settings[name].Description).WithNext("mesh setting set " + string(m.Module) + " " + name + " VALUE")
		}
		if values == nil {
			values = map[string]string{}
		}
		values[name] = value
	}
	return values, nil
}
