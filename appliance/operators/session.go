package operators

import (
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// OpenSession attaches to an instance on a node. Output comes, signed by the mesh and under the session's name as nonce, to Output, which
// lies beneath the operator's own inbox prefix. Open.Run is the controller's to fill in.
type OpenSession struct {
	Session string             `json:"session"`
	Node    appliance.NodeName `json:"node"`
	Output  string             `json:"output"`
	Credit  int                `json:"credit"`
	Open    wire.Opening       `json:"open"`
}

// SendSession is the next frame to the node. Frames are sent one after the other: each waits for the answer to the one before, and has a
// higher sequence, from 1 on, so that none counts twice.
type SendSession struct {
	Session  string             `json:"session"`
	Sequence uint64             `json:"sequence"`
	Input    []byte             `json:"input,omitempty"`
	End      bool               `json:"end,omitempty"`
	Size     *wire.TerminalSize `json:"size,omitempty"`
	Credit   int                `json:"credit,omitempty"`
	Close    bool               `json:"close,omitempty"`
}
