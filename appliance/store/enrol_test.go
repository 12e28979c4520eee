package store_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/store"
)

// race lets all claims go at once and gives what became of each.
func race(t *testing.T, s *store.Store, claims []store.Enrolment) ([]store.Enrolled, []error) {
	t.Helper()
	done, errs := make([]store.Enrolled, len(claims)), make([]error, len(claims))
	gate := make(chan struct{})
	var all sync.WaitGroup
	for i := range claims {
		all.Go(func() {
			<-gate
			done[i], errs[i] = s.Enrol(t.Context(), by(), claims[i])
		})
	}
	close(gate)
	all.Wait()
	return done, errs
}

// NODE-2: 200 claims racing for one use give one winner; the others are told that the token is used.
func TestEnrolOneWinner(t *testing.T) {
	s, _ := founded(t)
	token := newToken(t, s, 1)
	claims := make([]store.Enrolment, 200)
	for i := range claims {
		claims[i] = claim(t, token, fmt.Sprintf("n%d", i))
	}
	_, errs := race(t, s, claims)
	winners := 0
	for _, err := range errs {
		if err == nil {
			winners++
		} else if !appliance.IsReason(err, enrol.TokenUsed) {
			t.Errorf("a loser was told %v", err)
		}
	}
	if winners != 1 {
		t.Errorf("%d winners", winners)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Errorf("%d nodes, want hub and winner: %v", len(nodes), err)
	}
	if got, err := s.Token(t.Context(), token.ID); err != nil || got.Used != 1 {
		t.Errorf("token used %d times: %v", got.Used, err)
	}
}

// NODE-2, NET-2: 200 machines racing under one token for 200, and 40 more under tokens of their own, get addresses and names of their own.
func TestEnrolMany(t *testing.T) {
	s, _ := founded(t)
	token := newToken(t, s, 200)
	claims := make([]store.Enrolment, 240)
	for i := range claims {
		spend := token
		if i%6 == 5 {
			spend = newToken(t, s, 1)
		}
		claims[i] = claim(t, spend, fmt.Sprintf("n%d", i))
	}
	done, errs := race(t, s, claims)
	addresses, ids := map[netip.Addr]bool{address1: true}, map[appliance.NodeID]bool{}
	for i, d := range done {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if addresses[d.Address] || ids[d.Node] || !meshes.Contains(d.Address) {
			t.Errorf("%+v doubles another or lies outside the range", d)
		}
		addresses[d.Address], ids[d.Node] = true, true
		if d.Name != claims[i].Name {
			t.Errorf("name %s, asked for %s", d.Name, claims[i].Name)
		}
	}
	_, err := s.Enrol(t.Context(), by(), claim(t, token, "late"))
	wantRefusal(t, err, appliance.Denied, enrol.TokenUsed)
}

// NODE-4: the same claimant gets the same answer until its first own connection, then a refusal by name; nothing is doubled.
func TestEnrolRepeated(t *testing.T) {
	s, _ := founded(t)
	token := newToken(t, s, 1)
	c := claim(t, token, "laptop")
	// Also when both tries are on the way at once, and after the token has ended.
	done, errs := race(t, s, []store.Enrolment{c, c, c})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := s.RevokeToken(t.Context(), by(), token.ID); err != nil {
		t.Fatal(err)
	}
	later := by()
	later.At = start.Add(48 * time.Hour)
	again, err := s.Enrol(t.Context(), later, c)
	if err != nil {
		t.Fatal(err)
	}
	done = append(done, again)
	fresh := 0
	for i := range done {
		if !done[i].Repeated {
			fresh++
		}
		done[i].Repeated = true
		if diff := cmp.Diff(done[0], done[i], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("answers differ: %s", diff)
		}
	}
	if fresh != 1 {
		t.Errorf("%d of the answers were first answers", fresh)
	}
	changed := c
	changed.Keys.Overlay = random32()
	_, err = s.Enrol(t.Context(), by(), changed)
	wantRefusal(t, err, appliance.Conflict, enrol.AlreadyEnrolled)

	if err := s.Seen(t.Context(), []store.Seen{{Speaker: speaker(t, s, done[0].Node), At: start}}); err != nil {
		t.Fatal(err)
	}
	_, err = s.Enrol(t.Context(), by(), c)
	wantRefusal(t, err, appliance.Conflict, enrol.AlreadyEnrolled)
}

// NODE-2, NODE-4, NET-8, MOD-2: every refusal has its reason and changes nothing (SAFE-1): the token can still be spent.
func TestEnrolRefused(t *testing.T) {
	s, g := founded(t)
	other := enrolledNode(t, s, "other")
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	taken := nodes[1].Keys
	if nodes[1].ID != other.Node {
		t.Fatalf("second node is %s", nodes[1].Name)
	}
	if err := s.RegisterModule(t.Context(), by(), parse(t, web)); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no certificate today")
	for name, c := range map[string]struct {
		token  func(*store.Token)
		revoke bool
		claim  func(*store.Enrolment)
		kind   appliance.Kind
		reason appliance.Reason
	}{
		"unknown":          {claim: func(e *store.Enrolment) { e.Token = appliance.NewTokenID() }, kind: appliance.Denied, reason: enrol.TokenUnknown},
		"revoked":          {revoke: true, kind: appliance.Denied, reason: enrol.TokenRevoked},
		"name of node":     {claim: func(e *store.Enrolment) { e.Name = "other" }, kind: appliance.Conflict, reason: enrol.NameTaken},
		"name of hub":      {claim: func(e *store.Enrolment) { e.Name = g.Hub.Name }, kind: appliance.Conflict, reason: enrol.NameTaken},
		"name of a module": {claim: func(e *store.Enrolment) { e.Name = "web" }, kind: appliance.Conflict, reason: enrol.NameTaken},
		"no name":          {claim: func(e *store.Enrolment) { e.Name = "" }, kind: appliance.Invalid, reason: enrol.NameInvalid},
		"reserved name":    {claim: func(e *store.Enrolment) { e.Name = "broker" }, kind: appliance.Invalid, reason: enrol.NameInvalid},
		"identity":         {claim: func(e *store.Enrolment) { e.Keys.Identity = taken.Identity }, kind: appliance.Conflict, reason: enrol.AlreadyEnrolled},
		"overlay key":      {claim: func(e *store.Enrolment) { e.Keys.Overlay = taken.Overlay }, kind: appliance.Conflict, reason: enrol.KeyTaken},
		"hub's overlay":    {claim: func(e *store.Enrolment) { e.Keys.Overlay = g.Hub.Keys.Overlay }, kind: appliance.Conflict, reason: enrol.KeyTaken},
		"sealing key":      {claim: func(e *store.Enrolment) { e.Keys.Sealing = taken.Sealing }, kind: appliance.Conflict, reason: enrol.KeyTaken},
		"TLS key":          {claim: func(e *store.Enrolment) { e.Keys.TLS = taken.TLS }, kind: appliance.Conflict, reason: enrol.KeyTaken},
		"bus key":          {claim: func(e *store.Enrolment) { e.Keys.Bus = taken.Bus }, kind: appliance.Conflict, reason: enrol.KeyTaken},
		"no key":           {claim: func(e *store.Enrolment) { e.Keys.Overlay = "" }, kind: appliance.Invalid},
		// Another spelling of the same 32 bytes is no other key.
		"spare bits": {claim: func(e *store.Enrolment) { e.Keys.Overlay = g.Hub.Keys.Overlay[:42] + "B=" }, kind: appliance.Invalid},
		"full": {claim: func(e *store.Enrolment) {
			e.Allocate = func([]netip.Addr) (netip.Addr, error) { return netip.Addr{}, enrol.Refuse(enrol.MeshFull, "full") }
		}, kind: appliance.Conflict, reason: enrol.MeshFull},
		"address twice": {claim: func(e *store.Enrolment) {
			e.Allocate = func([]netip.Addr) (netip.Addr, error) { return address1, nil }
		}, kind: appliance.Conflict},
		"issue": {claim: func(e *store.Enrolment) {
			e.Issue = func(appliance.NodeID, appliance.NodeName, netip.Addr) ([]byte, error) {
				return nil, appliance.Errorf(appliance.Internal, "issue: %w", broken).WithHint("none")
			}
		}, kind: appliance.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			token := newToken(t, s, 1)
			if c.revoke {
				if err := s.RevokeToken(t.Context(), by(), token.ID); err != nil {
					t.Fatal(err)
				}
			}
			before := everything(t, s)
			e := claim(t, token, "fresh")
			if c.claim != nil {
				c.claim(&e)
			}
			_, err := s.Enrol(t.Context(), by(), e)
			wantRefusal(t, err, c.kind, c.reason)
			if diff := cmp.Diff(before, everything(t, s), addresses); diff != "" {
				t.Errorf("a refusal changed the records: %s", diff)
			}
		})
	}
}

var (
	addresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	prefixes  = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
)

// everything is what an enrolment may touch.
func everything(t *testing.T, s *store.Store) []any {
	t.Helper()
	nodes, err1 := s.Nodes(t.Context())
	tokens, err2 := s.Tokens(t.Context())
	changes, err3 := s.Audit(t.Context(), time.Time{}, 0)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return []any{nodes, tokens, changes}
}

// NODE-2: a token ends at its time, and its own name and labels go before what the joiner asks for.
func TestEnrolUnderNamedToken(t *testing.T) {
	s, _ := founded(t)
	token := newToken(t, s, 1, func(k *store.Token) { k.Name, k.Labels = "printer", map[string]string{"room": "1"} })
	e := claim(t, token, "whatever")
	e.Labels = map[string]string{"room": "2", "colour": "red"}
	late := by()
	late.At = token.ExpiresAt
	_, err := s.Enrol(t.Context(), late, e)
	wantRefusal(t, err, appliance.Denied, enrol.TokenExpired)

	done, err := s.Enrol(t.Context(), by(), e)
	if err != nil || done.Name != "printer" {
		t.Fatalf("name %s: %v", done.Name, err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"room": "1", "colour": "red"}, nodes[1].Labels); diff != "" {
		t.Error(diff)
	}
	if nodes[1].Keys != e.Keys || nodes[1].Address != done.Address || !nodes[1].ConnectedAt.IsZero() || nodes[1].Capabilities.Distribution != "debian" {
		t.Errorf("recorded %+v", nodes[1])
	}
	err = s.CreateToken(t.Context(), by(), store.Token{ID: appliance.NewTokenID(), Name: "printer", Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)})
	wantRefusal(t, err, appliance.Conflict, enrol.NameTaken)
	err = s.CreateToken(t.Context(), by(), store.Token{ID: appliance.NewTokenID(), Name: "two", Uses: 2, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)})
	wantRefusal(t, err, appliance.Invalid, "")
	_, err = s.Token(t.Context(), appliance.NewTokenID())
	wantRefusal(t, err, appliance.Denied, enrol.TokenUnknown)
}
