package enrol

import (
	"crypto/ed25519"
	"encoding/base64"

	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

// Reprove makes proof and signature of a changed claim anew, as the holder of all its private halves could.
func Reprove(c *wire.Claim, keys identity.NodeKeys) error {
	c.Proof, c.Signature = "", ""
	says, err := wire.Encode(c)
	if err != nil {
		return err
	}
	if c.Proof, err = prove(enrolling, keys.Overlay, c.Challenge.Ephemeral, says); err != nil {
		return err
	}
	signed, err := claimSigned(*c)
	c.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(keys.Identity, signed))
	return err
}
