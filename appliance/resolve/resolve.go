// Package resolve turns what operators recorded into a plan for each node. It is pure: the same intent gives the same bytes.
// Facts (addresses, keys, certificates) have no place here; render adds them.
package resolve

import (
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/wire"
)

// Intent is what operators recorded, as one snapshot of the records. The order of the slices does not matter.
type Intent struct {
	Mesh        appliance.MeshID
	MeshName    string
	Nodes       []Node
	Modules     map[appliance.ModuleName]*manifest.Manifest // every registered module
	Assignments []Assignment
	Ports       []Port
	Settings    []Setting
	Carried     map[appliance.NodeID][]ports.Bound // what the carried resources of a node bind, as it stated (PORT-2); may be nil
}

// Node is a machine of the mesh.
type Node struct {
	ID       appliance.NodeID
	Name     appliance.NodeName
	Hub      bool
	Platform string // OS/ARCHITECTURE, as it said; empty: not known
	Runtime  string // docker, podman; empty: no containers run there
	Held     bool   // it shall change nothing (OPS-3)
	Drained  bool   // its modules shall not run, but for the base
}

// Assignment puts a module on a node under a name.
type Assignment struct {
	Instance appliance.InstanceName
	Node     appliance.NodeID
	Module   appliance.ModuleName
	Stopped  bool // by an operator (OPS-1)
}

// Setting is a value that an operator chose for a module everywhere, or on one node. One that no manifest names any more is passed over.
type Setting struct {
	Module appliance.ModuleName
	Node   appliance.NodeID // empty: everywhere
	Name   string
	Value  string
}

// Port is a recorded number: given by an operator, else assigned by the mesh. One that no manifest names any more is passed over.
type Port struct {
	Instance appliance.InstanceName
	Node     appliance.NodeID
	Name     string
	Number   uint16
	Given    bool
}

// PlanVersion is the form of Plan. A plan is recorded, so a newer binary reads every older version.
const PlanVersion = 1

// Plan is the resolved intent for one node. Approved plans are kept and rendered again with later facts.
type Plan struct {
	Version   int              `json:"version"`
	Node      appliance.NodeID `json:"node"`
	Hold      bool             `json:"hold,omitempty"`
	Instances []Instance       `json:"instances"` // sorted by name
}

// Instance is one module on the node, placeholders kept.
type Instance struct {
	Name         appliance.InstanceName          `json:"name"`
	Module       appliance.ModuleName            `json:"module"`
	Digest       appliance.Digest                `json:"digest"` // of the manifest
	Stopped      bool                            `json:"stopped,omitempty"`
	Ports        map[string]ResolvedPort         `json:"ports,omitempty"`
	Settings     map[string]string               `json:"settings,omitempty"`
	Artifacts    map[string]ResolvedArtifact     `json:"artifacts,omitempty"`
	Certificates map[string]manifest.Certificate `json:"certificates,omitempty"` // with the instance's own names
	Resources    []manifest.Resource             `json:"resources,omitempty"`    // as in the manifest
	NoRollback   bool                            `json:"noRollback,omitempty"`   // an upgrade from here cannot be taken back
}

// ResolvedArtifact is what the artifact store holds for the instance.
type ResolvedArtifact struct {
	Kind   manifest.ArtifactKind `json:"kind"`
	Digest appliance.Digest      `json:"digest"`
}

// ResolvedPort is a port with the number that everyone uses.
type ResolvedPort struct {
	Number   uint16 `json:"number"`
	Protocol string `json:"protocol"`
	From     string `json:"from"`
}

// Bytes are the plan's canonical bytes.
func (p Plan) Bytes() []byte {
	b, err := wire.Encode(p)
	if err != nil {
		panic(err) // strings, numbers and maps of strings always encode
	}
	return b
}

// ParsePlan reads what Bytes wrote.
func ParsePlan(data []byte) (Plan, error) {
	var p Plan
	if err := wire.Decode(data, &p); err != nil {
		return Plan{}, appliance.Errorf(appliance.Invalid, "parse plan: %w", err)
	}
	if p.Version < 1 || p.Version > PlanVersion {
		return Plan{}, appliance.Errorf(appliance.Invalid, "parse plan: version %d, this binary reads 1 to %d", p.Version, PlanVersion)
	}
	return p, nil
}
