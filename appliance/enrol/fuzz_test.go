package enrol_test

import (
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2
func FuzzClaim(f *testing.F) {
	s := newSide(f)
	good := s.claim(f)
	key, err := s.token.ClaimKey()
	if err != nil {
		f.Fatal(err)
	}
	h, body, err := wire.Open(good, wire.KindClaim, s.record.Claim)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"challenge":{"range":"::/0","time":"0001-01-01T00:00:00Z"},"request":"AAAA"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = s.verify(data)
		sealed, err := wire.Seal(h, data, key) // as a holder of the token can
		if err != nil {
			return
		}
		if claimed, err := s.verify(sealed); err == nil && claimed.Claim.Keys != s.node.Public() {
			t.Errorf("claimed keys that nobody proved: %s", data)
		}
	})
}

func BenchmarkVerifyClaim(b *testing.B) {
	s := newSide(b)
	data := s.claim(b)
	for b.Loop() {
		if _, err := s.verify(data); err != nil {
			b.Fatal(err)
		}
	}
}

// SAFE-2: what a joiner and the mesh read of each other, signed by who may and saying anything.
func FuzzBodies(f *testing.F) {
	s := newSide(f)
	node := appliance.NewNodeID()
	live := enrol.Live{Node: node, Identity: s.record.Claim}
	key, err := s.token.ClaimKey()
	if err != nil {
		f.Fatal(err)
	}
	claimed, err := s.verify(s.claim(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, v := range []any{claimed.Claim.Challenge, s.enrolled(f, claimed), enrol.RefuseName("box"), wire.Hello{Token: s.token.ID},
		wire.Rekey{Node: node, Old: claimed.Claim.Keys.Overlay, New: claimed.Claim.Keys.Overlay, Challenge: &claimed.Claim.Challenge}} {
		body, err := wire.Encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	nonce := claimed.Header.Nonce
	f.Fuzz(func(t *testing.T, body []byte) {
		down := wire.Header{Mesh: s.mesh, From: string(s.mesh), To: string(s.token.ID), Nonce: nonce}
		for _, down.Kind = range []wire.Kind{wire.KindChallenge, wire.KindRefusal, wire.KindEnrolled} {
			data, err := wire.Seal(down, body, s.keys.Signing)
			if err != nil {
				return
			}
			_, _ = enrol.OpenChallenge(s.token, nonce, data, now)
			if a, err := enrol.OpenAnswer(s.token, nonce, s.node, data, now); err == nil || a.Authority != nil {
				t.Error("admitted by a body that is not sealed")
			}
		}
		hello := wire.Header{Kind: wire.KindHello, Mesh: s.mesh, From: string(s.token.ID), To: string(s.mesh), Nonce: nonce}
		if data, err := wire.Seal(hello, body, key); err == nil {
			_, _, _ = enrol.OpenHello(data, s.mesh, s.record)
		}
		rekey := wire.Header{Kind: wire.KindRekey, Mesh: s.mesh, From: string(node), To: string(s.mesh), Sequence: 1}
		if data, err := wire.Seal(rekey, body, key); err == nil {
			if _, _, proven, _ := enrol.VerifyRekey(data, s.mesh, s.keys.Challenge, live, now); proven {
				t.Error("a rekey that nobody proved")
			}
		}
	})
}
