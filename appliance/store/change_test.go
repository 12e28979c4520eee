package store_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
)

// unaudited are the methods that change something and answer to nobody: what machines say, and what follows from recorded changes.
// Everything else that is exported takes a By or only reads.
var unaudited = []string{"Seen", "RecordReport", "IssueDeclaration", "IssueMembership", "SetUsersDigest", "Forget"}

func approveNothing(store.Snapshot) (map[appliance.NodeID]resolve.Plan, error) { return nil, nil }

var readers = []string{"ApprovedPlans", "Assignments", "Audit", "BusUsers", "CertificateRequests", "Certificates", "CheckDurable", "Close", "Departed", "Facts", "Holds", "Intent", "KeptArtifacts", "Latest", "LatestMembership",
	"Mesh", "Modules", "NodeStates", "Nodes", "Operator", "Operators", "Ping", "Plans", "Revoked", "Snapshot", "Token", "Tokens", "UsersDigest", "Uses"}

// OP-2, BUS-14: every method that changes something for somebody writes who, when, what, before and after in its own transaction, and
// carries out a request once.
func TestEveryChangeIsAuditedOnce(t *testing.T) {
	type changed struct {
		change func(s *store.Store, g store.Genesis, by store.By) error
		what   string // of the last row
		before bool
	}
	ctx := t.Context()
	table := map[string]changed{
		"Found": {what: "node enrol", change: func(s *store.Store, g store.Genesis, by store.By) error { return s.Found(ctx, by, g) }},
		"EnsureAuthority": {what: "authority make", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			_, err := s.EnsureAuthority(ctx, by, []byte("a"))
			return err
		}},
		"AddOperator": {what: "operator add", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.AddOperator(ctx, by, operator(t, "second"))
		}},
		"CreateToken": {what: "token create", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.CreateToken(ctx, by, store.Token{ID: appliance.NewTokenID(), Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)})
		}},
		"RevokeToken": {what: "token revoke", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.RevokeToken(ctx, by, newToken(t, s, 1).ID)
		}},
		"Enrol": {what: "node enrol", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			_, err := s.Enrol(ctx, by, claim(t, newToken(t, s, 1), "n2"))
			return err
		}},
		"RemoveNode": {what: "node remove", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			_, err := s.RemoveNode(ctx, by, certifiedNode(t, s, string(appliance.NewNodeID())).Node)
			return err
		}},
		"LeaveNode": {what: "node remove", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			n := certifiedNode(t, s, string(appliance.NewNodeID())).Node
			_, err := s.LeaveNode(ctx, by, speaker(t, s, n))
			return err
		}},
		"ShutOut": {what: "node shut out", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			n := certifiedNode(t, s, string(appliance.NewNodeID()))
			if _, err := s.RemoveNode(ctx, store.By{Who: "test", At: start}, n.Node); err != nil {
				return err
			}
			_, err := s.ShutOut(ctx, by, n.Node)
			return err
		}},
		"RegisterModule": {what: "module register", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.RegisterModule(ctx, by, parse(t, `{"module": "fresh"}`))
		}},
		"Assign": {what: "module assign", change: func(s *store.Store, g store.Genesis, by store.By) error {
			return s.Assign(ctx, by, resolve.Assignment{Module: "web", Instance: "two", Node: g.Hub.ID})
		}},
		"Unassign": {what: "module unassign", before: true, change: func(s *store.Store, g store.Genesis, by store.By) error { return s.Unassign(ctx, by, "web", g.Hub.ID) }},
		"SetSetting": {what: "setting set", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.SetSetting(ctx, by, resolve.Setting{Module: "web", Name: "title", Value: "B"})
		}},
		"UnsetSetting": {what: "setting unset", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			v := resolve.Setting{Module: "web", Name: "title", Value: "B"}
			if by.Who == "ada" && len(intentOf(t, s).Settings) == 0 {
				if err := s.SetSetting(ctx, store.By{Who: "test", At: start}, v); err != nil {
					return err
				}
			}
			return s.UnsetSetting(ctx, by, v)
		}},
		"RemoveModule": {what: "module remove", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			_, err := s.RemoveModule(ctx, by, "web", true)
			return err
		}},
		"HoldNode": {what: "node hold", before: true, change: func(s *store.Store, g store.Genesis, by store.By) error {
			return s.HoldNode(ctx, by, g.Hub.ID, time.Hour, approveNothing)
		}},
		"DrainNode": {what: "node drain", before: true, change: func(s *store.Store, g store.Genesis, by store.By) error {
			return s.DrainNode(ctx, by, g.Hub.ID, approveNothing)
		}},
		"ResumeNode": {what: "node resume", before: true, change: func(s *store.Store, g store.Genesis, by store.By) error {
			if err := s.DrainNode(ctx, store.By{Who: "test", At: start}, g.Hub.ID, approveNothing); err != nil {
				return err
			}
			return s.ResumeNode(ctx, by, g.Hub.ID, approveNothing)
		}},
		"ConvergeNode": {what: "node converge", before: true, change: func(s *store.Store, _ store.Genesis, by store.By) error {
			nodes, err := s.Nodes(ctx)
			if err != nil {
				return err
			}
			c := claim(t, newToken(t, s, 1), fmt.Sprintf("adopted%d", len(nodes)))
			c.Adopted = true
			n, err := s.Enrol(ctx, store.By{Who: "test", At: start}, c)
			if err != nil {
				return err
			}
			return s.ConvergeNode(ctx, by, n.Node, approveNothing)
		}},
		"EndHold": {what: "node resume", before: true, change: func(s *store.Store, g store.Genesis, by store.By) error {
			if err := s.HoldNode(ctx, store.By{Who: "test", At: start}, g.Hub.ID, time.Microsecond, approveNothing); err != nil {
				return err
			}
			return s.EndHold(ctx, by, g.Hub.ID, approveNothing)
		}},
		"StopInstance": {what: "plan approve", change: func(s *store.Store, g store.Genesis, by store.By) error {
			return s.StopInstance(ctx, by, "web", g.Hub.ID, true, func(r store.Snapshot) (map[appliance.NodeID]resolve.Plan, error) {
				return resolve.Resolve(r.Intent)
			})
		}},
		"RecordAction": {what: "module restart", change: func(s *store.Store, _ store.Genesis, by store.By) error {
			return s.RecordAction(ctx, by, "module restart", "web", map[string]any{"nodes": 1})
		}},
		"ApprovePlans": {what: "plan approve", change: func(s *store.Store, g store.Genesis, by store.By) error {
			return s.ApprovePlans(ctx, by, map[appliance.NodeID]resolve.Plan{g.Hub.ID: {Version: 1, Node: g.Hub.ID}})
		}},
		"IssueCertificate": {what: "certificate issue", change: func(s *store.Store, g store.Genesis, by store.By) error {
			_, err := s.IssueCertificate(ctx, by, certificates.Certificate{Node: g.Hub.ID, Instance: "web", Name: "web", Names: []string{"web.internal"},
				Request: []byte("r"), DER: []byte("c"), Serial: "1", IssuedAt: start, EndsAt: start.Add(time.Hour)}, false)
			return err
		}},
	}
	kind := reflect.TypeFor[*store.Store]()
	for i := range kind.NumMethod() {
		method := kind.Method(i)
		audited := method.Type.NumIn() > 2 && method.Type.In(2) == reflect.TypeFor[store.By]()
		if _, known := table[method.Name]; known != audited {
			t.Errorf("%s: takes a By: %t, is in this test's table: %t", method.Name, audited, known)
		}
		if !audited && !slices.Contains(unaudited, method.Name) && !slices.Contains(readers, method.Name) {
			t.Errorf("%s takes no By and is not stated to need none", method.Name)
		}
	}
	for name, c := range table {
		t.Run(name, func(t *testing.T) {
			s, g := storetest.New(t), genesis(t)
			if name != "Found" && name != "EnsureAuthority" {
				if err := s.Found(ctx, by(), g); err != nil {
					t.Fatal(err)
				}
				if err := s.RegisterModule(ctx, by(), parse(t, `{"module": "web", "settings": {"title": {"default": "A", "description": "d"}}}`)); err != nil {
					t.Fatal(err)
				}
				if err := s.Assign(ctx, by(), resolve.Assignment{Module: "web", Node: g.Hub.ID}); err != nil {
					t.Fatal(err)
				}
			}
			who := store.By{Who: "ada", Nonce: "n", At: start.Add(time.Minute)}
			if err := c.change(s, g, who); err != nil {
				t.Fatal(err)
			}
			rows := changesOf(t, s, "ada")
			if len(rows) == 0 {
				t.Fatal("no audit")
			}
			last := rows[len(rows)-1]
			if last.What != c.what || !last.At.Equal(who.At) || last.Subject == "" || (len(last.Before) > 0) != c.before {
				t.Errorf("audited %+v", last)
			}
			if last.After == nil && !strings.HasPrefix(name, "Un") && !strings.HasPrefix(name, "Remove") && name != "LeaveNode" || last.After != nil && !json.Valid(last.After) {
				t.Errorf("after is %s", last.After)
			}
			wantRefusal(t, c.change(s, g, who), appliance.Conflict, store.Replayed)
			if again := changesOf(t, s, "ada"); len(again) != len(rows) {
				t.Errorf("a replay was audited: %+v", again)
			}
			if err := c.change(s, g, store.By{At: start, Nonce: "m"}); appliance.KindOf(err) != appliance.Internal {
				t.Errorf("a change by nobody: %v", err)
			}
		})
	}
}

func changesOf(t *testing.T, s *store.Store, who string) (mine []store.Change) {
	t.Helper()
	all, err := s.Audit(t.Context(), time.Time{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if c.Who == who {
			mine = append(mine, c)
		}
	}
	return mine
}

// BUS-14: of one request delivered many times at once, one is carried out; a request that was refused has not been.
func TestNonceOnce(t *testing.T) {
	s, g := founded(t)
	who := store.By{Who: "ada", Nonce: "n", At: start}
	wantRefusal(t, s.Assign(t.Context(), who, resolve.Assignment{Module: "web", Node: g.Hub.ID}), appliance.NotFound, "")
	errs := make([]error, 30)
	var all sync.WaitGroup
	for i := range errs {
		o := operator(t, fmt.Sprintf("o%d", i))
		all.Go(func() { errs[i] = s.AddOperator(t.Context(), who, o) })
	}
	all.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
		} else if !appliance.IsReason(err, store.Replayed) {
			t.Error(err)
		}
	}
	operators, err := s.Operators(t.Context())
	if done != 1 || err != nil || len(operators) != 2 {
		t.Errorf("%d done, %d operators: %v", done, len(operators), err)
	}
	// Another sender may draw the same nonce, and after a nonce's life it is forgotten.
	if err := s.AddOperator(t.Context(), store.By{Who: "bob", Nonce: "n", At: start}, operator(t, "bobs")); err != nil {
		t.Error(err)
	}
	who.At = who.At.Add(store.NonceLife - time.Second)
	wantRefusal(t, s.AddOperator(t.Context(), who, operator(t, "late")), appliance.Conflict, store.Replayed)
	who.At = who.At.Add(2 * time.Second)
	if err := s.AddOperator(t.Context(), who, operator(t, "later")); err != nil {
		t.Error(err)
	}
}

// OP-2: what exists is said to exist, naming the thing.
func TestOperators(t *testing.T) {
	s, g := founded(t)
	twice := operator(t, "first")
	wantRefusal(t, s.AddOperator(t.Context(), by(), twice), appliance.Conflict, "")
	borrowed := operator(t, "third")
	borrowed.Signing = g.Operator.Signing
	wantRefusal(t, s.AddOperator(t.Context(), by(), borrowed), appliance.Conflict, "")
	empty := operator(t, "fourth")
	empty.Signing = nil // SAFE-4
	wantRefusal(t, s.AddOperator(t.Context(), by(), empty), appliance.Invalid, "")
	role := operator(t, "fifth")
	role.Role = "root"
	wantRefusal(t, s.AddOperator(t.Context(), by(), role), appliance.Invalid, "")
	got, err := s.Operator(t.Context(), g.Operator.ID)
	if err != nil || got.Name != "first" || !got.Signing.Equal(g.Operator.Signing) {
		t.Errorf("%+v: %v", got, err)
	}
	_, err = s.Operator(t.Context(), appliance.NewOperatorID())
	wantRefusal(t, err, appliance.NotFound, "")
}
