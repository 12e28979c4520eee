// Package certificates decides which certificates the mesh owes its instances: what nodes ask for, as far as approved plans name it.
// Signing is pki's, recording the store's.
package certificates

import (
	"bytes"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
)

// Request is a key that a node asks to have certified for an instance.
type Request struct {
	Node     appliance.NodeID
	Instance appliance.InstanceName
	Name     string // the manifest's
	Request  []byte // PKCS #10, DER; its names decide nothing
}

// Certificate is one that was issued to an instance.
type Certificate struct {
	Node     appliance.NodeID
	Instance appliance.InstanceName
	Name     string   // the manifest's
	Names    []string // sorted
	Request  []byte   // what it was issued for
	DER      []byte
	Serial   string
	IssuedAt time.Time
	EndsAt   time.Time
	Keys     int // of a present one: how many others were certified in its place within the day before
}

// maxDoublings bounds how long a key waits: at two seconds some two hours.
const maxDoublings = 12

func (c Certificate) answers(r Request) bool {
	return c.Node == r.Node && c.Instance == r.Instance && c.Name == r.Name
}

// Due gives what has to be signed, up to the names: for each request that the plan of its node names, unless it was answered under these
// names. What no plan names is left alone: the node may be ahead of us, or behind.
//
// A key that takes the place of one certified less than rest ago has to wait, twice as long for each that came within a day: no node has
// the records filled, nor the list of what is revoked once it is removed. In says when the first of those that wait is due.
func Due(plans map[appliance.NodeID]resolve.Plan, requests []Request, issued []Certificate, now time.Time, rest time.Duration) (due []Certificate, later []appliance.NodeID, in time.Duration) {
	for _, r := range requests {
		plan := plans[r.Node].Instances
		i := slices.IndexFunc(plan, func(i resolve.Instance) bool { return i.Name == r.Instance })
		if i < 0 {
			continue
		}
		asked, named := plan[i].Certificates[r.Name]
		if !named {
			continue
		}
		var have Certificate
		if i := slices.IndexFunc(issued, func(c Certificate) bool { return c.answers(r) }); i >= 0 {
			have = issued[i]
		}
		wait := have.IssuedAt.Add(rest << min(have.Keys, maxDoublings)).Sub(now)
		switch another := !bytes.Equal(have.Request, r.Request); {
		case !another && slices.Equal(have.Names, asked.Names):
		case another && wait > 0:
			if len(later) == 0 || wait < in {
				in = wait
			}
			later = append(later, r.Node)
		default:
			due = append(due, Certificate{Node: r.Node, Instance: r.Instance, Name: r.Name, Names: asked.Names, Request: r.Request})
		}
	}
	return due, later, in
}
