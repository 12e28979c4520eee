package manifest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/bundles"
)

// MOD-3, GEN-2: each base bundle declares and claims the seat by which it is found.
func TestBaseBundlesClaimTheirSeats(t *testing.T) {
	scopes := map[appliance.SeatName]manifest.Scope{
		"mesh-store": manifest.ScopeMesh, "mesh-broker": manifest.ScopeMesh, "mesh-network": manifest.ScopeNode, "mesh-controller": manifest.ScopeMesh,
		"artifact-store": manifest.ScopeMesh,
	}
	protocols := map[appliance.SeatName]string{"artifact-store": "artifact-store/1"} // the others are markers
	for _, b := range bundles.Base() {
		m, err := manifest.Parse(b.Manifest)
		if err != nil {
			t.Fatalf("%s: %v", b.Name, err)
		}
		seat := appliance.SeatName(b.Name)
		if diff := cmp.Diff([]appliance.SeatName{seat}, m.Claims); diff != "" {
			t.Errorf("%s claims (-want +got):\n%s", b.Name, diff)
		}
		if diff := cmp.Diff([]manifest.Seat{{Name: seat, Scope: scopes[seat], Protocol: protocols[seat]}}, m.Seats); diff != "" {
			t.Errorf("%s declares (-want +got):\n%s", b.Name, diff)
		}
		delete(scopes, seat)
	}
	for seat := range scopes {
		t.Errorf("no base bundle holds %s", seat)
	}
}

func TestBundlesAreNamedAsTheirFolders(t *testing.T) {
	for _, b := range append(bundles.Base(), bundles.Extra()...) {
		m, err := manifest.Parse(b.Manifest)
		if err != nil {
			t.Fatalf("%s: %v", b.Name, err)
		}
		if string(m.Module) != b.Name {
			t.Errorf("folder %s holds module %s", b.Name, m.Module)
		}
		if found, ok := bundles.Find(b.Name); !ok || string(found.Manifest) != string(b.Manifest) {
			t.Errorf("Find(%q) gives something else", b.Name)
		}
	}
	if _, ok := bundles.Find("nothing"); ok {
		t.Error("Find gives a bundle that does not exist")
	}
}
