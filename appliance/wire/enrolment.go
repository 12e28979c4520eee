package wire

import (
	"net/netip"
	"time"

	"github.com/novox/mesh/appliance"
)

// Hello opens an enrolment; signed by the token's claim key. The controller answers with a Challenge or a Refusal.
type Hello struct {
	Token appliance.TokenID `json:"token"`
	Nonce string            `json:"nonce"`
}

// Challenge asks the joiner to prove its overlay key: a keyed answer under Diffie-Hellman with Ephemeral.
type Challenge struct {
	Token     appliance.TokenID `json:"token"`
	Nonce     string            `json:"nonce"`     // the joiner's
	Challenge string            `json:"challenge"` // the controller's own, 32 bytes base64
	Ephemeral string            `json:"ephemeral"` // X25519 public key, base64
	Time      time.Time         `json:"time"`      // the controller's clock
	Range     netip.Prefix      `json:"range"`     // for the joiner's check before anything is spent
}

// Claim spends the token. The envelope is signed by the claim key; Signature is the identity key's over everything else in it.
type Claim struct {
	Token        appliance.TokenID  `json:"token"`
	Mesh         appliance.MeshID   `json:"mesh"`
	Nonce        string             `json:"nonce"`
	Challenge    Challenge          `json:"challenge"` // as given
	Time         time.Time          `json:"time"`
	Name         appliance.NodeName `json:"name"`
	Labels       map[string]string  `json:"labels,omitempty"`
	Adopt        bool               `json:"adopt,omitempty"` // leave what is on the machine as it is (NODE-7)
	Keys         PublicKeys         `json:"keys"`
	Proof        string             `json:"proof"`   // of the overlay key
	Request      []byte             `json:"request"` // certificate request, signed by the TLS key
	Capabilities Capabilities       `json:"capabilities"`
	Signature    string             `json:"signature"` // Ed25519 by the identity key, base64
}

// PublicKeys are the public halves of what a node makes; the private halves never leave it.
type PublicKeys struct {
	Identity string `json:"identity"` // Ed25519, base64
	Overlay  string `json:"overlay"`  // WireGuard, base64
	Sealing  string `json:"sealing"`  // age recipient
	TLS      string `json:"tls"`      // SPKI, base64
	Bus      string `json:"bus"`      // user nkey
}

// Enrolled is the answer, sealed to the claimant's sealing key inside a mesh-signed envelope.
type Enrolled struct {
	Node        appliance.NodeID   `json:"node"`
	Name        appliance.NodeName `json:"name"`
	MeshName    string             `json:"meshName"`
	Address     netip.Addr         `json:"address"`
	Certificate []byte             `json:"certificate"` // DER, for the node's TLS key
	Authority   []byte             `json:"authority"`   // DER
	Membership  []byte             `json:"membership"`  // signed envelope; lacks the claimant until the next one
}
