package store_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
)

// MOD-7, SAFE-1: a module that something needs is not forgotten, and where is said; by force what needs it is unassigned and named. Its
// name, those of its instances and its settings are free afterwards; the base stays.
func TestRemoveModule(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2").Node
	register(t, s, titled, plain, `{"module": "mesh-network"}`, `{"module": "lights", "seats": [{"name": "light", "scope": "mesh"}]}`,
		`{"module": "lamp", "claims": ["light"]}`, `{"module": "base", "seats": [{"name": "mesh-store", "scope": "mesh"}], "claims": ["mesh-store"]}`)
	remove := func(module appliance.ModuleName, force bool) (broken []string, err error) {
		all, err := s.RemoveModule(t.Context(), by(), module, force)
		for _, u := range all {
			broken = append(broken, u.String())
		}
		return broken, err
	}
	if err := s.SetSetting(t.Context(), by(), resolve.Setting{Module: "site", Name: "theme", Value: "dark"}); err != nil {
		t.Fatal(err)
	}
	assign(t, s, "site", "shop", g.Hub.ID)
	assign(t, s, "site", "", second)
	assign(t, s, "lamp", "", second)
	assign(t, s, "plain", "", g.Hub.ID)

	before := everythingRecorded(t, s)
	for module, says := range map[appliance.ModuleName][]string{"site": {"shop@hub", "site@n2"}, "lights": {"lamp@n2 (which holds seat light)"}} {
		_, err := remove(module, false)
		wantRefusal(t, err, appliance.Conflict, "")
		for _, s := range says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s is not named: %v", s, err)
			}
		}
	}
	for _, force := range []bool{false, true} {
		_, err := remove("none", force)
		wantRefusal(t, err, appliance.NotFound, "")
		for _, module := range []appliance.ModuleName{"mesh-network", "base"} {
			_, err := remove(module, force)
			wantRefusal(t, err, appliance.Conflict, "")
		}
	}
	if d := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); d != "" {
		t.Errorf("a refusal changed the records: %s", d)
	}

	for module, want := range map[appliance.ModuleName][]string{"site": {"shop@hub", "site@n2"}, "lights": {"lamp@n2 (which holds seat light)"}} {
		uses, err := s.Uses(t.Context(), module)
		if err != nil || len(uses) != len(want) {
			t.Errorf("uses of %s: %v, %v", module, uses, err)
		}
		broken, err := remove(module, true)
		if d := cmp.Diff(want, broken); err != nil || d != "" {
			t.Errorf("broken with %s: %v %s", module, err, d)
		}
	}
	i := intentOf(t, s)
	if len(i.Assignments) != 1 || i.Assignments[0].Module != "plain" || i.Modules["site"] != nil || i.Modules["lamp"] == nil || len(i.Settings) > 0 {
		t.Errorf("left %+v %+v", i.Assignments, i.Settings)
	}
	for _, name := range []string{"site", "shop"} { // the names are free
		enrolledNode(t, s, name)
	}
}
