// Package host says what an agent needs from a machine: an effector for each resource kind, the overlay, and what the machine is.
// The real machine is in linux, a fake one that prints itself in hosttest. What to do, and in which order, is decided elsewhere.
package host

import (
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/wire"
)

// Observation is what an effector found where a resource should be.
type Observation struct {
	Present bool   // something is there
	Matches bool   // and it is exactly what the resource says
	Differs string // what is not, for a person: "mode 0644, want 0640"; never a file's content
}

// Effector makes one kind of resource true. Every method may be called again with the same resource and then does nothing.
type Effector interface {
	// Observe looks and changes nothing.
	Observe(ctx context.Context, r wire.Resource) (Observation, error)
	// Before says what Undo will need to put back what is there now. It is called once, and its answer is on disk before the
	// first Do, so that a kill in between cannot make our own work look like the machine's. Nil: there is nothing to put back.
	Before(ctx context.Context, r wire.Resource) (undo json.RawMessage, err error)
	// Do makes the resource true.
	Do(ctx context.Context, r wire.Resource) error
	// Undo removes what Do made, or puts back what Before saw. kept is true where data stays by rule (DEC-4, MOD-10).
	Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error)
}

// Purger is an effector whose resources hold data: Purge is an Undo that takes the data along, unless it was there before the mesh.
type Purger interface {
	Purge(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error)
}

// Holder is an effector whose resources others may have come to need: Holds says what would be without it, empty where Undo may go on.
// It may take its time, and is asked when a machine leaves.
type Holder interface {
	Holds(ctx context.Context, r wire.Resource, undo json.RawMessage) (why string, err error)
}

// Remnant is an effector whose Undo can leave something behind: Remains says what there is after it.
type Remnant interface {
	Remains(ctx context.Context, r wire.Resource, undo json.RawMessage) ([]Left, error)
}

// Left is something that stays on the machine, and why.
type Left struct {
	What string `json:"what"` // "folder /var/lib/mesh/modules/web/data"
	Why  string `json:"why"`
}

// Running is one process or container as the machine knows it.
type Running struct {
	State    string    // running, stopped, backoff, missing
	PID      int       // 0 where none
	Since    time.Time // of the present process
	Restarts int       // within the last ten minutes
}

// Processes is the effector of what runs, processes or containers, and what else is done with them.
type Processes interface {
	Effector
	Status(ctx context.Context, r wire.Resource) (Running, error)
	// Act does what a change beneath it asks for: restart, reload or signal.
	Act(ctx context.Context, r wire.Resource, action string) error
	// Check runs a check's command as the process's user, in its folder and environment; nil when it exits with 0.
	Check(ctx context.Context, r wire.Resource, command []string) error
	// Log gives the last n lines the process wrote.
	Log(ctx context.Context, r wire.Resource, n int) ([]string, error)
}

// Attacher is a Processes that operators can be attached to.
type Attacher interface {
	// Exec runs a command where and as the resource runs, and gives its exit code. The end of ctx ends it with all it started.
	Exec(ctx context.Context, r wire.Resource, a Attachment) (code int, err error)
	// Follow gives the last n lines that the resource wrote, and with follow those that it writes, until ctx ends. Each comes without
	// its newline; emit may take its time.
	Follow(ctx context.Context, r wire.Resource, n int, follow bool, emit func(line []byte) error) error
}

// Attachment is a command with someone attached to it.
type Attachment struct {
	Command  []string
	Stdin    io.Reader // nil: none
	Stdout   io.Writer
	Stderr   io.Writer          // not used with a terminal
	Terminal *wire.TerminalSize // nil: none
	Resize   <-chan wire.TerminalSize
	Term     string
}

// OverlayState is everything the overlay device shall be; derived from the membership. The zero value means: take it down.
type OverlayState struct {
	Address netip.Prefix // own address with the range's length
	Port    uint16       // 0: any
	Relay   bool         // turn packets between peers back (the hub)
	Peers   []OverlayPeer
	Hosts   map[appliance.NodeName]netip.Addr // what <node>.internal resolves to
}

// OverlayPeer is one peer of the device.
type OverlayPeer struct {
	Key       string // public, base64
	Allowed   []netip.Prefix
	Endpoint  string // host:port, empty where not known
	Keepalive time.Duration
}

// OverlayPeerState is what the device knows of a peer.
type OverlayPeerState struct {
	Key       string
	Endpoint  string
	Handshake time.Time // zero: none yet
	Received  int64
	Sent      int64
}

// Overlay is the WireGuard device together with the block in the hosts file.
type Overlay interface {
	Set(ctx context.Context, want OverlayState) error      // whole state, idempotent
	State(ctx context.Context) ([]OverlayPeerState, error) // nil: the device is down; without peers it is empty
	Handshake()                                            // start one with every peer now
	Close() error                                          // let go of the device; interface, address and routes stay for the next agent
}

// Runner gives the effector of a kind that runs; nil where the machine has none.
func (m Machine) Runner(kind wire.ResourceKind) Processes {
	switch kind {
	case wire.Process:
		return m.Processes
	case wire.Container:
		return m.Containers
	}
	return nil
}

// Machine is everything together.
type Machine struct {
	Effectors  map[wire.ResourceKind]Effector // all kinds but what runs, and the overlay
	Processes  Processes
	Containers Processes // nil: the machine can have no engine
	Overlay    Overlay
	// Request gives what the mesh has to sign for a certificate resource, the same for as long as its key is; nil where there is no key yet.
	Request func(ctx context.Context, r wire.Resource) ([]byte, error)
	// Size says how much lies in a folder with everything beneath it, in bytes.
	Size func(ctx context.Context, r wire.Resource) (int64, error)
	// Collect removes artifacts that are not among these (DEC-14). It is called when all is well without them.
	Collect      func(ctx context.Context, keep []appliance.Digest) error
	Capabilities func() wire.Capabilities
	Warnings     func() []wire.Warning      // standing conditions of the machine itself; nil: it has none
	MachineID    func() string              // hash of the machine's id
	Space        func() (disk.Space, error) // of the filesystem with the state folder
	// Tidy takes away what is on the machine beside resources, once these are gone; nil: there is nothing.
	Tidy func(ctx context.Context) error
}
