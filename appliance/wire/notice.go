package wire

import (
	"time"

	"github.com/novox/mesh/appliance"
)

// Notice asks one node for something. It has no number: its time says whether it is meant for now.
type Notice struct {
	Version int  `json:"version"`
	Check   bool `json:"check,omitempty"` // look at everything declared, now (DEC-6)
}

// NoticeWindow is how far a node's clock may be from the time of a notice.
const NoticeWindow = 2 * time.Minute

// ParseNotice reads a notice's body. One that asks for nothing is refused: whoever sent it believes that it was heard.
func ParseNotice(body []byte) (Notice, error) {
	var n Notice
	if err := Decode(body, &n); err != nil {
		return Notice{}, appliance.Errorf(appliance.Invalid, "read notice: %w", err)
	}
	if n.Version != Version || !n.Check {
		return Notice{}, appliance.Errorf(appliance.Invalid, "read notice: of version %d, it asks for nothing that is known here", n.Version)
	}
	return n, nil
}
