package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
)

// numbered is what one call of an issuing method gave.
type numbered struct {
	number appliance.Number
	issued bool
	err    error
}

// issuer makes the two kinds of numbered documents look alike.
type issuer struct {
	issue func(body string, seal func(appliance.Number) ([]byte, error)) numbered
	last  func() (store.Issued, error)
}

func issuers(t *testing.T, s *store.Store, node appliance.NodeID) map[string]issuer {
	return map[string]issuer{
		"declaration": {
			issue: func(body string, seal func(appliance.Number) ([]byte, error)) (n numbered) {
				n.number, n.issued, n.err = s.IssueDeclaration(t.Context(), node, appliance.DigestOf([]byte(body)), 1, seal)
				return n
			},
			last: func() (store.Issued, error) {
				all, err := s.Latest(t.Context())
				return all[node], err
			},
		},
		"membership": {
			issue: func(body string, seal func(appliance.Number) ([]byte, error)) (n numbered) {
				n.number, n.issued, n.err = s.IssueMembership(t.Context(), []byte(body), seal)
				return n
			},
			last: func() (store.Issued, error) { return s.LatestMembership(t.Context()) },
		},
	}
}

func sealed(n appliance.Number) ([]byte, error) { return fmt.Appendf(nil, "sealed %s", n), nil }

// DEC-1, DEC-3, NET-11: numbers rise by one however many issue at once, each envelope is sealed under the number recorded, and the same
// digest is issued once.
func TestNumbersRise(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	for name, i := range issuers(t, s, g.Hub.ID) {
		t.Run(name, func(t *testing.T) {
			if last, err := i.last(); err != nil || !last.Number.IsZero() {
				t.Fatalf("before the first: %+v %v", last, err)
			}
			const many = 40
			got := make([]numbered, many)
			var all sync.WaitGroup
			for k := range got {
				body := fmt.Sprintf("body %d", k/2) // each body twice
				all.Go(func() { got[k] = i.issue(body, sealed) })
			}
			all.Wait()
			numbers, issued := map[uint64]bool{}, 0
			for _, n := range got {
				if n.err != nil {
					t.Fatal(n.err)
				}
				if n.issued {
					if numbers[n.number.Counter] {
						t.Errorf("number %s twice", n.number)
					}
					numbers[n.number.Counter] = true
					issued++
				}
				if n.number.Epoch != 1 || n.number.Counter == 0 {
					t.Errorf("number %s", n.number)
				}
			}
			for n := range issued {
				if !numbers[uint64(n+1)] {
					t.Errorf("no number %d among %d", n+1, issued)
				}
			}
			last, err := i.last()
			if want := fmt.Sprintf("sealed 1.%d", issued); err != nil || string(last.Envelope) != want {
				t.Errorf("last is %q, want %q: %v", last.Envelope, want, err)
			}

			same := make([]numbered, 10)
			for k := range same {
				all.Go(func() { same[k] = i.issue("news", sealed) })
			}
			all.Wait()
			issued++
			fresh := 0
			for _, n := range same {
				if n.issued {
					fresh++
				}
				if n.err != nil || n.number.Counter != uint64(issued) {
					t.Errorf("%+v, want counter %d", n, issued)
				}
			}
			if fresh != 1 {
				t.Errorf("the same digest was issued %d times", fresh)
			}

			broken := errors.New("no key")
			if n := i.issue("never", func(appliance.Number) ([]byte, error) { return nil, broken }); !errors.Is(n.err, broken) || n.issued || !n.number.IsZero() {
				t.Errorf("unsealed: %+v", n)
			}
			if again := i.issue("news", sealed); again.issued || again.err != nil {
				t.Errorf("after a failed seal: %+v", again)
			}
			// A restore raises the epoch: what nodes hold may be younger than the records, so the same content goes out again.
			if _, err := d.SQL(t).Exec(`UPDATE mesh SET epoch = 2`); err != nil {
				t.Fatal(err)
			}
			want := numbered{number: appliance.Number{Epoch: 2, Counter: uint64(issued) + 1}, issued: true}
			if n := i.issue("news", sealed); n != want {
				t.Errorf("in the new epoch: %+v", n)
			}
			if _, err := d.SQL(t).Exec(`UPDATE mesh SET epoch = 1`); err != nil {
				t.Fatal(err)
			}
		})
	}
	_, _, err := s.IssueDeclaration(t.Context(), appliance.NewNodeID(), appliance.DigestOf(nil), 1, sealed)
	wantRefusal(t, err, appliance.NotFound, "")
}

// DEC-1: approving keeps history, one plan is approved, and the same plan again is no change.
func TestPlans(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	second := enrolledNode(t, s, "n2").Node
	plan := func(node appliance.NodeID, k int) resolve.Plan {
		return resolve.Plan{Version: 1, Node: node, Instances: []resolve.Instance{{Name: appliance.InstanceName(fmt.Sprintf("i%d", k)), Module: "web"}}}
	}
	errs := make([]error, 20)
	var all sync.WaitGroup
	for i := range errs {
		plans := map[appliance.NodeID]resolve.Plan{g.Hub.ID: plan(g.Hub.ID, i), second: plan(second, i)}
		all.Go(func() { errs[i] = s.ApprovePlans(t.Context(), by(), plans) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	approved, err := s.ApprovedPlans(t.Context())
	if err != nil || len(approved) != 2 {
		t.Fatalf("%d approved: %v", len(approved), err)
	}
	for node, a := range approved {
		plan, err := a.Plan()
		if err != nil || a.Number != 20 || a.By != "test" || !a.At.Equal(start) || plan.Node != node || a.Digest != appliance.DigestOf(plan.Bytes()) {
			t.Errorf("approved %+v: %v", a, err)
		}
	}
	before := len(changesOf(t, s, "test"))
	same, err := approved[second].Plan()
	if err == nil {
		err = s.ApprovePlans(t.Context(), by(), map[appliance.NodeID]resolve.Plan{second: same})
	}
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.ApprovedPlans(t.Context())
	if diff := cmp.Diff(approved, again); err != nil || diff != "" || len(changesOf(t, s, "test")) != before {
		t.Errorf("the same plan again changed something: %v %s", err, diff)
	}
	var kept int
	if err := d.SQL(t).QueryRow(`SELECT count(*) FROM plan WHERE node = $1`, string(second)).Scan(&kept); err != nil || kept != 20 {
		t.Errorf("%d plans kept: %v", kept, err)
	}
	// One unknown node among them, and nothing is approved.
	unknown := appliance.NewNodeID()
	wantRefusal(t, s.ApprovePlans(t.Context(), by(), map[appliance.NodeID]resolve.Plan{second: plan(second, 99), unknown: plan(unknown, 1)}), appliance.NotFound, "")
	if again, err = s.ApprovedPlans(t.Context()); err != nil || again[second].Number != 20 {
		t.Errorf("a refused approval left %+v: %v", again[second], err)
	}
}
