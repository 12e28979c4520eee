package enrol

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/netip"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Window is how long a challenge is good, and how far two clocks may be apart.
const Window = 2 * time.Minute

// purpose keeps a proof for one use from serving another; it is part of every derivation.
type purpose string

const (
	enrolling purpose = "mesh/v1/enrol/"
	rekeying  purpose = "mesh/v1/rekey/"
)

// newNonce gives 32 random bytes as text.
func newNonce() string {
	var b [32]byte
	rand.Read(b[:])
	return base64.StdEncoding.EncodeToString(b[:])
}

// decode32 reads 32 bytes in their one spelling.
func decode32(s string) (b [32]byte, ok bool) {
	raw, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) != len(b) || base64.StdEncoding.EncodeToString(raw) != s {
		return b, false
	}
	return [32]byte(raw), true
}

// newChallenge makes a challenge that nobody needs to remember: its ephemeral key follows from the mesh's secret and from all it says.
func newChallenge(p purpose, secret [32]byte, mesh appliance.MeshID, token appliance.TokenID, nonce string, r netip.Prefix, now time.Time) (wire.Challenge, error) {
	c := wire.Challenge{Token: token, Nonce: nonce, Challenge: newNonce(), Time: now.UTC().Truncate(time.Microsecond), Range: r}
	key, err := ephemeral(p, secret, mesh, c)
	if err != nil {
		return wire.Challenge{}, err
	}
	c.Ephemeral = base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
	return c, nil
}

func ephemeral(p purpose, secret [32]byte, mesh appliance.MeshID, c wire.Challenge) (*ecdh.PrivateKey, error) {
	if secret == [32]byte{} {
		return nil, appliance.Errorf(appliance.Internal, "derive challenge: no secret")
	}
	c.Ephemeral = ""
	says, err := wire.Encode(c)
	if err != nil {
		return nil, fmt.Errorf("derive challenge: %w", err)
	}
	seed, err := hkdf.Key(sha256.New, secret[:], says, string(p)+"challenge/"+string(mesh), 32)
	if err != nil {
		return nil, fmt.Errorf("derive challenge: %w", err)
	}
	return ecdh.X25519().NewPrivateKey(seed)
}

// verifyChallenge gives the ephemeral key of a challenge that is ours, unchanged and fresh.
func verifyChallenge(p purpose, secret [32]byte, mesh appliance.MeshID, c wire.Challenge, now time.Time) (*ecdh.PrivateKey, error) {
	key, err := ephemeral(p, secret, mesh, c)
	if err != nil {
		return nil, err
	}
	public := base64.StdEncoding.EncodeToString(key.PublicKey().Bytes())
	if !hmac.Equal([]byte(public), []byte(c.Ephemeral)) {
		return nil, Refuse(Proof, "verify challenge: this mesh did not make it for this use")
	}
	if age := now.Sub(c.Time); age > Window || age < -Window {
		return nil, Refuse(ChallengeStale, fmt.Sprintf("verify challenge: made %s, now %s", stamp(c.Time), stamp(now)))
	}
	return key, nil
}

// prove answers a challenge: a MAC over what is said, under the Diffie-Hellman of the overlay's private key and the challenge's.
func prove(p purpose, overlay [32]byte, ephemeralPublic string, says []byte) (string, error) {
	theirs, ok := decode32(ephemeralPublic)
	if !ok {
		return "", Refuse(Proof, "prove the overlay key: the challenge has no key")
	}
	private, err := ecdh.X25519().NewPrivateKey(overlay[:])
	if err != nil {
		return "", fmt.Errorf("prove the overlay key: %w", err)
	}
	public, err := ecdh.X25519().NewPublicKey(theirs[:])
	if err != nil {
		return "", fmt.Errorf("prove the overlay key: %w", err)
	}
	mac, err := answer(p, private, public, public.Bytes(), private.PublicKey().Bytes(), says)
	return base64.StdEncoding.EncodeToString(mac), err
}

// verifyProof says whether proof was made with the private half of overlay.
func verifyProof(p purpose, key *ecdh.PrivateKey, overlay [32]byte, says []byte, proof string) error {
	public, err := ecdh.X25519().NewPublicKey(overlay[:])
	if err != nil {
		return Refuse(Proof, "verify the overlay key: it is none")
	}
	want, err := answer(p, key, public, key.PublicKey().Bytes(), overlay[:], says)
	if err != nil {
		return err
	}
	given, ok := decode32(proof)
	if !ok || !hmac.Equal(want, given[:]) {
		return Refuse(Proof, "verify the overlay key: the claimant has not shown that it holds the private half")
	}
	return nil
}

func answer(p purpose, private *ecdh.PrivateKey, public *ecdh.PublicKey, ephemeral, overlay, says []byte) ([]byte, error) {
	shared, err := private.ECDH(public)
	if err != nil { // a point of low order
		return nil, Refuse(Proof, "agree on the overlay key: "+err.Error())
	}
	key, err := hkdf.Key(sha256.New, shared, append(append([]byte{}, ephemeral...), overlay...), string(p)+"proof", 32)
	if err != nil {
		return nil, fmt.Errorf("derive proof: %w", err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(says)
	return mac.Sum(nil), nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
