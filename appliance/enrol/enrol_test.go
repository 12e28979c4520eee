package enrol_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 123456000, time.UTC)

// side is everything both ends of an enrolment have, with real keys.
type side struct {
	mesh      appliance.MeshID
	keys      identity.MeshKeys
	authority *pki.Authority
	token     enrol.Token
	record    enrol.Record
	node      identity.NodeKeys
	who       enrol.Claimant
}

func newSide(t testing.TB) *side {
	t.Helper()
	s := &side{mesh: appliance.NewMeshID()}
	var err error
	check := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	s.keys, err = identity.GenerateMesh()
	check(err)
	der, err := pki.NewAuthority(s.mesh, s.keys.Authority, now)
	check(err)
	s.authority, err = pki.LoadAuthority(s.mesh, der, s.keys.Authority)
	check(err)
	s.token, err = enrol.NewToken(s.mesh, []string{"hub.example.org:4222"}, pki.Fingerprint(der), s.keys.Signing.Public().(ed25519.PublicKey))
	check(err)
	s.record, err = s.token.Record()
	check(err)
	s.node, err = identity.GenerateNode()
	check(err)
	s.who = enrol.Claimant{Name: "box", Labels: map[string]string{"rack": "2"}, Capabilities: wire.Capabilities{
		Wire: wire.Version, OS: "linux", Architecture: "amd64", Distribution: "debian", Init: "none", Kinds: wire.ResourceKinds,
	}}
	return s
}

const reply = "_INBOX.token-x.abc"

var meshRange = netip.MustParsePrefix("10.64.0.0/16")

// challenge plays hello and challenge.
func (s *side) challenge(t testing.TB) wire.Challenge {
	t.Helper()
	data, nonce, err := enrol.MakeHello(s.token, reply, now)
	if err != nil {
		t.Fatal(err)
	}
	hello, h, err := enrol.OpenHello(data, s.mesh, s.record)
	if err != nil {
		t.Fatal(err)
	}
	c, err := enrol.NewChallenge(s.keys.Challenge, s.mesh, hello, meshRange, now)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := enrol.SealChallenge(s.mesh, s.keys.Signing, h, c, now)
	if err != nil {
		t.Fatal(err)
	}
	got, err := enrol.OpenChallenge(s.token, nonce, sealed, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Fatal(diff)
	}
	return got
}

func (s *side) claim(t testing.TB) []byte {
	t.Helper()
	data, err := enrol.MakeClaim(s.token, s.challenge(t), s.node, s.who, reply, now)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (s *side) verify(data []byte) (enrol.Claimed, error) {
	return enrol.VerifyClaim(data, s.mesh, s.keys.Challenge, s.record, now)
}

// enrolled is what the controller would answer.
func (s *side) enrolled(t testing.TB, c enrol.Claimed) wire.Enrolled {
	t.Helper()
	node := appliance.NewNodeID()
	cert, err := s.authority.Issue(pki.Request{Public: c.Keys.TLS, Names: []string{pki.NodeCertName(node)}, Usage: pki.Client, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	body, err := membership.Body(wire.Membership{Range: meshRange, Port: 51820, Broker: []string{"hub.example.org:4222", "192.0.2.1:4222"}, Members: []wire.Member{
		{ID: appliance.NewNodeID(), Name: "hub", Hub: true, Address: netip.MustParseAddr("10.64.0.1"), Key: c.Claim.Keys.Overlay},
	}})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := membership.Sign(s.mesh, appliance.Number{Epoch: 1, Counter: 4}, now, body, s.keys.Signing)
	if err != nil {
		t.Fatal(err)
	}
	return wire.Enrolled{Node: node, Name: c.Claim.Name, MeshName: "home", Address: netip.MustParseAddr("10.64.0.2"),
		Certificate: cert, Authority: s.authority.Certificate.Raw, Membership: sealed}
}

// NODE-3, NODE-4: the whole conversation.
func TestEnrolment(t *testing.T) {
	s := newSide(t)
	data := s.claim(t)
	claimed, err := s.verify(data)
	if err != nil {
		t.Fatal(err)
	}
	if claimed.Claim.Name != "box" || claimed.Claim.Labels["rack"] != "2" || !claimed.Keys.TLS.Equal(&s.node.TLS.PublicKey) || claimed.Header.Reply != reply {
		t.Errorf("claimed %+v", claimed)
	}
	if diff := cmp.Diff(s.node.Public(), claimed.Claim.Keys); diff != "" {
		t.Error(diff)
	}
	again, err := s.verify(data) // a joiner that asks twice; the records decide that it is the same
	if err != nil || !cmp.Equal(again.Claim.Keys, claimed.Claim.Keys) {
		t.Errorf("the same claim again: %v", err)
	}
	e := s.enrolled(t, claimed)
	sealed, err := enrol.SealAnswer(s.mesh, s.keys.Signing, claimed, e, now)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed), string(e.Node)) {
		t.Error("the answer is not sealed")
	}
	a, err := enrol.OpenAnswer(s.token, claimed.Header.Nonce, s.node, sealed, now)
	if err != nil {
		t.Fatal(err)
	}
	want := identity.Trust{Mesh: s.mesh, MeshName: "home", Signing: s.token.Signing, Authority: e.Authority, Node: e.Node, Name: "box",
		Broker: []string{"hub.example.org:4222", "192.0.2.1:4222"}}
	if diff := cmp.Diff(want, a.Trust); diff != "" {
		t.Error(diff)
	}
	if a.Number != (appliance.Number{Epoch: 1, Counter: 4}) || len(a.Membership.Members) != 1 || a.Enrolled.Address != e.Address || !a.Digest.Valid() {
		t.Errorf("admission %+v", a)
	}
}

// reclaim changes a good claim and signs it anew with the claim key, as a holder of the token can. With sign, the identity's signature is
// made anew too.
func (s *side) reclaim(t testing.TB, change func(*wire.Claim), sign bool) []byte {
	t.Helper()
	key, err := s.token.ClaimKey()
	if err != nil {
		t.Fatal(err)
	}
	h, body, err := wire.Open(s.claim(t), wire.KindClaim, key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	var c wire.Claim
	if err := wire.Decode(body, &c); err != nil {
		t.Fatal(err)
	}
	change(&c)
	if sign {
		c.Signature = ""
		says, err := wire.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		c.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(s.node.Identity, append([]byte("mesh/v1/enrol/claim\x00"), says...)))
	}
	if body, err = wire.Encode(c); err != nil {
		t.Fatal(err)
	}
	h.Nonce = c.Nonce
	data, err := wire.Seal(h, body, key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// NODE-4: whatever a holder of the token changes, and signs as well as it can, is refused by name.
func TestClaimsThatProveNothing(t *testing.T) {
	s, other := newSide(t), newSide(t)
	if _, err := s.verify(s.reclaim(t, func(*wire.Claim) {}, true)); err != nil {
		t.Fatalf("unchanged: %v", err) // what the rest stands on
	}
	theirs := other.node.Public()
	otherChallenge := s.challenge(t)
	foreign, err := enrol.MakeClaim(other.token, other.challenge(t), s.node, s.who, reply, now)
	if err != nil {
		t.Fatal(err)
	}
	foreignBody := func() (c wire.Claim) {
		_, body, err := wire.Open(foreign, wire.KindClaim, other.record.Claim)
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.Decode(body, &c); err != nil {
			t.Fatal(err)
		}
		return c
	}()
	stranger, _ := base64.StdEncoding.DecodeString(foreignBody.Challenge.Ephemeral)
	for name, c := range map[string]struct {
		change func(*wire.Claim)
		want   appliance.Reason
	}{
		"somebody else's overlay key": {func(c *wire.Claim) { c.Keys.Overlay = theirs.Overlay }, enrol.Proof},
		"the overlay key of low order": {func(c *wire.Claim) {
			c.Keys.Overlay = base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...))
		}, enrol.Proof},
		"proof for another nonce":          {func(c *wire.Claim) { c.Challenge, c.Nonce = otherChallenge, otherChallenge.Nonce }, enrol.Proof},
		"proof for another mesh and token": {func(c *wire.Claim) { c.Proof = foreignBody.Proof }, enrol.Proof},
		"challenge of another mesh":        {func(c *wire.Claim) { c.Challenge = foreignBody.Challenge }, enrol.Proof},
		"own ephemeral key":                {func(c *wire.Claim) { c.Challenge.Ephemeral = base64.StdEncoding.EncodeToString(stranger) }, enrol.Proof},
		"challenge made younger":           {func(c *wire.Claim) { c.Challenge.Time = c.Challenge.Time.Add(time.Second) }, enrol.Proof},
		"challenge with another range":     {func(c *wire.Claim) { c.Challenge.Range = netip.MustParsePrefix("10.0.0.0/8") }, enrol.Proof},
		"no proof":                         {func(c *wire.Claim) { c.Proof = "" }, enrol.Proof},
		"proof of zeros":                   {func(c *wire.Claim) { c.Proof = base64.StdEncoding.EncodeToString(make([]byte, 32)) }, enrol.Proof},
		"somebody else's TLS key":          {func(c *wire.Claim) { c.Keys.TLS = theirs.TLS }, enrol.Proof},
		"somebody else's certificate request": {func(c *wire.Claim) {
			c.Request, _ = pki.MakeRequest(other.node.TLS)
		}, enrol.Proof},
		"other name than proven":  {func(c *wire.Claim) { c.Name = "lair" }, enrol.Proof},
		"other label than proven": {func(c *wire.Claim) { c.Labels["rack"] = "3" }, enrol.Proof},
		"other mesh":              {func(c *wire.Claim) { c.Mesh = other.mesh }, enrol.Proof},
		"other token":             {func(c *wire.Claim) { c.Token = other.token.ID }, enrol.Proof},
		"clock behind":            {func(c *wire.Claim) { c.Time = now.Add(-121 * time.Second) }, enrol.Clock},
		"clock ahead":             {func(c *wire.Claim) { c.Time = now.Add(121 * time.Second) }, enrol.Clock},
		"reserved name":           {func(c *wire.Claim) { c.Name = "broker" }, enrol.NameInvalid},
		"name with a path":        {func(c *wire.Claim) { c.Name = "../x" }, enrol.NameInvalid},
		"other platform":          {func(c *wire.Claim) { c.Capabilities.Architecture = "mips" }, enrol.Platform},
	} {
		t.Run(name, func(t *testing.T) {
			claimed, err := s.verify(s.reclaim(t, c.change, true))
			if !appliance.IsReason(err, c.want) || appliance.AsError(err).Hint == "" {
				t.Errorf("%v, want reason %s and a hint", err, c.want)
			}
			if claimed.Keys.Identity != nil || claimed.Claim.Name != "" {
				t.Errorf("something was taken from it: %+v", claimed)
			}
		})
	}
	for name, change := range map[string]func(*wire.Claim){ // proven and signed with the claimant's own keys
		"another mesh":                   func(c *wire.Claim) { c.Mesh = other.mesh },
		"another token":                  func(c *wire.Claim) { c.Token = other.token.ID },
		"the challenge of another hello": func(c *wire.Claim) { c.Challenge = otherChallenge },
		"another token with its challenge": func(c *wire.Claim) {
			c.Token = other.token.ID
			var err error
			if c.Challenge, err = enrol.NewChallenge(s.keys.Challenge, s.mesh, wire.Hello{Token: c.Token, Nonce: c.Nonce}, meshRange, now); err != nil {
				t.Fatal(err)
			}
		},
		"a challenge of its own making": func(c *wire.Claim) {
			key := identity.OverlayPublic(other.node.Overlay)
			c.Challenge.Ephemeral = base64.StdEncoding.EncodeToString(key[:])
		},
		"somebody else's certificate request": func(c *wire.Claim) { c.Request, _ = pki.MakeRequest(other.node.TLS) },
	} {
		data := s.reclaim(t, func(c *wire.Claim) {
			change(c)
			if err := enrol.Reprove(c, s.node); err != nil {
				t.Fatal(err)
			}
		}, false)
		if _, err := s.verify(data); !appliance.IsReason(err, enrol.Proof) {
			t.Errorf("%s, proven: %v", name, err)
		}
	}
	for name, change := range map[string]func(*wire.Claim){
		"somebody else's identity key": func(c *wire.Claim) { c.Keys.Identity = theirs.Identity },
		"no signature":                 func(c *wire.Claim) { c.Signature = "" },
	} {
		if _, err := s.verify(s.reclaim(t, change, false)); !appliance.IsReason(err, enrol.Proof) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*wire.Claim){
		"bus key as identity":  func(c *wire.Claim) { c.Keys.Bus = "U" + strings.Repeat("A", 55) },
		"no sealing key":       func(c *wire.Claim) { c.Keys.Sealing = "" },
		"overlay with top bit": func(c *wire.Claim) { c.Keys.Overlay = topBit(t, c.Keys.Overlay) },
		"label with a newline": func(c *wire.Claim) { c.Labels["rack"] = "a\nb" },
		"control characters":   func(c *wire.Claim) { c.Capabilities.Binary = "\x1b[2J" },
		"too many kinds":       func(c *wire.Claim) { c.Capabilities.Kinds = make([]wire.ResourceKind, 65) },
	} {
		if _, err := s.verify(s.reclaim(t, change, true)); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.verify(foreign); !appliance.IsReason(err, enrol.Proof) {
		t.Errorf("claim under a foreign token's key: %v", err)
	}
	if _, err := enrol.VerifyClaim(foreign, s.mesh, s.keys.Challenge, other.record, now); !appliance.IsReason(err, enrol.TokenForeign) {
		t.Errorf("claim for another mesh: %v", err)
	}
	if _, err := enrol.VerifyClaim(s.claim(t), s.mesh, other.keys.Challenge, s.record, now); !appliance.IsReason(err, enrol.Proof) {
		t.Errorf("another challenge secret: %v", err)
	}
	if _, err := enrol.VerifyClaim(s.claim(t), s.mesh, [32]byte{}, s.record, now); err == nil {
		t.Error("verified without a secret") // SAFE-4
	}
}

func topBit(t testing.TB, key string) string {
	raw, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	raw[31] |= 0x80
	return base64.StdEncoding.EncodeToString(raw)
}

func TestStaleChallenge(t *testing.T) {
	s := newSide(t)
	c := s.challenge(t)
	for _, late := range []struct {
		after time.Duration
		want  appliance.Reason
	}{{0, ""}, {2 * time.Minute, ""}, {2*time.Minute + time.Second, enrol.ChallengeStale}, {24 * time.Hour, enrol.ChallengeStale}} {
		at := now.Add(late.after)
		data, err := enrol.MakeClaim(s.token, c, s.node, s.who, reply, at)
		if err != nil {
			t.Fatal(err)
		}
		_, err = enrol.VerifyClaim(data, s.mesh, s.keys.Challenge, s.record, at)
		if (err == nil) != (late.want == "") || err != nil && !appliance.IsReason(err, late.want) {
			t.Errorf("after %s: %v, want %q", late.after, err, late.want)
		}
	}
}

// NODE-3: wrong clocks are said with both times, on either side.
func TestClocks(t *testing.T) {
	s := newSide(t)
	late, err := enrol.MakeClaim(s.token, s.challenge(t), s.node, s.who, reply, time.Date(1970, 1, 1, 0, 5, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.verify(late)
	if !appliance.IsReason(err, enrol.Clock) || !strings.Contains(err.Error(), "1970-01-01T00:05:00Z") || !strings.Contains(err.Error(), "2026-12-01T12:00:00Z") {
		t.Errorf("%v, want both times", err)
	}
	data, nonce, err := enrol.MakeHello(s.token, reply, now)
	if err != nil {
		t.Fatal(err)
	}
	hello, h, err := enrol.OpenHello(data, s.mesh, s.record)
	if err != nil {
		t.Fatal(err)
	}
	c, err := enrol.NewChallenge(s.keys.Challenge, s.mesh, hello, meshRange, now)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := enrol.SealChallenge(s.mesh, s.keys.Signing, h, c, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.OpenChallenge(s.token, nonce, sealed, now.Add(time.Hour)); !appliance.IsReason(err, enrol.Clock) {
		t.Errorf("the joiner's clock is an hour ahead: %v", err)
	}
}

// NODE-2, NODE-3: the joiner believes only the pinned key, only its own question, and gets refusals as they were made.
func TestAnswers(t *testing.T) {
	s, other := newSide(t), newSide(t)
	claimed, err := s.verify(s.claim(t))
	if err != nil {
		t.Fatal(err)
	}
	nonce := claimed.Header.Nonce
	open := func(data []byte) error {
		a, err := enrol.OpenAnswer(s.token, nonce, s.node, data, now)
		if err != nil && (a.Trust.Node != "" || a.Authority != nil) {
			t.Errorf("refused, and yet it gives %+v", a)
		}
		return err
	}
	seal := func(by *side, spoil func(*wire.Enrolled)) []byte {
		e := s.enrolled(t, claimed)
		spoil(&e)
		data, err := enrol.SealAnswer(s.mesh, by.keys.Signing, claimed, e, now)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	good := func(*wire.Enrolled) {}
	if err := open(seal(s, good)); err != nil {
		t.Fatal(err)
	}
	otherCert := func(e *wire.Enrolled) {
		e.Certificate, _ = s.authority.Issue(pki.Request{Public: &other.node.TLS.PublicKey, Names: []string{pki.NodeCertName(e.Node)}, Usage: pki.Client, Now: now})
	}
	foreignCert := func(e *wire.Enrolled) {
		e.Certificate, _ = other.authority.Issue(pki.Request{Public: &s.node.TLS.PublicKey, Names: []string{pki.NodeCertName(e.Node)}, Usage: pki.Client, Now: now})
	}
	otherAuthority := func(e *wire.Enrolled) {
		foreignCert(e)
		e.Authority = other.authority.Certificate.Raw
	}
	for name, c := range map[string]struct {
		data []byte
		want appliance.Reason
	}{
		"all of another authority": {seal(s, otherAuthority), enrol.Pin},
		"signed by another key":    {seal(other, good), enrol.Pin},
		"authority not pinned":     {seal(s, func(e *wire.Enrolled) { e.Authority = other.authority.Certificate.Raw }), enrol.Pin},
		"cert by another mesh":     {seal(s, foreignCert), enrol.Pin},
		"cert for another key":     {seal(s, otherCert), ""},
		"another node's cert":      {seal(s, func(e *wire.Enrolled) { e.Node = appliance.NewNodeID() }), enrol.Pin},
		"no membership":            {seal(s, func(e *wire.Enrolled) { e.Membership = nil }), ""},
		"membership by another":    {seal(s, func(e *wire.Enrolled) { e.Membership = other.enrolled(t, claimed).Membership }), ""},
		"address outside":          {seal(s, func(e *wire.Enrolled) { e.Address = netip.MustParseAddr("192.0.2.1") }), ""},
		"no node":                  {seal(s, func(e *wire.Enrolled) { e.Node = "" }), ""},
		"a challenge":              {must(enrol.SealChallenge(s.mesh, s.keys.Signing, claimed.Header, claimed.Claim.Challenge, now)), enrol.Pin},
		"not an envelope":          {[]byte("no"), ""},
		"an answer to nobody":      {must(enrol.SealRefusal(s.mesh, s.keys.Signing, wire.Header{From: string(s.token.ID)}, enrol.RefuseName("box"), now)), enrol.Proof},
		"another mesh, same key":   {must(enrol.SealRefusal(other.mesh, s.keys.Signing, claimed.Header, enrol.RefuseName("box"), now)), enrol.TokenForeign},
		"refusal by somebody":      {must(enrol.SealRefusal(s.mesh, other.keys.Signing, claimed.Header, enrol.RefuseName("box"), now)), enrol.Pin},
		"refusal by the mesh":      {must(enrol.SealRefusal(s.mesh, s.keys.Signing, claimed.Header, enrol.RefuseName("box"), now)), enrol.NameTaken},
	} {
		err := open(c.data)
		if err == nil || appliance.AsError(err).Reason != c.want {
			t.Errorf("%s: %v, want reason %q", name, err, c.want)
		}
	}
	e := appliance.AsError(open(must(enrol.SealRefusal(s.mesh, s.keys.Signing, claimed.Header, enrol.RefuseName("box"), now))))
	if e.Kind != appliance.Conflict || e.Next != "mesh node replace box   (on the hub)" || e.Hint == "" {
		t.Errorf("the refusal came as %+v", e)
	}
	stranger := other.node
	if _, err := enrol.OpenAnswer(s.token, nonce, stranger, seal(s, good), now); appliance.KindOf(err) != appliance.Denied {
		t.Errorf("opened with other keys: %v", err)
	}
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

// Hello is as strict as the claim, and a token without a record is told from a foreign one.
func TestHello(t *testing.T) {
	s, other := newSide(t), newSide(t)
	data, _, err := enrol.MakeHello(other.token, reply, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := enrol.OpenHello(data, s.mesh, s.record); !appliance.IsReason(err, enrol.Proof) {
		t.Errorf("under another token's key: %v", err)
	}
	if _, _, err := enrol.OpenHello(data, s.mesh, other.record); !appliance.IsReason(err, enrol.TokenForeign) {
		t.Errorf("of another mesh: %v", err)
	}
	h, err := wire.Peek(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := enrol.Unknown(s.mesh, h); err.Reason != enrol.TokenForeign {
		t.Errorf("no record, another mesh: %v", err)
	}
	if err := enrol.Unknown(other.mesh, h); err.Reason != enrol.TokenUnknown {
		t.Errorf("no record, our mesh: %v", err)
	}
}

// SAFE-1: every reason has a kind and a way out.
func TestRefusals(t *testing.T) {
	for _, r := range []appliance.Reason{enrol.TokenDamaged, enrol.TokenExpired, enrol.TokenUsed, enrol.TokenRevoked, enrol.TokenForeign,
		enrol.TokenUnknown, enrol.Clock, enrol.Pin, enrol.NameTaken, enrol.NameInvalid, enrol.KeyTaken, enrol.RangeOverlap, enrol.Proof,
		enrol.ChallengeStale, enrol.Rate, enrol.Platform, enrol.AlreadyEnrolled, enrol.MeshFull} {
		if e := enrol.Refuse(r, "x"); e.Kind == "" || e.Hint == "" || e.Reason != r {
			t.Errorf("%s: %+v", r, e)
		}
	}
}
