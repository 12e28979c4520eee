package store_test

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
)

// BUS-1, NODE-2: users are composed from everyone's live public halves; a token that has ended keeps its user for seven days.
func TestBusUsers(t *testing.T) {
	s, g := founded(t)
	day := 24 * time.Hour
	now := time.Now()
	long := store.By{Who: "test", At: now.Add(-100 * day)}
	make := func(expires time.Duration) store.Token {
		k := store.Token{ID: appliance.NewTokenID(), Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: now.Add(expires)}
		if err := s.CreateToken(t.Context(), long, k); err != nil {
			t.Fatal(err)
		}
		return k
	}
	revoke := func(k store.Token, ago time.Duration) {
		if err := s.RevokeToken(t.Context(), store.By{Who: "test", At: now.Add(-ago)}, k.ID); err != nil {
			t.Fatal(err)
		}
	}
	open, ended, revoked, gone, goneToo := make(day), make(-6*day), make(day), make(-8*day), make(day)
	revoke(revoked, 6*day)
	revoke(goneToo, 8*day)
	spent := make(day)
	done, err := s.Enrol(t.Context(), store.By{Who: "test", At: now}, claim(t, spent, "n2"))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := busauth.Records{
		Controller: busauth.Controller{ControlKey: g.Mesh.Bus, ModulesKey: g.Mesh.BusModules},
		Holder:     g.Hub.ID,
		Nodes:      []busauth.Node{{ID: g.Hub.ID, Bus: g.Hub.Keys.Bus}, {ID: done.Node, Bus: nodes[1].Keys.Bus}},
		Operators:  []busauth.Operator{{ID: g.Operator.ID, Bus: g.Operator.Bus}},
		Departed:   []busauth.Departed{},
	}
	slices.SortFunc(want.Nodes, func(a, b busauth.Node) int { return cmp.Compare(a.ID, b.ID) })
	for _, k := range []store.Token{open, ended, revoked, spent} {
		want.Tokens = append(want.Tokens, busauth.Token{ID: k.ID, Bus: k.Bus})
	}
	slices.SortFunc(want.Tokens, func(a, b busauth.Token) int { return cmp.Compare(a.ID, b.ID) })
	got, err := s.BusUsers(t.Context())
	if diff := gocmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, k := range []store.Token{gone, goneToo} {
		if kept, err := s.Token(t.Context(), k.ID); err != nil || kept.Bus != k.Bus {
			t.Errorf("an ended token is gone from the records: %v", err)
		}
	}
}

// BUS-1: the records hold the digest of the users file and nothing else of it.
func TestUsersDigest(t *testing.T) {
	s, _ := founded(t)
	for _, want := range []appliance.Digest{"", appliance.DigestOf([]byte("one")), appliance.DigestOf([]byte("two"))} {
		if want != "" {
			if err := s.SetUsersDigest(t.Context(), want); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.UsersDigest(t.Context()); err != nil || got != want {
			t.Errorf("got %s, want %s: %v", got, want, err)
		}
	}
	if err := s.SetUsersDigest(t.Context(), "the file itself"); appliance.KindOf(err) != appliance.Invalid {
		t.Errorf("what is no digest: %v", err)
	}
}

// GEN-9: a server that may lose what it has acknowledged is refused, naming the settings; one that does not is taken.
func TestCheckDurable(t *testing.T) {
	s := storetest.New(t) // on a server for tests: it syncs nothing
	err := s.CheckDurable(t.Context())
	wantRefusal(t, err, appliance.Invalid, "")
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		if !strings.Contains(err.Error(), setting+" = off") {
			t.Errorf("%s is not named: %v", setting, err)
		}
	}
	durable := durableStore(t)
	if err := durable.CheckDurable(t.Context()); err != nil {
		t.Error(err)
	}
}
