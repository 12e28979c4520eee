package store_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

const plain = `{"module": "plain", "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}}}`

func register(t *testing.T, s *store.Store, manifests ...string) {
	t.Helper()
	for _, m := range manifests {
		if err := s.RegisterModule(t.Context(), by(), parse(t, m)); err != nil {
			t.Fatal(err)
		}
	}
}

func assign(t *testing.T, s *store.Store, module, instance string, node appliance.NodeID) {
	t.Helper()
	a := resolve.Assignment{Module: appliance.ModuleName(module), Instance: appliance.InstanceName(instance), Node: node}
	if err := s.Assign(t.Context(), by(), a); err != nil {
		t.Fatal(err)
	}
}

func intentOf(t *testing.T, s *store.Store) resolve.Intent {
	t.Helper()
	i, err := s.Intent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func port(instance, name string, node appliance.NodeID, number uint16) resolve.Port {
	return resolve.Port{Instance: appliance.InstanceName(instance), Node: node, Name: name, Number: number}
}

// MOD-12, PORT-2: an instance has its own name in every record; assigned ports begin at 20000 and go round instances and carried ports.
func TestAssign(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2").Node
	register(t, s, plain)
	if _, err := record(t, s, g.Hub.ID, sent{sequence: 1, report: said()[0].report}); err != nil { // binds 4222
		t.Fatal(err)
	}
	if _, err := s.RecordReport(t.Context(), speaker(t, s, g.Hub.ID), 2, start, said()[2].report, false); err != nil { // and 4223
		t.Fatal(err)
	}
	if _, err := s.RecordReport(t.Context(), speaker(t, s, g.Hub.ID), 3, start, reportOf(20000, 20002), false); err != nil { // no, these
		t.Fatal(err)
	}
	assign(t, s, "plain", "", g.Hub.ID)
	assign(t, s, "plain", "other", g.Hub.ID)
	assign(t, s, "plain", "", second)
	i := intentOf(t, s)
	want := []resolve.Port{port("other", "http", g.Hub.ID, 20003), port("plain", "http", g.Hub.ID, 20001), port("plain", "http", second, 20000)}
	if diff := cmp.Diff(portMap(want), portMap(i.Ports)); diff != "" {
		t.Error(diff)
	}
	bound := []ports.Bound{{Number: 20000, Protocol: "tcp", Holder: "the broker (carried)"}, {Number: 20002, Protocol: "tcp", Holder: "the broker (carried)"}}
	if diff := cmp.Diff(bound, i.Carried[g.Hub.ID]); diff != "" {
		t.Error(diff)
	}
	if len(i.Assignments) != 3 || len(i.Nodes) != 2 || i.Mesh != g.Mesh.ID || i.MeshName != "home" || i.Modules["plain"].Digest() != parse(t, plain).Digest() {
		t.Errorf("intent %+v", i)
	}
	// What was assigned goes with the instance, and its number and name are free again.
	for _, instance := range []appliance.InstanceName{"plain", "other"} {
		if err := s.Unassign(t.Context(), by(), instance, g.Hub.ID); err != nil {
			t.Fatal(err)
		}
	}
	if i = intentOf(t, s); len(i.Ports) != 1 || len(i.Assignments) != 1 {
		t.Errorf("left %+v %+v", i.Ports, i.Assignments)
	}
	if _, err := s.Enrol(t.Context(), by(), claim(t, newToken(t, s, 1), "other")); err != nil {
		t.Errorf("the instance's name is not free: %v", err)
	}
}

// MOD-7: the mesh stands on its base modules, whatever their instances are called.
func TestBaseModuleStays(t *testing.T) {
	s, g := founded(t)
	register(t, s, `{"module": "mesh-network"}`)
	assign(t, s, "mesh-network", "net", g.Hub.ID)
	before := everythingRecorded(t, s)
	wantRefusal(t, s.Unassign(t.Context(), by(), "net", g.Hub.ID), appliance.Conflict, "")
	if diff := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); diff != "" {
		t.Error(diff)
	}
}

// PORT-2, PORT-4: a new manifest gives its instances the ports it leaves to the mesh, keeps what they have, and takes back the rest.
func TestNewManifestMovesPorts(t *testing.T) {
	s, g := founded(t)
	register(t, s, plain)
	assign(t, s, "plain", "", g.Hub.ID)
	assign(t, s, "plain", "two", g.Hub.ID)
	register(t, s, `{"module": "plain", "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}, "api": {"port": 8081, "from": "mesh", "assign": true}}}`)
	want := []resolve.Port{port("plain", "http", g.Hub.ID, 20000), port("two", "http", g.Hub.ID, 20001), port("plain", "api", g.Hub.ID, 20002), port("two", "api", g.Hub.ID, 20003)}
	if diff := cmp.Diff(portMap(want), portMap(intentOf(t, s).Ports)); diff != "" {
		t.Error(diff)
	}
	register(t, s, `{"module": "plain", "ports": {"api": {"port": 8081, "from": "mesh", "assign": true}}}`)
	if diff := cmp.Diff(portMap(want[2:]), portMap(intentOf(t, s).Ports)); diff != "" {
		t.Error(diff)
	}
}

func portMap(all []resolve.Port) map[string]uint16 {
	m := map[string]uint16{}
	for _, p := range all {
		m[fmt.Sprint(p.Instance, "/", p.Node, "/", p.Name, "/", p.Given)] = p.Number
	}
	return m
}

// PORT-2, SAFE-1: assignments that race for one node never get one port, and none is lost.
func TestAssignRace(t *testing.T) {
	s, g := founded(t)
	register(t, s, plain)
	errs := make([]error, 16)
	var all sync.WaitGroup
	for i := range errs {
		a := resolve.Assignment{Module: "plain", Instance: appliance.InstanceName(fmt.Sprintf("p%d", i)), Node: g.Hub.ID}
		all.Go(func() { errs[i] = s.Assign(t.Context(), by(), a) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	numbers := map[uint16]bool{}
	for _, p := range intentOf(t, s).Ports {
		numbers[p.Number] = true
	}
	if len(numbers) != len(errs) || !numbers[20000] || !numbers[20015] {
		t.Errorf("numbers %v", numbers)
	}
}

// MOD-2, MOD-3, MOD-7, MOD-12, PORT-2, SAFE-1: what cannot stand beside what is recorded is refused and changes nothing.
func TestIntentRefused(t *testing.T) {
	s, g := founded(t)
	register(t, s, web, plain, `{"module": "lamp", "seats": [{"name": "light", "scope": "mesh"}], "claims": ["light"]}`)
	second := enrolledNode(t, s, "n2").Node
	assign(t, s, "web", "", g.Hub.ID)
	assign(t, s, "lamp", "", g.Hub.ID)
	assign(t, s, "plain", "custom", second)
	before := everythingRecorded(t, s)
	for name, c := range map[string]struct {
		change func() error
		kind   appliance.Kind
	}{
		"no module": {func() error { return s.Assign(t.Context(), by(), resolve.Assignment{Module: "none", Node: second}) }, appliance.NotFound},
		"no node": {func() error {
			return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Node: appliance.NewNodeID()})
		}, appliance.NotFound},
		"twice": {func() error { return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Node: g.Hub.ID}) }, appliance.Conflict},
		"as a node": {func() error {
			return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Instance: "n2", Node: second})
		}, appliance.Conflict},
		"as another module": {func() error {
			return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Instance: "plain", Node: second})
		}, appliance.Conflict},
		"as another's instance": {func() error {
			return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Instance: "custom", Node: g.Hub.ID})
		}, appliance.Conflict},
		"one fixed port twice": {func() error {
			return s.Assign(t.Context(), by(), resolve.Assignment{Module: "web", Instance: "web2", Node: g.Hub.ID})
		}, appliance.Conflict},
		"one seat twice":        {func() error { return s.Assign(t.Context(), by(), resolve.Assignment{Module: "lamp", Node: second}) }, appliance.Conflict},
		"no instance":           {func() error { return s.Unassign(t.Context(), by(), "web", second) }, appliance.NotFound},
		"module as a node":      {func() error { return s.RegisterModule(t.Context(), by(), parse(t, `{"module": "n2"}`)) }, appliance.Conflict},
		"module as an instance": {func() error { return s.RegisterModule(t.Context(), by(), parse(t, `{"module": "custom"}`)) }, appliance.Conflict},
		"manifest that no longer fits": {func() error {
			return s.RegisterModule(t.Context(), by(), parse(t, `{"module": "lamp", "ports": {"x": {"port": 9090, "from": "mesh"}}}`))
		}, appliance.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefusal(t, c.change(), c.kind, "")
			if diff := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); diff != "" {
				t.Errorf("a refusal changed the records: %s", diff)
			}
		})
	}
	// The same manifest again is no change.
	register(t, s, web)
	if diff := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); diff != "" {
		t.Error(diff)
	}
	modules, err := s.Modules(t.Context())
	if err != nil || len(modules) != 3 || modules[2].Name != "web" || modules[2].Digest != modules[2].Manifest.Digest() || !modules[2].RegisteredAt.Equal(start) {
		t.Errorf("modules %+v: %v", modules, err)
	}
}

func everythingRecorded(t *testing.T, s *store.Store) []any {
	t.Helper()
	r, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return append(everything(t, s), r)
}

// NODE-3, MOD-12: a node is enrolled together with what every node runs.
func TestEnrolWithModules(t *testing.T) {
	s, _ := founded(t)
	register(t, s, plain)
	c := claim(t, newToken(t, s, 1), "n2")
	c.Modules = []appliance.ModuleName{"plain", "none"}
	_, err := s.Enrol(t.Context(), by(), c)
	wantRefusal(t, err, appliance.NotFound, "")
	c.Modules = c.Modules[:1]
	done, err := s.Enrol(t.Context(), by(), c)
	if err != nil {
		t.Fatal(err)
	}
	if i := intentOf(t, s); len(i.Assignments) != 1 || i.Assignments[0].Node != done.Node || len(i.Ports) != 1 {
		t.Errorf("%+v %+v", i.Assignments, i.Ports)
	}
}

// DEC-1: facts are what render needs, of the same moment as the intent.
func TestFacts(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2")
	want := render.Facts{Mesh: g.Mesh.ID, Range: meshes, Authority: g.Mesh.Authority, Nodes: map[appliance.NodeID]render.NodeFacts{
		g.Hub.ID:    {Name: "hub", Address: address1, State: "/var/lib/mesh"},
		second.Node: {Name: "n2", Address: netip.MustParseAddr("10.64.0.2"), State: "/var/lib/mesh"},
	}}
	got, err := s.Facts(t.Context())
	if diff := cmp.Diff(want, got, addresses, prefixes); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if r, err := s.Snapshot(t.Context()); err != nil || !cmp.Equal(want, r.Facts, addresses, prefixes) {
		t.Errorf("snapshot: %+v %v", r.Facts, err)
	}
}
