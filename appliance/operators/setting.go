package operators

import "github.com/novox/mesh/appliance"

// SetSetting chooses a value for a module: on a node, or everywhere where none is named.
type SetSetting struct {
	Module appliance.ModuleName `json:"module"`
	Node   appliance.NodeName   `json:"node,omitempty"`
	Name   string               `json:"name"`
	Value  string               `json:"value"`
}

// UnsetSetting takes such a value back.
type UnsetSetting struct {
	Module appliance.ModuleName `json:"module"`
	Node   appliance.NodeName   `json:"node,omitempty"`
	Name   string               `json:"name"`
}

// ListSettings asks for a module's settings: as they are on a node, or everywhere together with what single nodes have of their own.
type ListSettings struct {
	Module appliance.ModuleName `json:"module"`
	Node   appliance.NodeName   `json:"node,omitempty"`
}

// Setting is a value of a module, and where it comes from.
type Setting struct {
	Name        string             `json:"name"`
	Node        appliance.NodeName `json:"node,omitempty"`
	Value       string             `json:"value"`
	Cut         bool               `json:"cut,omitempty"`    // the value is longer than can be shown here
	From        string             `json:"from"`             // node, mesh, default, none
	Unused      bool               `json:"unused,omitempty"` // the module has no such setting any more
	Description string             `json:"description"`
}
