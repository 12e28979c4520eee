// Package manifest reads module.json: the schema says what a file may hold, Parse says everything that is wrong with one.
// It knows one file only; what needs several manifests in view (seats, ports, paths of one node) belongs to resolve.
package manifest

import (
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Manifest is a parsed module.json. Everything Parse has accepted is in here with its defaults filled in; the fields of the
// schema that this version does not carry out are refused before (see notYet) and so have no place here.
type Manifest struct {
	Module       appliance.ModuleName   `json:"module"`
	Description  string                 `json:"description,omitempty"`
	Seats        []Seat                 `json:"seats,omitempty"`
	Claims       []appliance.SeatName   `json:"claims,omitempty"`
	Settings     map[string]Setting     `json:"settings,omitempty"`
	Ports        map[string]Port        `json:"ports,omitempty"`
	Artifacts    map[string]Artifact    `json:"artifacts,omitempty"`
	Certificates map[string]Certificate `json:"certificates,omitempty"`
	Privileged   []Privilege            `json:"privileged,omitempty"`
	Resources    []Resource             `json:"resources,omitempty"`
	Upgrade      *Upgrade               `json:"upgrade,omitempty"`
	Build        *Build                 `json:"build,omitempty"`
}

// Setting is a value that operators may choose. Without a default one must be.
type Setting struct {
	Default     *string `json:"default,omitempty"`
	Description string  `json:"description"`
}

// Setting gives the setting of a name; one that the manifest does not have is refused with the nearest that it has.
func (m *Manifest) Setting(name string) (Setting, error) {
	if s, ok := m.Settings[name]; ok {
		return s, nil
	}
	return Setting{}, appliance.Errorf(appliance.NotFound, "module %s has no setting %s", m.Module, appliance.Quote(name)).
		WithHint(suggest(name, keysOf(m.Settings))).WithNext("mesh setting list " + string(m.Module))
}

// Artifact is something that the artifact store holds for the module. Until it was pushed it has no digest, and the module cannot be registered.
type Artifact struct {
	Kind      ArtifactKind     `json:"kind"`
	Digest    appliance.Digest `json:"digest,omitempty"`
	Platforms []string         `json:"platforms,omitempty"` // OS/ARCHITECTURE; none: every
}

// ArtifactKind says what an artifact is used as.
type ArtifactKind string

const (
	Files ArtifactKind = "files"
	Image ArtifactKind = "image"
)

// Certificate is one that the mesh issues to each instance, for a key that stays on the node.
type Certificate struct {
	Names     []string `json:"names"`
	Authority bool     `json:"authority,omitempty"`
	Owner     string   `json:"owner,omitempty"`
}

// Upgrade says how an upgrade is taken back.
type Upgrade struct {
	Rollback string `json:"rollback,omitempty"` // safe, none
}

// Build says how artifacts are made of the module's folder.
type Build struct {
	Artifacts map[string]Recipe `json:"artifacts,omitempty"`
}

// Recipe makes one artifact: of kind files, from paths in the folder.
type Recipe struct {
	Kind  string   `json:"kind"`
	Files []string `json:"files,omitempty"`
}

// makes is what the recipe's artifact is used as.
func (r Recipe) makes() ArtifactKind {
	if r.Kind == string(Image) {
		return Image
	}
	return Files
}

// Files gives the artifacts that are files of the module's folder as they are, and which: paths in it, all of it where none is named.
func (m *Manifest) Files() map[string][]string {
	out := map[string][]string{}
	for name, r := range m.recipes() {
		if r.Kind == string(Files) {
			out[name] = r.Files
			if len(r.Files) == 0 {
				out[name] = []string{"."}
			}
		}
	}
	return out
}

// baseSeats are held by what makes a machine a node of the mesh.
var baseSeats = []appliance.SeatName{"mesh-store", "mesh-broker", "mesh-network", "mesh-controller", "artifact-store"}

// Base says whether the module makes a machine a node of the mesh: it is neither stopped nor drained like others.
func (m *Manifest) Base() bool {
	return slices.ContainsFunc(m.Claims, func(s appliance.SeatName) bool { return slices.Contains(baseSeats, s) })
}

// Registrable refuses a manifest with artifacts that were not pushed yet.
func (m *Manifest) Registrable() error {
	for _, name := range keysOf(m.Artifacts) {
		if m.Artifacts[name].Digest == "" {
			return appliance.Errorf(appliance.Conflict, "register module %s: artifact %s has no digest: it was not pushed yet", m.Module, name).
				WithHint("registering the module's folder pushes what build makes of its files; anything else is pushed first and its digest stated").
				WithNext("mesh artifact push " + string(m.Module) + "/" + name + " PATH")
		}
	}
	return nil
}

// Scope says among whom a seat has one holder.
type Scope string

const (
	ScopeMesh Scope = "mesh"
	ScopeNode Scope = "node"
)

// Seat is a role that this module declares. Without a protocol it is a marker.
type Seat struct {
	Name     appliance.SeatName `json:"name"`
	Scope    Scope              `json:"scope"`
	Protocol string             `json:"protocol,omitempty"`
}

// Port is a port that the module listens on.
type Port struct {
	Number   uint16 `json:"port"`
	Protocol string `json:"protocol"` // tcp, udp
	From     string `json:"from"`     // mesh, public, node
	Assign   bool   `json:"assign"`   // the mesh may choose another number
}

// Privilege is something a module may not do without saying why. Exactly one field beside Reason is set.
type Privilege struct {
	Path      string `json:"path,omitempty"`      // a path outside ${dir}, and everything beneath it
	User      string `json:"user,omitempty"`      // root or mesh
	Network   string `json:"network,omitempty"`   // host
	Device    string `json:"device,omitempty"`    // /dev/…
	Container string `json:"container,omitempty"` // privileged
	Trust     string `json:"trust,omitempty"`     // system
	Reason    string `json:"reason"`
}

// String says what it is that the module may do: "path /etc/app".
func (p Privilege) String() string {
	for _, w := range []struct{ word, what string }{{"path", p.Path}, {"user", p.User}, {"network", p.Network}, {"device", p.Device}, {"container", p.Container}, {"trust", p.Trust}} {
		if w.what != "" {
			return w.word + " " + w.what
		}
	}
	return "nothing"
}

// Resource is one thing on the node. Which fields it has is decided by its kind; placeholders are kept as written.
type Resource struct {
	Kind wire.ResourceKind `json:"kind"`
	Name string            `json:"name,omitempty"` // package, user, process

	Names  map[string]string `json:"names,omitempty"`  // package: apt, dnf, apk -> name
	Unless []string          `json:"unless,omitempty"` // package: globs of executables that make it needless

	Path    string  `json:"path,omitempty"`    // directory, file
	Class   string  `json:"class,omitempty"`   // directory: config, cache, data
	Owner   string  `json:"owner,omitempty"`   // directory, file
	Group   string  `json:"group,omitempty"`   // directory, file
	Mode    string  `json:"mode,omitempty"`    // directory, file: four octal digits
	Content *string `json:"content,omitempty"` // file

	User        string            `json:"user,omitempty"`     // process, container
	Artifact    string            `json:"artifact,omitempty"` // process: of kind files; container: of kind image
	Command     []string          `json:"command,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Ready       *Check            `json:"ready,omitempty"`
	Alive       *Check            `json:"alive,omitempty"`
	Restart     string            `json:"restart,omitempty"`
	Stop        string            `json:"stop,omitempty"` // duration between SIGTERM and SIGKILL
	Signal      string            `json:"signal,omitempty"`
	OnChange    map[string]string `json:"on-change,omitempty"` // every file of the manifest, and certificate/NAME -> restart, reload, signal, none

	Ports      map[string]uint16 `json:"ports,omitempty"` // container: port of the manifest -> port inside
	Mounts     []Mount           `json:"mounts,omitempty"`
	Memory     string            `json:"memory,omitempty"` // a size
	CPU        string            `json:"cpu,omitempty"`    // cores, as 0.5
	PIDs       int64             `json:"pids,omitempty"`
	ReadOnly   bool              `json:"read-only,omitempty"`
	Network    string            `json:"network,omitempty"` // host
	Devices    []string          `json:"devices,omitempty"`
	Privileged bool              `json:"privileged,omitempty"`
	LogSize    string            `json:"log-size,omitempty"` // a size
}

// Mount is a folder or file of the manifest inside a container.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read-only,omitempty"`
}

// Check asks a process whether it is ready, or still alive. Exactly one of HTTP, TCP and Command is set.
type Check struct {
	HTTP     string   `json:"http,omitempty"`
	TCP      string   `json:"tcp,omitempty"`
	Command  []string `json:"command,omitempty"`
	Every    string   `json:"every"`
	Within   string   `json:"within"`
	Failures int      `json:"failures,omitempty"` // alive only
}

// ID names the resource within its instance: "file/app.ini". Paths beneath ${dir} are named from there.
func (r Resource) ID() string { return string(r.Kind) + "/" + r.Label() }

// Label is what the resource is called within its kind.
func (r Resource) Label() string {
	switch r.Kind {
	case wire.Directory, wire.File:
		return fromDir(r.Path)
	case wire.Overlay:
		return "device"
	}
	return r.Name
}

// Canonical gives the bytes that are recorded: defaults filled in, fields and maps in fixed order. Parse reads them back.
func (m *Manifest) Canonical() []byte {
	b, err := wire.Encode(m)
	if err != nil {
		panic(err) // strings, numbers and maps of strings always encode
	}
	return b
}

// Digest names the canonical bytes.
func (m *Manifest) Digest() appliance.Digest { return appliance.DigestOf(m.Canonical()) }
