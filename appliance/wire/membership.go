package wire

import (
	"net/netip"

	"github.com/novox/mesh/appliance"
)

// Membership is the one signed document that is the same for all: who is in the mesh and how to reach them. Its number is in the envelope.
type Membership struct {
	Version int          `json:"version"`
	Range   netip.Prefix `json:"range"`
	Port    uint16       `json:"port"`              // the hub's overlay port
	Broker  []string     `json:"broker"`            // the broker's endpoints, host:port, public ones first
	Members []Member     `json:"members"`           // by name
	Revoked []string     `json:"revoked,omitempty"` // serials of revoked certificates, sorted
}

// Member is one node as the others see it.
type Member struct {
	ID       appliance.NodeID   `json:"id"`
	Name     appliance.NodeName `json:"name"`
	Address  netip.Addr         `json:"address"`
	Key      string             `json:"key"`                // overlay public key, base64
	Endpoint string             `json:"endpoint,omitempty"` // host:port of its overlay socket, where known
	Hub      bool               `json:"hub,omitempty"`
}
