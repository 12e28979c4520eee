// Package manifest reads module.json: the schema says what a file may hold, Parse says everything that is wrong with one.
// It knows one file only; what needs several manifests in view (seats, ports, paths of one node) belongs to resolve.
package manifest

import (
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Manifest is a parsed module.json. Everything Parse has accepted is in here with its defaults filled in; the fields of the
// schema that this version does not carry out are refused before (see notYet) and so have no place here.
type Manifest struct {
	Module      appliance.ModuleName `json:"module"`
	Description string               `json:"description,omitempty"`
	Seats       []Seat               `json:"seats,omitempty"`
	Claims      []appliance.SeatName `json:"claims,omitempty"`
	Ports       map[string]Port      `json:"ports,omitempty"`
	Privileged  []Privilege          `json:"privileged,omitempty"`
	Resources   []Resource           `json:"resources,omitempty"`
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

// Privilege is something a module may not do without saying why. Exactly one of Path and User is set.
type Privilege struct {
	Path   string `json:"path,omitempty"` // a path outside ${dir}, and everything beneath it
	User   string `json:"user,omitempty"` // root or mesh
	Reason string `json:"reason"`
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

	User        string            `json:"user,omitempty"` // process
	Command     []string          `json:"command,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Ready       *Check            `json:"ready,omitempty"`
	Alive       *Check            `json:"alive,omitempty"`
	Restart     string            `json:"restart,omitempty"`
	Stop        string            `json:"stop,omitempty"`      // duration between SIGTERM and SIGKILL
	OnChange    map[string]string `json:"on-change,omitempty"` // every file of the manifest -> restart, reload, none
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
