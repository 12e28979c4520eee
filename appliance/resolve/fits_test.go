package resolve_test

import (
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/resolve"
)

// BLD-7, PORT-2, SAFE-5: what a machine says of itself is asked when something is recorded for it; a node that says something else later,
// because its engine is down or it lies, keeps nobody's plan from being made.
func TestFactsOfOneNodeStopNobody(t *testing.T) {
	in := resolve.Intent{
		Nodes: []resolve.Node{{ID: "naaaaaaaaaaaaaaa", Name: "a", Runtime: "docker", Platform: "linux/amd64"}, {ID: "nbbbbbbbbbbbbbbb", Name: "b"}},
		Modules: map[appliance.ModuleName]*manifest.Manifest{
			"boxed": parse(t, `{"module": "boxed", "ports": {"http": {"port": 8080, "from": "mesh"}}, "artifacts": {"image": {"kind": "image", "platforms": ["linux/amd64"]}},
				"resources": [{"kind": "user", "name": "boxed"}, {"kind": "container", "name": "c", "artifact": "image", "user": "boxed"}]}`),
			"plain": parse(t, `{"module": "plain"}`),
		},
		Assignments: []resolve.Assignment{{Instance: "boxed", Node: "naaaaaaaaaaaaaaa", Module: "boxed"}, {Instance: "plain", Node: "nbbbbbbbbbbbbbbb", Module: "plain"}},
	}
	all := func(resolve.Assignment) bool { return true }
	if _, err := resolve.Resolve(in); err != nil {
		t.Fatal(err)
	}
	if err := in.Fits(all); err != nil {
		t.Fatal(err)
	}
	for name, later := range map[string]func(*resolve.Intent){
		"engine down": func(i *resolve.Intent) { i.Nodes[0].Runtime = "" },
		"platform":    func(i *resolve.Intent) { i.Nodes[0].Platform = "plan9/mips" },
		"carried port": func(i *resolve.Intent) {
			i.Carried = map[appliance.NodeID][]ports.Bound{"naaaaaaaaaaaaaaa": {{Number: 8080, Protocol: "tcp", Holder: "the lie (carried)"}}}
		},
	} {
		changed := in
		changed.Nodes = append([]resolve.Node{}, in.Nodes...)
		later(&changed)
		if _, err := resolve.Resolve(changed); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := changed.Fits(func(a resolve.Assignment) bool { return a.Instance == "plain" }); err != nil {
			t.Errorf("%s: what is recorded for another node: %v", name, err)
		}
		if err := changed.Fits(all); appliance.KindOf(err) != appliance.Conflict {
			t.Errorf("%s: assigned again: %v", name, err)
		}
	}
}
