package store_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

// certified has a claim's node get a real certificate, with the serial, that ends an hour after start.
func certified(t testing.TB, e store.Enrolment, serial int64) store.Enrolment {
	e.Issue = func(appliance.NodeID, appliance.NodeName, netip.Addr) ([]byte, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: start, NotAfter: start.Add(time.Hour)}
		return x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	}
	return e
}

func certifiedNode(t testing.TB, s *store.Store, name string) store.Enrolled {
	t.Helper()
	done, err := s.Enrol(t.Context(), by(), certified(t, claim(t, newToken(t, s, 1), name), 0xabc))
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// lived gives a node something of everything that is recorded of nodes.
func lived(t *testing.T, s *store.Store, id appliance.NodeID) {
	t.Helper()
	ctx := t.Context()
	digest := appliance.DigestOf([]byte("content"))
	number, _, err := s.IssueDeclaration(ctx, id, digest, 1, func(appliance.Number) ([]byte, error) { return []byte("e"), nil })
	carried, requests := []wire.CarriedPort{{Port: 53, Protocol: "udp", Part: "resolver"}}, []wire.CertificateRequest{{Instance: "web", Name: "web", Request: []byte("r")}}
	_, err1 := s.RecordReport(ctx, speaker(t, s, id), 7, start, wire.Report{Version: 1, About: &wire.About{Number: number, Digest: digest}, Facts: &wire.Facts{Carried: &carried, Requests: &requests},
		Outcomes: []wire.Outcome{{ID: "web/user/web", Instance: "web", Kind: wire.User, Status: wire.Applied}}, Health: []wire.Health{{Instance: "web", State: wire.Healthy, Since: start}},
		Kept: []wire.Kept{{Instance: "old", Path: "/data"}}, Warnings: []wire.Warning{{Code: "w", Severity: "info", Text: "w"}}}, false)
	_, err2 := s.IssueCertificate(ctx, by(), certificates.Certificate{Node: id, Instance: "web", Name: "web", Names: []string{"web.internal"},
		Request: []byte("r"), DER: []byte("c"), Serial: "def", IssuedAt: start, EndsAt: start.Add(2 * time.Hour)}, false)
	_, err3 := s.IssueCertificate(ctx, by(), certificates.Certificate{Node: id, Instance: "web", Name: "past", Names: []string{"web.internal"},
		Request: []byte("r"), DER: []byte("c"), Serial: "eee", IssuedAt: start.Add(-9000 * time.Hour), EndsAt: start.Add(-8000 * time.Hour)}, false)
	err4 := s.Seen(ctx, []store.Seen{{Speaker: speaker(t, s, id), At: start, Alive: wire.Alive{Run: "r", Machine: "m"}}})
	err5 := s.ApprovePlans(ctx, by(), map[appliance.NodeID]resolve.Plan{id: {Version: 1, Node: id}})
	if err := errors.Join(err, err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
}

// mentions are the tables with rows of a node, by their columns that hold node ids.
func mentions(t *testing.T, d *storetest.Database, id appliance.NodeID) (tables []string) {
	t.Helper()
	db := d.SQL(t)
	rows, err := db.Query(`SELECT table_name, column_name FROM information_schema.columns WHERE domain_name = 'node_id' ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var columns [][2]string
	for rows.Next() {
		var c [2]string
		if err := rows.Scan(&c[0], &c[1]); err != nil {
			t.Fatal(err)
		}
		columns = append(columns, c)
	}
	for _, c := range columns {
		var n int
		if err := db.QueryRow(fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s = '%s'`, c[0], c[1], id)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			tables = append(tables, c[0])
		}
	}
	return tables
}

// NODE-8, PKI-6: a removed node is gone from everything that is keyed by it, in one change that tells what it was; its name and address
// are free, its certificates revoked, its keys good for nothing but to hear of it, for 30 days.
func TestRemoveNode(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	if err := s.RegisterModule(t.Context(), by(), parse(t, web)); err != nil {
		t.Fatal(err)
	}
	c := certified(t, claim(t, newToken(t, s, 1), "n1"), 0xabc)
	c.Modules = []appliance.ModuleName{"web"}
	n, err := s.Enrol(t.Context(), by(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RegisterModule(t.Context(), by(), parse(t, `{"module": "bare"}`)); err != nil {
		t.Fatal(err)
	}
	if err := s.Assign(t.Context(), by(), resolve.Assignment{Module: "bare", Instance: "second", Node: n.Node}); err != nil {
		t.Fatal(err)
	}
	replacing := newToken(t, s, 1, func(k *store.Token) { k.Replaces = n.Node })
	lived(t, s, n.Node)
	if have := mentions(t, d, n.Node); len(have) < 17 {
		t.Errorf("it is only in %v", have)
	}

	_, err = s.RemoveNode(t.Context(), by(), g.Hub.ID)
	wantRefusal(t, err, appliance.Conflict, "")
	if !strings.Contains(appliance.AsError(err).Next, "mesh uninstall") {
		t.Errorf("the hub: %+v", err)
	}
	_, err = s.RemoveNode(t.Context(), by(), appliance.NewNodeID())
	wantRefusal(t, err, appliance.NotFound, "")

	removed := time.Now() // bus users are composed by the store's clock
	done, err := s.RemoveNode(t.Context(), store.By{Who: "ada", At: removed}, n.Node)
	if err != nil {
		t.Fatal(err)
	}
	want := store.RemovedNode{ID: n.Node, Name: "n1", Revoked: 2, Instances: []resolve.Assignment{{Instance: "second", Node: n.Node, Module: "bare"}, {Instance: "web", Node: n.Node, Module: "web"}}}
	if diff := cmp.Diff(want, done); diff != "" {
		t.Error(diff)
	}
	if have := mentions(t, d, n.Node); !slices.Equal(have, []string{"departed", "token"}) {
		t.Errorf("it is still in %v", have)
	}
	rows := changesOf(t, s, "ada")
	var was struct {
		Node      store.Node
		Instances []resolve.Assignment
	}
	if len(rows) != 1 || rows[0].Subject != "n1" || json.Unmarshal(rows[0].Before, &was) != nil || was.Node.Keys != c.Keys || len(was.Instances) != 2 {
		t.Errorf("audited %+v", rows)
	}
	wantSerials := func(now time.Time, want ...string) {
		t.Helper()
		if got, err := s.Revoked(t.Context(), now, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("revoked at %s: %v, %v", now, got, err)
		}
	}
	wantSerials(start, "def", "abc") // the one that ends last first; one had ended
	wantSerials(start.Add(time.Hour), "def")
	wantSerials(start.Add(2 * time.Hour))
	users, err := s.BusUsers(t.Context())
	if diff := cmp.Diff([]busauth.Departed{{Node: n.Node, Bus: c.Keys.Bus}}, users.Departed); err != nil || diff != "" || len(users.Nodes) != 1 {
		t.Errorf("%v, %d nodes (-want +got):\n%s", err, len(users.Nodes), diff)
	}

	_, err = s.Enrol(t.Context(), by(), claim(t, replacing, "n1"))
	wantRefusal(t, err, appliance.Denied, enrol.TokenRevoked)
	old := claim(t, newToken(t, s, 1), "n1")
	old.Keys = c.Keys
	_, err = s.Enrol(t.Context(), by(), old)
	wantRefusal(t, err, appliance.Conflict, enrol.KeyTaken)
	again := certifiedNode(t, s, "n1")
	if again.Address != n.Address || again.Node == n.Node {
		t.Errorf("another of the name: %+v, the first was %+v", again, n)
	}
	if err := s.RegisterModule(t.Context(), by(), parse(t, `{"module": "second"}`)); err != nil {
		t.Errorf("the instance's name is not free: %v", err)
	}

	for after, wantGone := range map[time.Duration]bool{store.DepartedLife - time.Minute: false, store.DepartedLife: true} {
		gone, err := s.Departed(t.Context(), removed.Add(after))
		if err != nil || (len(gone) == 0) != wantGone {
			t.Errorf("after %s there are %v, %v", after, gone, err)
		}
	}
	if any, err := s.Forget(t.Context(), removed.Add(store.DepartedLife)); err != nil || !any {
		t.Errorf("forgot: %t, %v", any, err)
	}
	if any, err := s.Forget(t.Context(), removed.Add(store.DepartedLife)); err != nil || any {
		t.Errorf("forgot once more: %t, %v", any, err)
	}
	if users, err := s.BusUsers(t.Context()); err != nil || len(users.Departed) > 0 {
		t.Errorf("still let in: %+v, %v", users.Departed, err)
	}
}

// NODE-8: whatever is keyed by a node, also what later migrations bring, goes with it.
func TestWhatIsKeyedByANodeGoesWithIt(t *testing.T) {
	rows, err := storetest.NewDatabase(t).SQL(t).Query(`SELECT conrelid::regclass::text, confdeltype FROM pg_constraint WHERE confrelid = 'node'::regclass`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	keys := 0
	for rows.Next() {
		var table, how string
		if err := rows.Scan(&table, &how); err != nil {
			t.Fatal(err)
		}
		if how != "c" {
			t.Errorf("%s: it would keep a node from being removed; let it be deleted with the node (ON DELETE CASCADE)", table)
		}
		keys++
	}
	if keys < 17 {
		t.Errorf("%d tables refer to nodes", keys)
	}
}

// NODE-4: a machine that joins with a token for a node's place is that node: id, name, address, assignments and plans stay; what the old
// machine held is revoked, and nothing it said is the new one's.
func TestReplaceNode(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	if err := s.RegisterModule(t.Context(), by(), parse(t, web)); err != nil {
		t.Fatal(err)
	}
	first := newToken(t, s, 1)
	c := certified(t, claim(t, first, "n1"), 0xabc)
	c.Modules = []appliance.ModuleName{"web"}
	n, err := s.Enrol(t.Context(), by(), c)
	if err != nil {
		t.Fatal(err)
	}
	lived(t, s, n.Node)
	_, err = s.Enrol(t.Context(), by(), claim(t, newToken(t, s, 1), "n1"))
	wantRefusal(t, err, appliance.Conflict, enrol.NameTaken)
	if next := appliance.AsError(err).Next; !strings.HasPrefix(next, "mesh node replace n1") {
		t.Errorf("the way out is %q", next)
	}
	err = s.CreateToken(t.Context(), by(), store.Token{ID: appliance.NewTokenID(), Replaces: g.Hub.ID, Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)})
	wantRefusal(t, err, appliance.Conflict, "")
	err = s.CreateToken(t.Context(), by(), store.Token{ID: appliance.NewTokenID(), Replaces: appliance.NewNodeID(), Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)})
	wantRefusal(t, err, appliance.NotFound, "")

	spare := newToken(t, s, 1, func(k *store.Token) { k.Replaces = n.Node })
	token := newToken(t, s, 1, func(k *store.Token) { k.Replaces = n.Node })
	_, err = s.Enrol(t.Context(), by(), claim(t, spare, "n1")) // one at a time
	wantRefusal(t, err, appliance.Denied, enrol.TokenRevoked)
	for what, spoil := range map[string]func(*wire.PublicKeys){
		"its own identity": func(k *wire.PublicKeys) { k.Identity = c.Keys.Identity }, "its own overlay key": func(k *wire.PublicKeys) { k.Overlay = c.Keys.Overlay },
		"its own bus key": func(k *wire.PublicKeys) { k.Bus = c.Keys.Bus }, "the hub's": func(k *wire.PublicKeys) { k.Sealing = g.Hub.Keys.Sealing },
	} {
		e := claim(t, token, "n1")
		spoil(&e.Keys)
		if _, err := s.Enrol(t.Context(), by(), e); appliance.KindOf(err) != appliance.Conflict {
			t.Errorf("in place of n1 with %s: %v", what, err)
		}
	}

	e := certified(t, claim(t, token, "whatever"), 0x123)
	e.State, e.Labels = "/srv/mesh", map[string]string{"room": "2"}
	e.Modules = []appliance.ModuleName{"web"} // it has that
	done, errs := race(t, s, []store.Enrolment{e, e, e})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, again := range done {
		if again.Node != n.Node || again.Name != "n1" || again.Address != n.Address || string(again.Certificate) != string(done[0].Certificate) || string(again.Certificate) == string(n.Certificate) {
			t.Errorf("enrolled %+v", again)
		}
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Fatal(nodes, err)
	}
	now := nodes[1]
	if now.Keys != e.Keys || now.State != "/srv/mesh" || now.Labels["room"] != "2" || !now.ConnectedAt.IsZero() || !now.LastSeen.IsZero() || now.Run+now.Machine != "" {
		t.Errorf("recorded %+v", now)
	}
	have := mentions(t, d, n.Node)
	if want := []string{"assignment", "declaration", "departed", "enrolment", "name", "node", "node_alive", "node_key", "overlay_address", "plan", "port", "report", "token"}; !slices.Equal(have, want) {
		t.Errorf("it is in (-want +got):\n%s", cmp.Diff(want, have))
	}
	states, err := s.NodeStates(t.Context())
	if err != nil || states[1].Reported != "" || states[1].Current() || states[1].Declared == "" {
		t.Errorf("%+v, %v", states[1], err)
	}
	old := speakerWith(t, n.Node, c.Keys.Identity) // whose words were under way
	_, err = s.RecordReport(t.Context(), old, 1<<62, start, wire.Report{About: &wire.About{Number: states[1].Sent, Digest: states[1].Declared}}, false)
	wantRefusal(t, err, appliance.Denied, "")
	_, err = s.LeaveNode(t.Context(), by(), old)
	wantRefusal(t, err, appliance.Denied, "")
	if err := s.Seen(t.Context(), []store.Seen{{Speaker: old, At: start}}); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Enrol(t.Context(), by(), e); err != nil || !again.Repeated { // it has not connected itself
		t.Errorf("the new machine asks once more: %+v, %v", again, err)
	}
	if recorded, err := s.RecordReport(t.Context(), speaker(t, s, n.Node), 1, start, wire.Report{About: &wire.About{Number: states[1].Sent, Digest: states[1].Declared}}, false); err != nil || !recorded {
		t.Errorf("the new machine's first report: %t, %v", recorded, err)
	}
	if got, err := s.Revoked(t.Context(), start, 10); err != nil || !slices.Equal(got, []string{"def", "abc"}) {
		t.Errorf("revoked: %v, %v", got, err)
	}
	gone, err := s.Departed(t.Context(), start)
	if err != nil || len(gone) != 1 || gone[0].Identity != c.Keys.Identity || gone[0].Node != n.Node {
		t.Errorf("departed: %+v, %v", gone, err)
	}
	_, err = s.Enrol(t.Context(), by(), c) // the old machine asks for its answer once more
	wantRefusal(t, err, appliance.Denied, enrol.TokenUsed)
	if rows := changesOf(t, s, "test"); rows[len(rows)-1].What != "node replace" {
		t.Errorf("audited %+v", rows[len(rows)-1])
	}

	// The one after the next, and then nobody.
	if _, err := s.Enrol(t.Context(), by(), certified(t, claim(t, newToken(t, s, 1, func(k *store.Token) { k.Replaces = n.Node }), ""), 0x456)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemoveNode(t.Context(), by(), n.Node); err != nil {
		t.Fatal(err)
	}
	if gone, err := s.Departed(t.Context(), start); err != nil || len(gone) != 3 {
		t.Errorf("departed: %+v, %v", gone, err)
	}
}

// NODE-8: reports, declarations and heartbeats under way keep no removal waiting for each other in a circle.
func TestRemoveNodeAmidReports(t *testing.T) {
	s, _ := founded(t)
	for range 10 {
		n := certifiedNode(t, s, "n1")
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				digest := appliance.DigestOf(fmt.Append(nil, i))
				_, err := s.RecordReport(t.Context(), speaker(t, s, n.Node), uint64(i+1), start, wire.Report{About: &wire.About{Number: appliance.Number{Epoch: 1, Counter: 1}, Digest: digest},
					Outcomes: []wire.Outcome{{ID: "x", Status: wire.Applied}}}, false)
				_, _, err1 := s.IssueDeclaration(t.Context(), n.Node, digest, 1, func(appliance.Number) ([]byte, error) { return []byte("e"), nil })
				err2 := s.Seen(t.Context(), []store.Seen{{Speaker: speaker(t, s, n.Node), At: start}})
				for _, err := range []error{err, err1, err2} {
					if err != nil && appliance.KindOf(err) != appliance.NotFound {
						t.Error(err)
					}
				}
			})
		}
		all.Go(func() {
			if _, err := s.RemoveNode(t.Context(), by(), n.Node); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
	}
}
