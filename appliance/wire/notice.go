package wire

import (
	"time"

	"github.com/novox/mesh/appliance"
)

// Notice asks one node for something. It has no number: its time says whether it is meant for now.
type Notice struct {
	Version int  `json:"version"`
	Check   bool `json:"check,omitempty"` // look at everything declared, now (DEC-6)

	Restart appliance.InstanceName `json:"restart,omitempty"` // what runs of this instance, once (OPS-1)
	Purge   appliance.InstanceName `json:"purge,omitempty"`   // remove the data that is kept of this instance (MOD-10)
	// Removed is an identity key, base64: the machine that has it is no node any more, and stops its modules for good (NODE-8). Another
	// machine may have the node's id by now, so the id alone says nothing.
	Removed string `json:"removed,omitempty"`
}

// NoticeWindow is how far a node's clock may be from the time of a notice.
const NoticeWindow = 2 * time.Minute

const maxKey = 64 // bytes of a key as text

// ParseNotice reads a notice's body. One that asks for nothing is refused: whoever sent it believes that it was heard.
func ParseNotice(body []byte) (Notice, error) {
	var n Notice
	if err := Decode(body, &n); err != nil {
		return Notice{}, appliance.Errorf(appliance.Invalid, "read notice: %w", err)
	}
	if n.Version != Version || !n.Check && n.Restart == "" && n.Removed == "" && n.Purge == "" || len(n.Removed) > maxKey {
		return Notice{}, appliance.Errorf(appliance.Invalid, "read notice: of version %d, it asks for nothing that is known here", n.Version)
	}
	for _, name := range []appliance.InstanceName{n.Restart, n.Purge} {
		if name == "" {
			continue
		}
		if _, err := appliance.ParseName[appliance.InstanceName]("instance", string(name)); err != nil {
			return Notice{}, appliance.Errorf(appliance.Invalid, "read notice: %w", err)
		}
	}
	return n, nil
}
