package operators

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// NewToken asks for a join token. TTL 0 means one hour, Uses 0 one.
type NewToken struct {
	TTL   time.Duration      `json:"ttl,omitempty"` // nanoseconds
	Uses  int                `json:"uses,omitempty"`
	Name  appliance.NodeName `json:"name,omitempty"` // the name the joiner must take
	Label map[string]string  `json:"label,omitempty"`
}

// CreatedToken is the only time the token is seen.
type CreatedToken struct {
	ID      appliance.TokenID `json:"id"`
	Token   string            `json:"token"`
	Expires time.Time         `json:"expires"`
	Join    []string          `json:"join"`   // one ready-made line per address of the hub, for a machine that has the binary
	Curl    []string          `json:"curl"`   // the same for a bare machine: they bring the binary first
	Serves  []string          `json:"serves"` // architectures that the hub has a binary for
}

// Token is a token as listed: never its secret.
type Token struct {
	ID      appliance.TokenID  `json:"id"`
	Uses    int                `json:"uses"`
	Used    int                `json:"used"`
	Expires time.Time          `json:"expires"`
	State   string             `json:"state"` // open, used, expired, revoked
	Name    appliance.NodeName `json:"name,omitempty"`

	Replaces bool `json:"replaces,omitempty"` // its machine takes the place of the node of that name
}

// RevokeToken names a token by its id.
type RevokeToken struct {
	ID appliance.TokenID `json:"id"`
}

// RegisterModule carries a whole module.json.
type RegisterModule struct {
	Manifest json.RawMessage `json:"manifest"`
}

// Registered says what a registration recorded.
type Registered struct {
	Module  appliance.ModuleName `json:"module"`
	Version appliance.Digest     `json:"version"`
	Changed bool                 `json:"changed"`
	Nodes   []appliance.NodeName `json:"nodes"` // with changes not pushed

	Privileged []Privilege `json:"privileged,omitempty"`
}

// Privilege is something that a module may do on its nodes, and why (MOD-14).
type Privilege struct {
	Instance appliance.InstanceName `json:"instance,omitempty"`
	What     string                 `json:"what"` // "path /etc/app", "user root"
	Reason   string                 `json:"reason"`
}

// Module is a module as listed or shown.
type Module struct {
	Name        appliance.ModuleName `json:"name"`
	Description string               `json:"description"`
	Version     appliance.Digest     `json:"version"`
	Base        bool                 `json:"base,omitempty"`
	Privileged  []Privilege          `json:"privileged,omitempty"`
	Instances   []Instance           `json:"instances"`
}

// Instance is one assignment with what is known of it.
type Instance struct {
	Name   appliance.InstanceName `json:"name"`
	Node   appliance.NodeName     `json:"node"`
	Health wire.HealthState       `json:"health"`
	Ports  map[string]uint16      `json:"ports"`
}

// ShowModule names a module.
type ShowModule struct {
	Module appliance.ModuleName `json:"module"`
}

// AssignModule gives a node a module, under a name.
type AssignModule struct {
	Module appliance.ModuleName   `json:"module"`
	Node   appliance.NodeName     `json:"node"`
	As     appliance.InstanceName `json:"as,omitempty"` // default: the module's name
}

// UnassignModule takes an instance from a node. Its data stays there.
type UnassignModule struct {
	Instance appliance.InstanceName `json:"instance"`
	Node     appliance.NodeName     `json:"node"`
}

// RemoveModule has the mesh forget a module. Show only tells what could not be without it.
type RemoveModule struct {
	Module appliance.ModuleName `json:"module"`
	Force  bool                 `json:"force,omitempty"` // unassign what cannot be without it
	Show   bool                 `json:"show,omitempty"`
}

// RemovedModule names what cannot be without the module: by force it was unassigned. Its data stays on the nodes.
type RemovedModule struct {
	Module appliance.ModuleName `json:"module"`
	Broken []ModuleUse          `json:"broken"`
	Nodes  []appliance.NodeName `json:"nodes"` // with changes not pushed
}

// ModuleUse is an instance of a module, or one that holds a seat which only the module declares.
type ModuleUse struct {
	Instance appliance.InstanceName `json:"instance"`
	Node     appliance.NodeName     `json:"node"`
	Seat     appliance.SeatName     `json:"seat,omitempty"`
}

// Recorded says what a recording verb left to be pushed.
type Recorded struct {
	Instance appliance.InstanceName `json:"instance,omitempty"`
	Nodes    []appliance.NodeName   `json:"nodes"` // with changes not pushed
}

// Scope narrows a plan or push; empty means everything.
type Scope struct {
	Nodes []appliance.NodeName `json:"nodes,omitempty"`
	Only  appliance.ModuleName `json:"only,omitempty"`
}

// NodePlan is what a push would change on one node.
type NodePlan struct {
	Node    appliance.NodeName `json:"node"`
	Changes []Change           `json:"changes"`

	Privileged []Privilege `json:"privileged,omitempty"` // of the instances that come, or come in another version
}

// Change is one line of a plan.
type Change struct {
	Instance appliance.InstanceName `json:"instance"`
	Resource string                 `json:"resource,omitempty"`
	What     string                 `json:"what"` // add, change, remove
	Detail   string                 `json:"detail,omitempty"`
	By       string                 `json:"by,omitempty"` // who recorded it
	At       time.Time              `json:"at,omitzero"`
}

// Plan is the answer to plan.show.
type Plan struct {
	Nodes []NodePlan `json:"nodes"` // only those with changes
}

// Pushed is the answer to plan.push.
type Pushed struct {
	Nodes []PushedNode `json:"nodes"`
}

// PushedNode is one node the push approved a plan for, or found unchanged.
type PushedNode struct {
	Node   appliance.NodeName `json:"node"`
	Number appliance.Number   `json:"number"`
	Digest appliance.Digest   `json:"digest"`
	Sent   bool               `json:"sent"`
	Held   bool               `json:"held,omitempty"` // it changes nothing until it is resumed
}

// Status is the answer to status.show; its JSON is what `mesh status -o json` prints.
type Status struct {
	Mesh  StatusMesh   `json:"mesh"`
	Nodes []NodeStatus `json:"nodes"`
}

type StatusMesh struct {
	ID   appliance.MeshID `json:"id"`
	Name string           `json:"name"`
}

// NodeStatus is what the mesh knows of one node.
type NodeStatus struct {
	Name      appliance.NodeName  `json:"name"`
	ID        appliance.NodeID    `json:"id"`
	Mode      string              `json:"mode"`
	Machine   Machine             `json:"machine"`
	LastSeen  time.Time           `json:"lastSeen,omitzero"`
	Lost      bool                `json:"lost"`
	Held      bool                `json:"held,omitempty"`     // it changes nothing
	HeldUntil time.Time           `json:"heldUntil,omitzero"` // zero: until it is resumed
	Drained   bool                `json:"drained,omitempty"`  // its modules do not run, but for the base
	Clone     bool                `json:"clone,omitempty"`
	Current   bool                `json:"current"`
	Number    string              `json:"number"`
	Unpushed  int                 `json:"unpushed"`
	Declared  appliance.Digest    `json:"declared"`
	Reported  appliance.Digest    `json:"reported"`
	Outcome   string              `json:"outcome"` // none, clean, waiting, failed
	Health    wire.HealthState    `json:"health"`
	Resources map[wire.Status]int `json:"resources"`
	Failures  []wire.Outcome      `json:"failures,omitempty"`
	Waiting   []wire.Outcome      `json:"waiting,omitempty"` // for something that has to come first
	Drift     []Drift             `json:"drift,omitempty"`
	Instances []InstanceStatus    `json:"instances"`
	Kept      []wire.Kept         `json:"kept,omitempty"`
	Warnings  []wire.Warning      `json:"warnings"`
}

// Machine is what a node says of its machine, and what its token said of it.
type Machine struct {
	Address      netip.Addr        `json:"address"`  // in the overlay
	Platform     string            `json:"platform"` // OS/ARCHITECTURE
	Distribution string            `json:"distribution"`
	Init         string            `json:"init"`
	Runtime      string            `json:"runtime,omitempty"` // of containers
	Version      string            `json:"version"`           // of its agent
	Labels       map[string]string `json:"labels,omitempty"`
}

// Drift is a resource that was found to differ from what the node had made, since its last declaration.
type Drift struct {
	ID       string `json:"id"`
	What     string `json:"what"`
	Repaired bool   `json:"repaired"`
}

// CheckNodes asks nodes to look at everything declared there, now; none named means all.
type CheckNodes struct {
	Nodes []appliance.NodeName `json:"nodes,omitempty"`
}

// Checked names the nodes that were asked. What they find is in their status.
type Checked struct {
	Nodes []appliance.NodeName `json:"nodes"`
}

// RemoveNode names a node that shall be none.
type RemoveNode struct {
	Node appliance.NodeName `json:"node"`
}

// RemovedNode says what a node was.
type RemovedNode struct {
	Node      appliance.NodeName       `json:"node"`
	ID        appliance.NodeID         `json:"id"`
	Instances []appliance.InstanceName `json:"instances"` // that were assigned to it
	Revoked   int                      `json:"revoked"`   // certificates
	Knows     []string                 `json:"knows"`     // secrets that an operator set and its machine goes on knowing: change them
}

// ReplaceNode asks for a token with which another machine takes a node's place. TTL 0 means one hour.
type ReplaceNode struct {
	Node appliance.NodeName `json:"node"`
	TTL  time.Duration      `json:"ttl,omitempty"` // nanoseconds
}

// InstanceStatus is what the mesh knows of one instance.
type InstanceStatus struct {
	Name    appliance.InstanceName `json:"name"`
	Health  wire.HealthState       `json:"health"`
	Since   time.Time              `json:"since,omitzero"`
	Stopped bool                   `json:"stopped,omitempty"` // an operator wants it so: it is no fault
	Why     string                 `json:"why,omitempty"`
	Log     []string               `json:"log,omitempty"`
}

// Overlay is the answer to overlay.show.
type Overlay struct {
	Range netip.Prefix  `json:"range"`
	Nodes []OverlayNode `json:"nodes"`
}

// OverlayNode is one node of the overlay. Path is how the hub reaches it.
type OverlayNode struct {
	Name      appliance.NodeName `json:"name"`
	Address   netip.Addr         `json:"address"`
	Hub       bool               `json:"hub,omitempty"`
	Endpoint  string             `json:"endpoint,omitempty"`
	Path      string             `json:"path"` // direct, relayed, down
	Handshake time.Time          `json:"handshake,omitzero"`
}

// ListAudit asks for the newest rows, newest first. Limit 0 means 100.
type ListAudit struct {
	Limit int `json:"limit,omitempty"`
}

// AuditEntry is one recorded change.
type AuditEntry struct {
	At      time.Time       `json:"at"`
	Who     string          `json:"who"`
	What    string          `json:"what"`
	Subject string          `json:"subject"`
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
}
