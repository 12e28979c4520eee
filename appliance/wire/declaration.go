package wire

import (
	"encoding/json"

	"github.com/novox/mesh/appliance"
)

// Content is what a declaration says and what its digest names: the resources of one node, in the order they are applied.
type Content struct {
	Version   int        `json:"version"`
	Resources []Resource `json:"resources"`
}

// ResourceKind names what a resource is. A node states which it understands.
type ResourceKind string

const (
	Package   ResourceKind = "package"
	User      ResourceKind = "user"
	Directory ResourceKind = "directory"
	File      ResourceKind = "file"
	Process   ResourceKind = "process"
	Overlay   ResourceKind = "overlay"
)

// ResourceKinds are the kinds of this version, in the order in which a module's resources without a stated order are applied.
var ResourceKinds = []ResourceKind{Package, User, Overlay, Directory, File, Process}

// Resource is one thing on a node. ID is "<instance>/<kind>/<name>", unique in the declaration.
type Resource struct {
	ID       string                 `json:"id"`
	Instance appliance.InstanceName `json:"instance"`
	Kind     ResourceKind           `json:"kind"`
	After    []string               `json:"after,omitempty"` // ids it depends on, earlier in the list
	Spec     json.RawMessage        `json:"spec"`            // the kind's …Spec
}

// PackageSpec: the distribution's package, by the name each package manager knows. Removed, never purged.
type PackageSpec struct {
	Names  map[string]string `json:"names"`            // apt, dnf, apk -> package name
	Unless []string          `json:"unless,omitempty"` // glob patterns: where one matches an executable, nothing is installed
}

// UserSpec: a system user with a group of the same name.
type UserSpec struct {
	Name string `json:"name"`
	Home string `json:"home,omitempty"` // default /nonexistent
}

// DirectorySpec: a folder. Class data is kept when the resource goes.
type DirectorySpec struct {
	Path  string `json:"path"`
	Class string `json:"class"` // config, cache, data
	Owner string `json:"owner"`
	Group string `json:"group"`
	Mode  string `json:"mode"` // octal, four digits
}

// FileSpec: a file with its whole content.
type FileSpec struct {
	Path    string `json:"path"`
	Owner   string `json:"owner"`
	Group   string `json:"group"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
}

// ProcessSpec: a long-running process. A command without a slash is looked up in the installation's own bin folder first, then in
// the system's. It runs with MESH_STATE, MESH_NODE and MESH_INSTANCE set, in Directory, as User.
type ProcessSpec struct {
	Name        string            `json:"name"`
	User        string            `json:"user"`
	Command     []string          `json:"command"`
	Directory   string            `json:"directory"`
	Environment map[string]string `json:"environment,omitempty"`
	Ready       *Check            `json:"ready,omitempty"`
	Alive       *Check            `json:"alive,omitempty"`
	Restart     string            `json:"restart"`            // always, on-failure, never
	Stop        string            `json:"stop"`               // duration between SIGTERM and SIGKILL
	OnChange    map[string]string `json:"onChange,omitempty"` // resource id -> restart, reload, none
}

// Check asks a process whether it is ready, or still alive. Exactly one of HTTP, TCP, Command.
type Check struct {
	HTTP     string   `json:"http,omitempty"` // URL; 2xx and 3xx pass
	TCP      string   `json:"tcp,omitempty"`  // host:port
	Command  []string `json:"command,omitempty"`
	Every    string   `json:"every"`    // duration between two tries
	Within   string   `json:"within"`   // ready: how long it may take; alive: how long one try may take
	Failures int      `json:"failures"` // alive: failures in a row that mean dead
}

// OverlaySpec: the node takes part. Everything else about the overlay comes from the membership (NET-11).
type OverlaySpec struct{}

// Replace is the whole body of a version-0 declaration: fetch the binary with this digest and become it. Frozen.
type Replace struct {
	Version int `json:"version"` // 0
	Agent   struct {
		Digest appliance.Digest `json:"digest"`
		Size   int64            `json:"size"`
		Path   string           `json:"path"` // on the download server of every endpoint
		Port   int              `json:"port"`
	} `json:"agent"`
}
