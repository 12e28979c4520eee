package wire

import "github.com/novox/mesh/appliance"

// Rekey says that a node's overlay key changed; the envelope is signed by its identity and numbered by its sequence. Without a challenge
// it asks for one; the second carries it and the proof (NET-8).
type Rekey struct {
	Node      appliance.NodeID `json:"node"`
	Old       string           `json:"old"`              // overlay public key, base64
	New       string           `json:"new"`              // the same
	Tunnel    string           `json:"tunnel,omitempty"` // the interface the key was found on; empty for our own
	Challenge *Challenge       `json:"challenge,omitempty"`
	Proof     string           `json:"proof,omitempty"` // of the new key
}
