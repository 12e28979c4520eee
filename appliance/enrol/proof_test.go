package enrol

import (
	"net/netip"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
)

// NODE-4: who makes a proof with its own key and names another's public half is refused, however well it knows what is said.
func TestProofWithAnotherKey(t *testing.T) {
	mine, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	secret, mesh, at := [32]byte{1}, appliance.NewMeshID(), time.Unix(1e9, 0)
	c, err := newChallenge(enrolling, secret, mesh, "t", newNonce(), netip.Prefix{}, at)
	if err != nil {
		t.Fatal(err)
	}
	key, err := verifyChallenge(enrolling, secret, mesh, c, at)
	if err != nil {
		t.Fatal(err)
	}
	says := []byte("what is said")
	proof, err := prove(enrolling, mine.Overlay, c.Ephemeral, says)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifyProof(enrolling, key, identity.OverlayPublic(mine.Overlay), says, proof); err != nil {
		t.Errorf("the holder itself: %v", err)
	}
	if err := verifyProof(enrolling, key, identity.OverlayPublic(theirs.Overlay), says, proof); !appliance.IsReason(err, Proof) {
		t.Errorf("naming another's public half: %v", err)
	}
	if err := verifyProof(rekeying, key, identity.OverlayPublic(mine.Overlay), says, proof); !appliance.IsReason(err, Proof) {
		t.Errorf("for another purpose: %v", err)
	}
	if err := verifyProof(enrolling, key, identity.OverlayPublic(mine.Overlay), append(says, '.'), proof); !appliance.IsReason(err, Proof) {
		t.Errorf("saying something else: %v", err)
	}
	if _, err := verifyChallenge(rekeying, secret, mesh, c, at); !appliance.IsReason(err, Proof) {
		t.Errorf("a challenge for another purpose: %v", err)
	}
	if _, err := verifyChallenge(enrolling, secret, appliance.NewMeshID(), c, at); !appliance.IsReason(err, Proof) {
		t.Errorf("a challenge of another mesh: %v", err)
	}
}
