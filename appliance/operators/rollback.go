package operators

import (
	"time"

	"github.com/novox/mesh/appliance"
)

// ListPlans asks for what was approved for a node, the last first. Limit 0 means 20.
type ListPlans struct {
	Node  appliance.NodeName `json:"node"`
	Limit int                `json:"limit,omitempty"`
}

// PlanHistory is the answer.
type PlanHistory struct {
	Node  appliance.NodeName `json:"node"`
	Plans []ApprovedPlan     `json:"plans"`
}

// ApprovedPlan is one of them with what it changed.
type ApprovedPlan struct {
	Number  uint64    `json:"number"`
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Present bool      `json:"present,omitempty"`
	Changes []Change  `json:"changes"`
	More    int       `json:"more,omitempty"` // changes that are not shown here
}

// Rollback asks to approve an earlier plan of a node again, or for a module its instances as they were before their present version,
// wherever they differ. Without Steps it only says what that would be; with them, as it was said, it is done.
type Rollback struct {
	Name  string         `json:"name"`         // of a node or a module: they share one namespace
	To    uint64         `json:"to,omitempty"` // of a node's plans; 0: the last before the present one with other instances
	Steps []RollbackStep `json:"steps,omitempty"`
}

// RollbackStep is what happens on one node.
type RollbackStep struct {
	Node    appliance.NodeName `json:"node"`
	From    uint64             `json:"from"` // the present plan
	To      uint64             `json:"to"`   // the one whose instances come back
	Changes []Change           `json:"changes,omitempty"`
}

// RolledBack is the answer; Nodes is there once it is done.
type RolledBack struct {
	Steps []RollbackStep `json:"steps"`
	Nodes []PushedNode   `json:"nodes,omitempty"`
}
