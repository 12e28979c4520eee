package wire

import (
	"encoding/json"

	"github.com/novox/mesh/appliance"
)

// Content is what a declaration says and what its digest names: the resources of one node, in the order they are applied.
type Content struct {
	Version   int        `json:"version"`
	Hold      bool       `json:"hold,omitempty"`    // look and report, change nothing (OPS-3)
	Adopted   bool       `json:"adopted,omitempty"` // leave what was there before, and tell drift before it is put right (NODE-7)
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

	Artifact    ResourceKind = "artifact"
	Container   ResourceKind = "container"
	Certificate ResourceKind = "certificate"
	Trust       ResourceKind = "trust"
)

// ResourceKinds are the kinds of this version, in the order in which a module's resources without a stated order are applied.
var ResourceKinds = []ResourceKind{Package, User, Overlay, Directory, Trust, Certificate, Artifact, File, Process, Container}

// Runs says whether a resource of the kind is something that runs: started, stopped, checked, and told of changes.
func (k ResourceKind) Runs() bool { return k == Process || k == Container }

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

// IsData says whether what lies there is data: whatever is not said to be something else (MOD-10).
func (s DirectorySpec) IsData() bool { return s.Class != "config" && s.Class != "cache" }

// FileSpec: a file with its whole content.
type FileSpec struct {
	Path    string `json:"path"`
	Owner   string `json:"owner"`
	Group   string `json:"group"`
	Mode    string `json:"mode"`
	Content string `json:"content"`
}

// ArtifactSpec: a file tree of the artifact store, unpacked at Path, which its digest is part of. The tree belongs to root and is never
// changed in place. It is kept while a plan within reach names it (DEC-14).
type ArtifactSpec struct {
	Reference string           `json:"reference"` // artifact-store://<module>/<artifact>@sha256:…
	Digest    appliance.Digest `json:"digest"`    // the reference's: of a manifest, or of an index with one for this platform
	Store     ArtifactStore    `json:"store"`
	Path      string           `json:"path"`
}

// ArtifactStore is where artifacts are pulled from, with the node's certificate.
type ArtifactStore struct {
	Address string `json:"address"` // <node>.internal:<port>
	Name    string `json:"name"`    // what its certificate says
}

// CertificateSpec: a certificate for a key that the node made and keeps at Key. Until the mesh has signed it, Certificate is empty and
// the resource waits; the node asks with its next report (PKI-3).
type CertificateSpec struct {
	Name        string   `json:"name"`
	Names       []string `json:"names"`                 // subject alternative names, sorted
	Owner       string   `json:"owner"`                 // who reads the key
	Certificate []byte   `json:"certificate,omitempty"` // DER
	Authority   []byte   `json:"authority,omitempty"`   // DER, where the module asks for it
	Folder      string   `json:"folder"`                // holds cert.pem, key.pem, ca.pem
}

// TrustSpec: the machine's own programs trust the mesh's authority.
type TrustSpec struct {
	Name      string `json:"name"`
	Authority []byte `json:"authority"` // DER
}

// ProcessSpec: a long-running process. A command without a slash is looked up in the installation's own bin folder first, then in
// the system's; one that begins with ./ lies in Directory. It runs with MESH_STATE, MESH_NODE and MESH_INSTANCE set, in Directory, as User.
type ProcessSpec struct {
	Name        string            `json:"name"`
	User        string            `json:"user"`
	Command     []string          `json:"command"`
	Directory   string            `json:"directory"`
	Environment map[string]string `json:"environment,omitempty"`
	Run
}

// ContainerSpec: a container of the machine's engine. What it is made of is everything here but where the image is pulled from and Run,
// of which only Stop is part: only where that differs is it made anew.
type ContainerSpec struct {
	Name        string            `json:"name"`
	Reference   string            `json:"reference"` // artifact-store://<module>/<artifact>@sha256:…
	Image       string            `json:"image"`     // as the engine pulls it: <store>/<module>/<artifact>@sha256:…
	Store       ArtifactStore     `json:"store"`
	Command     []string          `json:"command,omitempty"` // empty: the image's
	User        string            `json:"user,omitempty"`    // empty: the image's; a user of the module is given by its uid
	Environment map[string]string `json:"environment,omitempty"`
	Ports       []Published       `json:"ports,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Memory      int64             `json:"memory,omitempty"` // bytes; 0: no limit
	CPU         int64             `json:"cpu,omitempty"`    // thousandths of a core; 0: no limit
	PIDs        int64             `json:"pids,omitempty"`   // 0: no limit
	ReadOnly    bool              `json:"readOnly,omitempty"`
	Network     string            `json:"network,omitempty"`  // host; empty: the engine's own, with names from the node's resolver
	Resolver    string            `json:"resolver,omitempty"` // address that answers names inside; empty: the engine's default
	Devices     []string          `json:"devices,omitempty"`
	Privileged  bool              `json:"privileged,omitempty"`
	LogSize     int64             `json:"logSize"` // bytes that are kept of what it writes
	Run
}

// Published is a port of a container on the node.
type Published struct {
	Inside   uint16 `json:"inside"`
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
	Address  string `json:"address"` // what it is bound to, by the port's "from"
}

// Mount is a folder or file of the node inside a container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Run is what processes and containers have in common: whether, and how, they are kept going.
type Run struct {
	Stopped  bool              `json:"stopped,omitempty"` // by an operator: it is there and does not run (OPS-1)
	Ready    *Check            `json:"ready,omitempty"`
	Alive    *Check            `json:"alive,omitempty"`
	Restart  string            `json:"restart"`            // always, on-failure, never
	Stop     string            `json:"stop"`               // duration between SIGTERM and SIGKILL
	Signal   string            `json:"signal,omitempty"`   // what "signal" in OnChange sends: HUP, USR1, USR2, INT, TERM; default HUP
	OnChange map[string]string `json:"onChange,omitempty"` // resource id -> restart, reload, signal, none
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
