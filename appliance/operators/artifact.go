package operators

import (
	"time"

	"github.com/novox/mesh/appliance"
)

// GrantPush asks for leave to push an artifact of a module.
type GrantPush struct {
	Module   appliance.ModuleName `json:"module"`
	Artifact string               `json:"artifact,omitempty"` // empty: every one of the module
	MaxBytes int64                `json:"maxBytes,omitempty"` // what the module may hold afterwards; 0: 2 GiB
}

// GrantedPush is the leave, and where to use it: on the hosts by which the hub is reached.
type GrantedPush struct {
	Grant    string    `json:"grant"`
	Port     uint16    `json:"port"`
	MaxBytes int64     `json:"maxBytes"`
	Expires  time.Time `json:"expires"`
}

// ListArtifacts asks for the artifacts of a module; none named means all.
type ListArtifacts struct {
	Module appliance.ModuleName `json:"module,omitempty"`
}

// Artifacts is the answer to artifact.list, by module and artifact, oldest first. More is how many did not fit into it.
type Artifacts struct {
	Artifacts []Artifact `json:"artifacts"`
	More      int        `json:"more,omitempty"`
}

// Artifact is one as the store has it.
type Artifact struct {
	Reference string             `json:"reference"`
	Kind      string             `json:"kind"` // files, image, or what it calls itself
	MediaType string             `json:"mediaType"`
	Platforms []string           `json:"platforms"` // empty: any, or not stated
	Size      int64              `json:"size"`      // bytes, with everything beneath
	Pushed    time.Time          `json:"pushed"`
	Damaged   []appliance.Digest `json:"damaged,omitempty"` // what of it is damaged on the store's disk
}

// ShowArtifact names one by its digest.
type ShowArtifact struct {
	Digest appliance.Digest `json:"digest"`
}

// ShownArtifact is the answer to artifact.show.
type ShownArtifact struct {
	Digest  appliance.Digest       `json:"digest"`
	Stored  []Artifact             `json:"stored"`  // as each repository has it
	Modules []appliance.ModuleName `json:"modules"` // whose manifest names it
	Nodes   []appliance.NodeName   `json:"nodes"`   // whose present declaration names it
}
