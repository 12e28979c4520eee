package enrol

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

// Rekeying is a node that says its overlay key changed (NET-8).
type Rekeying struct {
	Mesh     appliance.MeshID
	Node     appliance.NodeID
	Identity ed25519.PrivateKey
	Old      [32]byte // public half of the key the mesh knows
	New      [32]byte // private half of the key that took its place
	Tunnel   string   // the interface it was found on; empty for our own
}

// MakeRekey makes the message: without a challenge the question for one, with it the proof. Sequence is the node's own, rising.
func MakeRekey(r Rekeying, c *wire.Challenge, sequence uint64, nonce, reply string, now time.Time) ([]byte, error) {
	encode := base64.StdEncoding.EncodeToString
	public := identity.OverlayPublic(r.New)
	say := wire.Rekey{Node: r.Node, Old: encode(r.Old[:]), New: encode(public[:]), Tunnel: r.Tunnel, Challenge: c}
	body, err := wire.Encode(say)
	if err != nil {
		return nil, fmt.Errorf("make rekey: %w", err)
	}
	if c != nil {
		if say.Proof, err = prove(rekeying, r.New, c.Ephemeral, body); err != nil {
			return nil, err
		}
		if body, err = wire.Encode(say); err != nil {
			return nil, fmt.Errorf("make rekey: %w", err)
		}
	}
	return wire.Seal(wire.Header{
		Kind: wire.KindRekey, Version: wire.Version, Mesh: r.Mesh, From: string(r.Node), To: string(r.Mesh),
		Sequence: sequence, Nonce: nonce, Reply: reply, Time: now,
	}, body, r.Identity)
}

// NewRekeyChallenge answers a rekey that has no challenge; SealChallenge signs it.
func NewRekeyChallenge(secret [32]byte, mesh appliance.MeshID, asked wire.Header, r netip.Prefix, now time.Time) (wire.Challenge, error) {
	return newChallenge(rekeying, secret, mesh, "", rekeyNonce(asked.From, asked.Nonce), r, now)
}

// rekeyNonce binds a challenge to the node that asked.
func rekeyNonce(node, nonce string) string { return node + "/" + nonce }

// Live is what the records say of a node.
type Live struct {
	Node     appliance.NodeID
	Identity ed25519.PublicKey
	Overlay  [32]byte
	Sequence uint64 // the highest rekey sequence taken from it
}

var tunnelName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{0,15}$`)

// VerifyRekey checks a rekey against the live keys of its node. With proven false it asks for a challenge and nothing has changed.
func VerifyRekey(data []byte, mesh appliance.MeshID, secret [32]byte, live Live, now time.Time) (say wire.Rekey, key [32]byte, proven bool, err error) {
	h, body, err := wire.Open(data, wire.KindRekey, live.Identity)
	if err != nil {
		return say, key, false, err
	}
	if len(body) > maxClaim {
		return say, key, false, appliance.Errorf(appliance.Invalid, "open rekey: %d bytes, at most %d", len(body), maxClaim)
	}
	if err := wire.Decode(body, &say); err != nil {
		return say, key, false, appliance.Errorf(appliance.Invalid, "read rekey: %w", err)
	}
	switch {
	case h.Mesh != mesh || h.To != string(mesh) || h.From != string(live.Node) || say.Node != live.Node || !tunnelName.MatchString(say.Tunnel):
		return say, key, false, Refuse(Proof, "verify rekey: it is for another mesh or of another node")
	case h.Sequence <= live.Sequence:
		return say, key, false, Refuse(ChallengeStale, fmt.Sprintf("verify rekey: sequence %d was taken, the last is %d", h.Sequence, live.Sequence))
	case say.Old != base64.StdEncoding.EncodeToString(live.Overlay[:]):
		return say, key, false, Refuse(Proof, "verify rekey: the old key is not the node's live key")
	}
	if key, err = identity.ParseOverlay(say.New); err != nil {
		return say, key, false, err
	}
	if say.Challenge == nil {
		return say, key, false, checkClock("the node", h.Time, now)
	}
	if say.Challenge.Nonce != rekeyNonce(h.From, h.Nonce) {
		return say, key, false, Refuse(Proof, "verify rekey: the challenge was for another node or question")
	}
	ephemeral, err := verifyChallenge(rekeying, secret, mesh, *say.Challenge, now)
	if err != nil {
		return say, key, false, err
	}
	unproven := say
	unproven.Proof = ""
	says, err := wire.Encode(unproven)
	if err != nil {
		return say, key, false, fmt.Errorf("verify rekey: %w", err)
	}
	if err := verifyProof(rekeying, ephemeral, key, says, say.Proof); err != nil {
		return say, key, false, err
	}
	return say, key, true, nil
}

// OpenRekeyChallenge reads the mesh's answer to a rekey without a challenge.
func OpenRekeyChallenge(data []byte, mesh appliance.MeshID, signing ed25519.PublicKey, node appliance.NodeID, nonce string) (wire.Challenge, error) {
	h, body, err := wire.Open(data, wire.KindChallenge, signing)
	if err != nil {
		return wire.Challenge{}, err
	}
	var c wire.Challenge
	if err := wire.Decode(body, &c); err != nil {
		return wire.Challenge{}, appliance.Errorf(appliance.Invalid, "read challenge: %w", err)
	}
	if h.Mesh != mesh || h.From != string(mesh) || h.To != string(node) || h.Nonce != nonce || c.Nonce != rekeyNonce(string(node), nonce) {
		return wire.Challenge{}, Refuse(Proof, "read challenge: it is for another node or question")
	}
	return c, nil
}
