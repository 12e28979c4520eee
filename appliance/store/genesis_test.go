package store_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
)

// GEN-2, GEN-3: the first records come in one transaction, and founding again, also at the same time, doubles nothing.
func TestFound(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, other := d.Open(t), d.Open(t)
	_, err := s.Mesh(t.Context())
	wantRefusal(t, err, appliance.NotFound, "")

	g := genesis(t)
	g.Modules = []*manifest.Manifest{parse(t, web)}
	g.Assignments = []resolve.Assignment{{Module: "web", Node: g.Hub.ID}}
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = []*store.Store{s, other}[i%2].Found(t.Context(), by(), g) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	got, err := s.Mesh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := g.Mesh
	want.Epoch, want.FoundedAt = 1, start
	if diff := cmp.Diff(want, got, prefixes); diff != "" {
		t.Error(diff)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%d nodes: %v", len(nodes), err)
	}
	if n := nodes[0]; !n.Hub || n.Keys != g.Hub.Keys || n.ID != g.Hub.ID || n.Endpoint != g.Hub.Endpoint || n.State != g.Hub.State {
		t.Errorf("hub %+v", n)
	}
	operators, err := s.Operators(t.Context())
	if err != nil || len(operators) != 1 || operators[0].ID != g.Operator.ID {
		t.Errorf("operators %v: %v", operators, err)
	}
	assignments, err := s.Assignments(t.Context())
	if diff := cmp.Diff([]resolve.Assignment{{Instance: "web", Node: g.Hub.ID, Module: "web"}}, assignments); err != nil || diff != "" {
		t.Errorf("assignments: %v %s", err, diff)
	}

	second := genesis(t)
	second.Mesh.Authority = g.Mesh.Authority
	wantRefusal(t, s.Found(t.Context(), by(), second), appliance.Conflict, "")
	second = g
	second.Mesh.Authority = []byte("another")
	wantRefusal(t, s.Found(t.Context(), by(), second), appliance.Conflict, "")
}

// GEN-3, SAFE-1: a founding that is refused at its last step leaves nothing, and the same command then finishes.
func TestFoundAllOrNothing(t *testing.T) {
	s, g := storetest.New(t), genesis(t)
	g.Assignments = []resolve.Assignment{{Module: "web", Node: g.Hub.ID}}
	wantRefusal(t, s.Found(t.Context(), by(), g), appliance.NotFound, "")
	_, err := s.Mesh(t.Context())
	wantRefusal(t, err, appliance.NotFound, "")
	g.Modules = []*manifest.Manifest{parse(t, web)}
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
}

// PKI-2: of two controllers that start together one records the authority, and both go on with it.
func TestEnsureAuthority(t *testing.T) {
	d := storetest.NewDatabase(t)
	stores := []*store.Store{d.Open(t), d.Open(t)}
	winners, errs := make([]string, 20), make([]error, 20)
	var all sync.WaitGroup
	for i := range winners {
		all.Go(func() {
			var der []byte
			der, errs[i] = stores[i%2].EnsureAuthority(t.Context(), by(), []byte{byte(i)})
			winners[i] = string(der)
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, w := range winners {
		if w != winners[0] || w == "" {
			t.Fatalf("authorities %q", winners)
		}
	}
}
