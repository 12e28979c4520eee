package enrol

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"filippo.io/age"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// maxClaim bounds the bodies of hello and claim, in bytes.
const maxClaim = 32 << 10

// Unknown is the refusal for a token without a record, read from an envelope nobody can verify.
func Unknown(mesh appliance.MeshID, h wire.Header) *appliance.Error {
	if h.Mesh != mesh {
		return Refuse(TokenForeign, "open "+string(h.Kind)+": the token is of mesh "+appliance.Quote(string(h.Mesh))+", this is mesh "+string(mesh))
	}
	return Refuse(TokenUnknown, "open "+string(h.Kind)+": no token "+appliance.Quote(h.From))
}

// OpenHello verifies a hello of the token.
func OpenHello(data []byte, mesh appliance.MeshID, token Record) (wire.Hello, wire.Header, error) {
	var hello wire.Hello
	h, err := open(data, wire.KindHello, mesh, token, &hello)
	if err != nil {
		return wire.Hello{}, h, err
	}
	if hello.Token != token.ID || hello.Nonce != h.Nonce {
		return wire.Hello{}, h, Refuse(Proof, "open hello: it names another token or nonce than its envelope")
	}
	return hello, h, nil
}

// NewChallenge answers a hello. Nothing needs to be kept: VerifyClaim derives it again from secret.
func NewChallenge(secret [32]byte, mesh appliance.MeshID, hello wire.Hello, r netip.Prefix, now time.Time) (wire.Challenge, error) {
	return newChallenge(enrolling, secret, mesh, hello.Token, hello.Nonce, r, now)
}

// Claimed is a claim that proved everything it says.
type Claimed struct {
	Claim  wire.Claim
	Keys   identity.Public
	Header wire.Header
}

// VerifyClaim decides whether a claim proves what it says: the token, every key, the challenge and the time. Now is when the claim
// reached the mesh, not when it is looked at, so that one that waited for the store is not late. Whether the token may still be spent
// is for the records.
func VerifyClaim(data []byte, mesh appliance.MeshID, secret [32]byte, token Record, now time.Time) (Claimed, error) {
	var c wire.Claim
	h, err := open(data, wire.KindClaim, mesh, token, &c)
	if err != nil {
		return Claimed{Header: h}, err
	}
	keys, err := verify(c, h, mesh, secret, token, now)
	if err != nil {
		return Claimed{Header: h}, err
	}
	return Claimed{Claim: c, Keys: keys, Header: h}, nil
}

func verify(c wire.Claim, h wire.Header, mesh appliance.MeshID, secret [32]byte, token Record, now time.Time) (identity.Public, error) {
	none := identity.Public{}
	if c.Token != token.ID || c.Mesh != mesh || c.Nonce != h.Nonce || c.Challenge.Token != c.Token || c.Challenge.Nonce != c.Nonce {
		return none, Refuse(Proof, "verify claim: its token, mesh and nonce are not those of its envelope and challenge")
	}
	if err := checkClock("the claimant", c.Time, now); err != nil {
		return none, err
	}
	ephemeral, err := verifyChallenge(enrolling, secret, mesh, c.Challenge, now)
	if err != nil {
		return none, err
	}
	if err := checkClaimant(c); err != nil {
		return none, err
	}
	keys, err := identity.ParsePublic(c.Keys)
	if err != nil {
		return none, err
	}
	unproven := c
	unproven.Proof, unproven.Signature = "", ""
	says, err := wire.Encode(unproven)
	if err != nil {
		return none, fmt.Errorf("verify claim: %w", err)
	}
	if err := verifyProof(enrolling, ephemeral, keys.Overlay, says, c.Proof); err != nil {
		return none, err
	}
	signed, err := claimSigned(c)
	if err != nil {
		return none, err
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(c.Signature)
	if err != nil || !ed25519.Verify(keys.Identity, signed, signature) {
		return none, Refuse(Proof, "verify claim: the identity key has not signed it")
	}
	requested, err := pki.ParseRequest(c.Request)
	if err != nil || !requested.Equal(keys.TLS) {
		return none, Refuse(Proof, "verify claim: the certificate request is not signed by the TLS key")
	}
	return keys, nil
}

func open(data []byte, kind wire.Kind, mesh appliance.MeshID, token Record, into any) (wire.Header, error) {
	h, body, err := wire.Open(data, kind, token.Claim)
	if err != nil && appliance.KindOf(err) == appliance.Denied {
		return h, Refuse(Proof, "open "+string(kind)+": not signed with the secret of token "+string(token.ID))
	}
	if err != nil {
		return h, err
	}
	switch {
	case h.Mesh != mesh || h.To != string(mesh):
		return h, Unknown(mesh, h)
	case h.From != string(token.ID):
		return h, Refuse(Proof, "open "+string(kind)+": it names another token than the one that signed it")
	case len(body) > maxClaim:
		return h, appliance.Errorf(appliance.Invalid, "open %s: %d bytes, at most %d", kind, len(body), maxClaim)
	}
	if _, ok := decode32(h.Nonce); !ok {
		return h, appliance.Errorf(appliance.Invalid, "open %s: the nonce is not base64 of 32 bytes", kind)
	}
	if err := wire.Decode(body, into); err != nil {
		return h, appliance.Errorf(appliance.Invalid, "read %s: %w", kind, err)
	}
	return h, nil
}

// checkClock refuses when two clocks are too far apart, stating both.
func checkClock(whose string, theirs, now time.Time) error {
	if d := now.Sub(theirs); d > Window || d < -Window {
		return Refuse(Clock, fmt.Sprintf("compare clocks: %s says %s, here it is %s", whose, stamp(theirs), stamp(now)))
	}
	return nil
}

var (
	labelName  = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)
	labelValue = regexp.MustCompile(`^[a-zA-Z0-9._-]{0,63}$`)
	stated     = regexp.MustCompile(`^[ -~]{0,128}$`)
)

const maxLabels, maxKinds = 32, 64

// checkClaimant holds what a machine says of itself to its bounds, on both sides.
func checkClaimant(c wire.Claim) error {
	if _, err := appliance.ParseName[appliance.NodeName]("node", string(c.Name)); err != nil {
		return Refuse(NameInvalid, err.Error())
	}
	if len(c.Labels) > maxLabels {
		return appliance.Errorf(appliance.Invalid, "check claim: %d labels, at most %d", len(c.Labels), maxLabels)
	}
	for k, v := range c.Labels {
		if !labelName.MatchString(k) || !labelValue.MatchString(v) {
			return appliance.Errorf(appliance.Invalid, "check claim: label %s does not fit the grammar", appliance.Quote(k+"="+v)).
				WithHint("names as those of nodes; values of letters, digits, dots, dashes and underscores, at most 63")
		}
	}
	p := c.Capabilities
	if err := CheckPlatform(p); err != nil {
		return err
	}
	if len(p.Kinds) > maxKinds {
		return appliance.Errorf(appliance.Invalid, "check claim: %d resource kinds, at most %d", len(p.Kinds), maxKinds)
	}
	texts := []string{p.Binary, string(p.Digest), p.Distribution, p.Init, p.Runtime, p.State}
	for _, k := range p.Kinds {
		texts = append(texts, string(k))
	}
	for _, s := range texts {
		if !stated.MatchString(s) {
			return appliance.Errorf(appliance.Invalid, "check claim: capability %s is not plain text of at most 128 characters", appliance.Quote(s))
		}
	}
	return nil
}

// CheckPlatform refuses a machine that can be no node; the joiner asks before it begins, the mesh before it spends the token.
func CheckPlatform(c wire.Capabilities) error {
	if c.OS != "linux" || !slices.Contains(wire.Architectures, c.Architecture) {
		return Refuse(Platform, "look at the platform: the machine is "+appliance.Quote(c.OS+"/"+c.Architecture))
	}
	return nil
}

// SealChallenge signs the answer to a hello.
func SealChallenge(mesh appliance.MeshID, key ed25519.PrivateKey, hello wire.Header, c wire.Challenge, now time.Time) ([]byte, error) {
	body, err := wire.Encode(c)
	if err != nil {
		return nil, fmt.Errorf("seal challenge: %w", err)
	}
	return sealAnswer(wire.KindChallenge, mesh, key, hello, body, now)
}

// SealRefusal signs a refusal of a hello or a claim.
func SealRefusal(mesh appliance.MeshID, key ed25519.PrivateKey, refused wire.Header, why error, now time.Time) ([]byte, error) {
	body, err := wire.Encode(appliance.AsError(why))
	if err != nil {
		return nil, fmt.Errorf("seal refusal: %w", err)
	}
	return sealAnswer(wire.KindRefusal, mesh, key, refused, body, now)
}

// SealAnswer seals the answer to the claimant's sealing key and signs it.
func SealAnswer(mesh appliance.MeshID, key ed25519.PrivateKey, c Claimed, e wire.Enrolled, now time.Time) ([]byte, error) {
	plain, err := wire.Encode(e)
	if err != nil {
		return nil, fmt.Errorf("seal answer: %w", err)
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, c.Keys.Sealing)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("seal answer: %w", err)
	}
	return sealAnswer(wire.KindEnrolled, mesh, key, c.Header, sealed.Bytes(), now)
}

func sealAnswer(kind wire.Kind, mesh appliance.MeshID, key ed25519.PrivateKey, asked wire.Header, body []byte, now time.Time) ([]byte, error) {
	return wire.Seal(wire.Header{
		Kind: kind, Version: wire.Version, Mesh: mesh, From: string(mesh), To: asked.From, Nonce: asked.Nonce, Time: now,
	}, body, key)
}
