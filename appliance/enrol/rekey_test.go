package enrol_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

// NET-8
func TestRekey(t *testing.T) {
	s := newSide(t)
	next, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	r := enrol.Rekeying{Mesh: s.mesh, Node: appliance.NewNodeID(), Identity: s.node.Identity, Old: identity.OverlayPublic(s.node.Overlay), New: next.Overlay, Tunnel: "wg0"}
	live := enrol.Live{Node: r.Node, Identity: s.node.Identity.Public().(ed25519.PublicKey), Overlay: r.Old, Sequence: 6}
	verify := func(data []byte, live enrol.Live, at time.Time) ([32]byte, bool, error) {
		_, key, proven, err := enrol.VerifyRekey(data, s.mesh, s.keys.Challenge, live, at)
		return key, proven, err
	}
	make := func(r enrol.Rekeying, c *wire.Challenge, sequence uint64) []byte {
		data, err := enrol.MakeRekey(r, c, sequence, "q1", "_INBOX.node-x.a", now)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	ask := make(r, nil, 7)
	if _, proven, err := verify(ask, live, now); err != nil || proven {
		t.Fatalf("the question: proven %v, %v", proven, err)
	}
	h, err := wire.Peek(ask)
	if err != nil {
		t.Fatal(err)
	}
	made, err := enrol.NewRekeyChallenge(s.keys.Challenge, s.mesh, h, meshRange, now)
	if err != nil {
		t.Fatal(err)
	}
	sealed := must(enrol.SealChallenge(s.mesh, s.keys.Signing, h, made, now))
	c, err := enrol.OpenRekeyChallenge(sealed, s.mesh, s.token.Signing, r.Node, "q1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enrol.OpenRekeyChallenge(sealed, s.mesh, s.token.Signing, r.Node, "q2"); err == nil {
		t.Error("took the answer to another question")
	}
	said := make(r, &c, 8)
	if key, proven, err := verify(said, live, now); err != nil || !proven || key != identity.OverlayPublic(next.Overlay) {
		t.Fatalf("the proof: %x, proven %v, %v", key, proven, err)
	}

	taken, moved, other := live, live, live
	taken.Sequence = 8
	moved.Overlay = identity.OverlayPublic(next.Overlay)
	other.Node = appliance.NewNodeID()
	enrolment := s.challenge(t)
	foreign := r
	foreign.Mesh = newSide(t).mesh
	stranger := r
	stranger.Identity = next.Identity
	body := func(change func(*wire.Rekey)) []byte {
		h, body, err := wire.Open(said, wire.KindRekey, live.Identity)
		if err != nil {
			t.Fatal(err)
		}
		var say wire.Rekey
		if err := wire.Decode(body, &say); err != nil {
			t.Fatal(err)
		}
		change(&say)
		if body, err = wire.Encode(say); err != nil {
			t.Fatal(err)
		}
		return must(wire.Seal(h, body, s.node.Identity))
	}
	theirs := identity.OverlayPublic(newSide(t).node.Overlay)
	for name, x := range map[string]struct {
		data []byte
		live enrol.Live
		at   time.Time
		want appliance.Reason
	}{
		"said again":                {said, taken, now, enrol.ChallengeStale},
		"stale":                     {said, live, now.Add(121 * time.Second), enrol.ChallengeStale},
		"old key is not live":       {said, moved, now, enrol.Proof},
		"another node":              {said, other, now, enrol.Proof},
		"another mesh":              {make(foreign, &c, 8), live, now, enrol.Proof},
		"signed by another":         {make(stranger, &c, 8), live, now, ""},
		"an enrolment's challenge":  {make(r, &enrolment, 8), live, now, enrol.Proof},
		"somebody else's key":       {body(func(r *wire.Rekey) { r.New = base64.StdEncoding.EncodeToString(theirs[:]) }), live, now, enrol.Proof},
		"another tunnel than said":  {body(func(r *wire.Rekey) { r.Tunnel = "wg1" }), live, now, enrol.Proof},
		"no proof":                  {body(func(r *wire.Rekey) { r.Proof = "" }), live, now, enrol.Proof},
		"a tunnel that is no name":  {body(func(r *wire.Rekey) { r.Tunnel = "../../x" }), live, now, enrol.Proof},
		"question, clock hours off": {ask, live, now.Add(time.Hour), enrol.Clock},
	} {
		_, proven, err := verify(x.data, x.live, x.at)
		if proven || err == nil || appliance.AsError(err).Reason != x.want {
			t.Errorf("%s: proven %v, %v, want reason %q", name, proven, err, x.want)
		}
	}
}
