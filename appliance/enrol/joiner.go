package enrol

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"filippo.io/age"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// MakeHello opens an enrolment. Reply is where the answer goes, beneath the token user's inbox; the answer repeats nonce.
func MakeHello(t Token, reply string, now time.Time) (data []byte, nonce string, err error) {
	nonce = newNonce()
	body, err := wire.Encode(wire.Hello{Token: t.ID, Nonce: nonce})
	if err != nil {
		return nil, "", fmt.Errorf("make hello: %w", err)
	}
	data, err = seal(t, wire.KindHello, nonce, reply, now, body)
	return data, nonce, err
}

func seal(t Token, kind wire.Kind, nonce, reply string, now time.Time, body []byte) ([]byte, error) {
	key, err := t.ClaimKey()
	if err != nil {
		return nil, err
	}
	return wire.Seal(wire.Header{
		Kind: kind, Version: wire.Version, Mesh: t.Mesh, From: string(t.ID), To: string(t.Mesh), Nonce: nonce, Reply: reply, Time: now,
	}, body, key)
}

// OpenChallenge reads the answer to a hello. A refusal comes back as its error. Whether the challenge's range is in the way of this
// machine's routes is for overlay.Overlaps, before MakeClaim.
func OpenChallenge(t Token, nonce string, data []byte, now time.Time) (wire.Challenge, error) {
	body, err := openAnswer(t, nonce, data, wire.KindChallenge)
	if err != nil {
		return wire.Challenge{}, err
	}
	var c wire.Challenge
	if err := wire.Decode(body, &c); err != nil {
		return wire.Challenge{}, appliance.Errorf(appliance.Invalid, "read challenge: %w", err)
	}
	if c.Token != t.ID || c.Nonce != nonce {
		return wire.Challenge{}, Refuse(Proof, "read challenge: it is for another hello")
	}
	return c, checkClock("the mesh", c.Time, now)
}

// Claimant is what a machine says of itself.
type Claimant struct {
	Name         appliance.NodeName
	Labels       map[string]string
	Adopt        bool // what is on the machine is left as it is
	Capabilities wire.Capabilities
}

// MakeClaim answers a challenge with all public halves, proving each.
func MakeClaim(t Token, c wire.Challenge, keys identity.NodeKeys, who Claimant, reply string, now time.Time) ([]byte, error) {
	request, err := pki.MakeRequest(keys.TLS)
	if err != nil {
		return nil, err
	}
	claim := wire.Claim{
		Token: t.ID, Mesh: t.Mesh, Nonce: c.Nonce, Challenge: c, Time: now.UTC().Truncate(time.Microsecond),
		Name: who.Name, Labels: who.Labels, Adopt: who.Adopt, Keys: keys.Public(), Request: request, Capabilities: who.Capabilities,
	}
	if err := checkClaimant(claim); err != nil {
		return nil, err
	}
	says, err := wire.Encode(claim)
	if err != nil {
		return nil, fmt.Errorf("make claim: %w", err)
	}
	if claim.Proof, err = prove(enrolling, keys.Overlay, c.Ephemeral, says); err != nil {
		return nil, err
	}
	signed, err := claimSigned(claim)
	if err != nil {
		return nil, err
	}
	claim.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(keys.Identity, signed))
	body, err := wire.Encode(claim)
	if err != nil {
		return nil, fmt.Errorf("make claim: %w", err)
	}
	return seal(t, wire.KindClaim, c.Nonce, reply, now, body)
}

// claimSigned is what the identity key signs: the claim with its proof, without the signature.
func claimSigned(c wire.Claim) ([]byte, error) {
	c.Signature = ""
	says, err := wire.Encode(c)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	return append([]byte(string(enrolling)+"claim\x00"), says...), nil
}

// Admission is a verified answer.
type Admission struct {
	Enrolled   wire.Enrolled
	Trust      identity.Trust
	Authority  *x509.Certificate
	Membership wire.Membership // lacks this node until the next one
	Number     appliance.Number
	Digest     appliance.Digest
}

// OpenAnswer reads the answer to a claim and verifies all of it: the mesh's signature, the pinned authority, the certificate for this
// machine's own key, and the membership. A refusal comes back as its error. Now is pki.Clock's.
func OpenAnswer(t Token, nonce string, keys identity.NodeKeys, data []byte, now time.Time) (Admission, error) {
	sealed, err := openAnswer(t, nonce, data, wire.KindEnrolled)
	if err != nil {
		return Admission{}, err
	}
	body, err := unseal(sealed, keys.Sealing)
	if err != nil {
		return Admission{}, appliance.Errorf(appliance.Denied, "open answer: %w", err).WithHint("it is sealed to another machine's key")
	}
	a := Admission{}
	e := &a.Enrolled
	if err := wire.Decode(body, e); err != nil {
		return Admission{}, appliance.Errorf(appliance.Invalid, "read answer: %w", err)
	}
	if pki.Fingerprint(e.Authority) != t.Authority {
		return Admission{}, Refuse(Pin, "read answer: its authority is not the one that the token pins")
	}
	if a.Authority, err = pki.ParseAuthority(e.Authority); err != nil {
		return Admission{}, err
	}
	if err := checkCertificate(a.Authority, *e, keys, now); err != nil {
		return Admission{}, err
	}
	m, h, err := membership.Open(e.Membership, t.Mesh, t.Signing)
	if err != nil {
		return Admission{}, err
	}
	if !m.Range.Contains(e.Address) {
		return Admission{}, appliance.Errorf(appliance.Invalid, "read answer: address %s is outside %s", e.Address, m.Range)
	}
	a.Membership, a.Number, a.Digest = m, h.Number(), h.Digest
	a.Trust = identity.Trust{
		Mesh: t.Mesh, MeshName: e.MeshName, Signing: t.Signing, Authority: e.Authority, Node: e.Node, Name: e.Name,
		Broker: endpoints(t.Addresses, m.Broker),
	}
	return a, nil
}

// endpoints joins both lists, the token's first: this machine has reached one of them.
func endpoints(token, broker []string) []string {
	all := slices.Clone(token)
	for _, e := range broker {
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all
}

func checkCertificate(authority *x509.Certificate, e wire.Enrolled, keys identity.NodeKeys, now time.Time) error {
	cert, err := x509.ParseCertificate(e.Certificate)
	switch {
	case err != nil:
		return appliance.Errorf(appliance.Invalid, "read answer: certificate: %w", err)
	case !e.Node.Valid() || !keys.TLS.PublicKey.Equal(cert.PublicKey):
		return appliance.Errorf(appliance.Invalid, "read answer: the certificate is for another key")
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority)
	name := pki.NodeCertName(e.Node)
	_, err = cert.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return pki.Explain(err, name, now)
}

// openAnswer verifies an answer under the pinned signing key and gives its body, or the error that it states.
func openAnswer(t Token, nonce string, data []byte, want wire.Kind) ([]byte, error) {
	kind := want
	if h, err := wire.Peek(data); err == nil && h.Kind == wire.KindRefusal {
		kind = wire.KindRefusal
	}
	h, body, err := wire.Open(data, kind, t.Signing)
	if err != nil && appliance.KindOf(err) == appliance.Denied {
		return nil, Refuse(Pin, "open "+string(want)+": the mesh key that the token pins has not signed it")
	}
	if err != nil {
		return nil, err
	}
	switch {
	case h.Mesh != t.Mesh || h.From != string(t.Mesh):
		return nil, Refuse(TokenForeign, "open "+string(want)+": mesh "+appliance.Quote(string(h.Mesh))+" answers, the token is of mesh "+string(t.Mesh))
	case h.To != string(t.ID) || h.Nonce != nonce:
		return nil, Refuse(Proof, "open "+string(want)+": it answers somebody else, or an earlier try")
	}
	if kind == wire.KindRefusal {
		return nil, refusal(body)
	}
	return body, nil
}

func refusal(body []byte) error {
	var e appliance.Error
	if err := wire.Decode(body, &e); err != nil {
		return appliance.Errorf(appliance.Invalid, "read refusal: %w", err)
	}
	if e.Kind == "" || e.Text == "" {
		return appliance.Errorf(appliance.Invalid, "read refusal: it says nothing")
	}
	return &e
}

func unseal(sealed []byte, key *age.X25519Identity) ([]byte, error) {
	r, err := age.Decrypt(bytes.NewReader(sealed), key)
	if err != nil {
		return nil, errors.New("it does not open") // age names recipients; that helps nobody here
	}
	body, err := io.ReadAll(io.LimitReader(r, wire.MaxEnvelope))
	if err != nil {
		return nil, errors.New("it does not open whole")
	}
	return body, nil
}
