package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"

	"filippo.io/age"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Public are the public halves of a node's keys, parsed.
type Public struct {
	Identity ed25519.PublicKey
	Overlay  [32]byte
	Sealing  *age.X25519Recipient
	TLS      *ecdsa.PublicKey
	Bus      string
}

// ParsePublic reads the public halves strictly: one spelling per key, and no key in two places.
func ParsePublic(w wire.PublicKeys) (Public, error) {
	var p Public
	identity, err := decode32(w.Identity)
	if err != nil {
		return Public{}, refuse("identity", "base64 of an Ed25519 public key")
	}
	p.Identity = identity[:]
	if p.Overlay, err = ParseOverlay(w.Overlay); err != nil {
		return Public{}, err
	}
	if p.Sealing, err = age.ParseX25519Recipient(w.Sealing); err != nil || p.Sealing.String() != w.Sealing {
		return Public{}, refuse("sealing", "an age recipient, age1…")
	}
	if p.TLS, err = parseTLS(w.TLS); err != nil {
		return Public{}, refuse("tls", "base64 of a P-256 public key in SPKI form")
	}
	bus, err := nkeys.Decode(nkeys.PrefixByteUser, []byte(w.Bus))
	if err != nil || len(bus) != ed25519.PublicKeySize {
		return Public{}, refuse("bus", "a user nkey, U…")
	}
	p.Bus = w.Bus
	if bytes.Equal(bus, p.Identity) {
		return Public{}, refuse("bus", "another key than the identity")
	}
	return p, nil
}

// ParseOverlay reads a WireGuard public key. Only its one spelling below the field's prime is taken: X25519 ignores the top bit and
// reduces the rest, so two other strings would be the same peer.
func ParseOverlay(s string) ([32]byte, error) {
	key, err := decode32(s)
	if err != nil || !reduced(key) {
		return [32]byte{}, refuse("overlay", "base64 of a WireGuard public key")
	}
	return key, nil
}

// reduced says whether a little-endian number is below 2^255 - 19.
func reduced(k [32]byte) bool {
	if k[31] != 0x7f {
		return k[31] < 0x7f
	}
	for _, b := range k[1:31] {
		if b != 0xff {
			return true
		}
	}
	return k[0] < 0xed
}

func parseTLS(s string) (*ecdsa.PublicKey, error) {
	if len(s) > 256 {
		return nil, errKey
	}
	der, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, errKey
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, ok := parsed.(*ecdsa.PublicKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, errKey
	}
	again, err := x509.MarshalPKIXPublicKey(key)
	if err != nil || base64.StdEncoding.EncodeToString(again) != s {
		return nil, errKey
	}
	return key, nil
}

func refuse(which, want string) error {
	return appliance.Errorf(appliance.Invalid, "read the %s key: not what it should be", which).WithHint("it is " + want)
}
