package serve

import (
	"crypto/ed25519"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/wire"
)

// PKI-6: what the last membership revokes is refused, also after a start without records; what the mesh has not signed revokes nothing and
// takes nothing back.
func TestRevoked(t *testing.T) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, other, _ := ed25519.GenerateKey(rand.Reader)
	node, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	mesh := appliance.NewMeshID()
	sealed := func(key ed25519.PrivateKey, serials ...string) []byte {
		body, err := membership.Body(wire.Membership{Range: netip.MustParsePrefix("10.64.0.0/16"), Port: 1, Broker: []string{"h:1"}, Revoked: serials,
			Members: []wire.Member{{ID: appliance.NewNodeID(), Name: "hub", Address: netip.MustParseAddr("10.64.0.1"), Key: node.Public().Overlay, Hub: true}}})
		if err != nil {
			t.Fatal(err)
		}
		data, err := membership.Sign(mesh, appliance.Number{Epoch: 1, Counter: 1}, time.Now(), body, key)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	file := filepath.Join(t.TempDir(), "membership")
	fresh := func() *revoked {
		return &revoked{file: file, mesh: mesh, signing: public, log: slog.New(slog.DiscardHandler)}
	}
	r := fresh()
	if err := r.load(); err != nil || r.has("a1") {
		t.Errorf("before the first membership: %v", err)
	}
	r.take(sealed(key, "a1", "b2"))
	r.take(sealed(other, "c3"))
	again := fresh()
	if err := again.load(); err != nil {
		t.Fatal(err)
	}
	for serial, want := range map[string]bool{"a1": true, "b2": true, "c3": false, "": false} {
		if r.has(serial) != want || again.has(serial) != want {
			t.Errorf("%q: %t, after a start %t, want %t", serial, r.has(serial), again.has(serial), want)
		}
	}
	r.take(sealed(key, "b2")) // the other has ended by itself
	if again := fresh(); again.load() != nil || again.has("a1") || !again.has("b2") || r.has("a1") {
		t.Error("the last membership does not count")
	}
	if err := os.WriteFile(file, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fresh().load(); err == nil {
		t.Error("half a file is read")
	}
}
