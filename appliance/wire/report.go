package wire

import (
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
)

// Report is what a node did about a declaration (About, Outcomes, Health), facts it states, or both. A report with neither is refused.
// Its sequence is in the envelope and rises for as long as the node lives.
type Report struct {
	Version  int       `json:"version"`
	About    *About    `json:"about,omitempty"`
	Outcomes []Outcome `json:"outcomes,omitempty"`
	Health   []Health  `json:"health,omitempty"`
	Kept     []Kept    `json:"kept,omitempty"`
	Facts    *Facts    `json:"facts,omitempty"`
	Warnings []Warning `json:"warnings,omitempty"`
}

// About names the declaration a report is about.
type About struct {
	Number appliance.Number `json:"number"`
	Digest appliance.Digest `json:"digest"`
}

// Status is what became of one resource.
type Status string

const (
	Unchanged  Status = "unchanged"
	Applied    Status = "applied"
	Removed    Status = "removed"
	StatusKept Status = "kept"    // left the declaration, its data stays
	Refused    Status = "refused" // the node will not do it
	Failed     Status = "failed"
	Waiting    Status = "waiting" // nothing is wrong: something else has to come first, or the node is held
)

// StepFound is the step of what is refused because something was there before the mesh (NODE-7).
const StepFound = "found"

// Outcome is the account of one resource.
type Outcome struct {
	ID       string                 `json:"id"`
	Instance appliance.InstanceName `json:"instance"`
	Kind     ResourceKind           `json:"kind"`
	Status   Status                 `json:"status"`
	Step     string                 `json:"step,omitempty"` // what was being done: observe, do, undo, drift, ready, depends on …
	Error    string                 `json:"error,omitempty"`
	Drift    string                 `json:"drift,omitempty"` // what differed from what was made, since this declaration; never a file's content
	Log      []string               `json:"log,omitempty"`   // the last ten lines
}

// HealthState is how an instance is.
type HealthState string

const (
	Starting  HealthState = "starting"
	Healthy   HealthState = "healthy"
	Unhealthy HealthState = "unhealthy"
	Looping   HealthState = "crash-looping"
	Stopped   HealthState = "stopped"
)

// Worse gives the worse of two states.
func Worse(a, b HealthState) HealthState {
	order := []HealthState{Healthy, Starting, Stopped, Unhealthy, Looping}
	if slices.Index(order, b) > slices.Index(order, a) {
		return b
	}
	return a
}

// Health is the state of one instance since a time.
type Health struct {
	Instance appliance.InstanceName `json:"instance"`
	State    HealthState            `json:"state"`
	Since    time.Time              `json:"since"`
	Why      string                 `json:"why,omitempty"`
	Log      []string               `json:"log,omitempty"`
}

// Kept is data that no declaration names any more.
type Kept struct {
	Instance appliance.InstanceName `json:"instance"`
	Path     string                 `json:"path"`
	Bytes    int64                  `json:"bytes,omitempty"` // when it was kept; below zero: not known
	Since    time.Time              `json:"since,omitzero"`
}

// Facts are what a machine states of itself; a set that is present replaces the recorded one whole.
type Facts struct {
	Carried  *[]CarriedPort        `json:"carried,omitempty"`
	Requests *[]CertificateRequest `json:"requests,omitempty"`
	Leaving  bool                  `json:"leaving,omitempty"` // this machine is on its way out of the mesh, and shall be removed from it
}

// CertificateRequest asks the mesh's authority to sign a key that the node made for an instance.
type CertificateRequest struct {
	Instance appliance.InstanceName `json:"instance"`
	Name     string                 `json:"name"`    // the manifest's
	Request  []byte                 `json:"request"` // PKCS #10, DER, signed by the key; its names decide nothing
}

// CarriedPort is a port that a carried resource binds.
type CarriedPort struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"` // tcp, udp
	Part     string `json:"part"`     // broker, downloads, overlay
}

// Warning is a standing condition.
type Warning struct {
	Code     string `json:"code"`
	Severity string `json:"severity"` // info, warning, error
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
}

// Alive is the heartbeat. Frozen as part of version 0; fields are only ever added.
type Alive struct {
	Number       appliance.Number `json:"number"`             // applied
	Digest       appliance.Digest `json:"digest"`             // of the declaration applied; empty before the first
	Membership   appliance.Number `json:"membership"`         // applied
	Run          string           `json:"run"`                // random, one per start of the agent
	Machine      string           `json:"machine"`            // hash of the machine id
	Handshake    time.Time        `json:"handshake,omitzero"` // the overlay's last with the hub; on the hub with anybody
	Capabilities Capabilities     `json:"capabilities"`
}

// Architectures are those of machines that can be nodes, as Go names them.
var Architectures = []string{"amd64", "arm64"}

// Capabilities is what a node says it understands (UPG-3). An absent field is read as the cautious answer.
type Capabilities struct {
	Wire         int              `json:"wire"`
	Binary       string           `json:"binary"` // version text
	Digest       appliance.Digest `json:"digest"` // of the binary
	OS           string           `json:"os"`
	Architecture string           `json:"architecture"`
	Distribution string           `json:"distribution"`      // ID of os-release
	Init         string           `json:"init"`              // systemd, openrc, none
	Runtime      string           `json:"runtime,omitempty"` // docker, podman
	State        string           `json:"state"`             // folder of the installation
	Kinds        []ResourceKind   `json:"kinds"`
}
