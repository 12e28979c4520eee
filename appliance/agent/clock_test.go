package agent

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// PKI-7: the latest signed time seen is a floor, and only what the mesh itself signed counts.
func TestLastSigned(t *testing.T) {
	dir := t.TempDir()
	public, key, _ := ed25519.GenerateKey(nil)
	_, stranger, _ := ed25519.GenerateKey(nil)
	b := Believes{Mesh: appliance.NewMeshID(), Node: appliance.NewNodeID(), Signing: public}
	put := func(name string, kind wire.Kind, at time.Time, key ed25519.PrivateKey) {
		data, err := wire.Seal(wire.Header{Kind: kind, Mesh: b.Mesh, From: string(b.Mesh), To: string(b.Node), Counter: 1, Time: at}, []byte("{}"), key)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := b.LastSigned(dir); !got.IsZero() {
		t.Errorf("an empty folder gives %s", got)
	}
	day := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	put("membership", wire.KindMembership, day, key)
	put("declaration", wire.KindDeclaration, day.Add(time.Hour), key)
	if got := b.LastSigned(dir); !got.Equal(day.Add(time.Hour)) {
		t.Errorf("got %s, want the later of the two", got)
	}
	put("declaration", wire.KindDeclaration, day.Add(48*time.Hour), stranger)
	if got := b.LastSigned(dir); !got.Equal(day) {
		t.Errorf("got %s: a stranger's signature moved it", got)
	}
}
