package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// sent is a report as the controller hears it.
type sent struct {
	sequence   uint64
	report     wire.Report
	superseded bool
}

func about(counter uint64) *wire.About {
	return &wire.About{Number: appliance.Number{Epoch: 1, Counter: counter}, Digest: appliance.DigestOf(fmt.Append(nil, counter))}
}

func binds(numbers ...uint16) *wire.Facts {
	carried := []wire.CarriedPort{}
	for _, n := range numbers {
		carried = append(carried, wire.CarriedPort{Port: n, Protocol: "tcp", Part: "broker"})
	}
	return &wire.Facts{Carried: &carried}
}

// said are the reports of one node's life: accounts, facts, both; one superseded.
func said() []sent {
	warn := func(code string) []wire.Warning {
		return []wire.Warning{{Code: code, Severity: "warning", Text: "text", Remedy: "remedy"}}
	}
	return []sent{
		{1, wire.Report{About: about(1), Facts: binds(4222), Warnings: warn("one"), Outcomes: []wire.Outcome{
			{ID: "web/user/web", Instance: "web", Kind: wire.User, Status: wire.Applied}, {ID: "web/file/a", Instance: "web", Kind: wire.File, Status: wire.Refused, Step: "do", Error: "no"}}}, false},
		{2, wire.Report{About: about(2), Outcomes: []wire.Outcome{
			{ID: "web/file/a", Instance: "web", Kind: wire.File, Status: wire.Failed, Step: "do", Error: "disk\x00full", Log: []string{"a", "b\x00"}}}}, false},
		{3, wire.Report{Facts: binds(4222, 4223)}, false},
		{4, wire.Report{About: about(1), Facts: binds(), Warnings: warn("four")}, true},
		{5, wire.Report{About: about(3), Kept: []wire.Kept{{Instance: "old", Path: "/data/old", Bytes: 1 << 40, Since: start}, {Instance: "old", Path: "/data/older", Bytes: -1}},
			Health:   []wire.Health{{Instance: "web", State: wire.Looping, Since: start, Why: "exit 1", Log: []string{"x"}}},
			Outcomes: []wire.Outcome{{ID: "web/user/web", Instance: "web", Kind: wire.User, Status: wire.Applied, Step: "drift", Drift: "home \x00/, want /home"}}}, false}, // DEC-6
		{6, wire.Report{Facts: &wire.Facts{}, Warnings: warn("six")}, false},
	}
}

// expect is what must be recorded of reports, whatever the order they came in: of each part the youngest that states it.
func expect(all []sent) (state store.NodeState, carried []ports.Bound) {
	var account, facts, warnings uint64
	for _, s := range all {
		if r := s.report; r.About != nil && !s.superseded && s.sequence > account {
			account = s.sequence
			state.About, state.Reported, state.Outcome, state.ReportedAt = r.About.Number, r.About.Digest, store.Outcome(r.Outcomes), start.Add(time.Duration(s.sequence)*time.Second)
			state.Outcomes, state.Health, state.Kept = r.Outcomes, r.Health, r.Kept
		}
		if s.report.Facts != nil && s.report.Facts.Carried != nil && s.sequence > facts {
			facts, carried = s.sequence, nil
			for _, c := range *s.report.Facts.Carried {
				carried = append(carried, ports.Bound{Number: c.Port, Protocol: c.Protocol, Holder: "the " + c.Part + " (carried)"})
			}
		}
		if s.sequence > warnings {
			warnings, state.Warnings = s.sequence, s.report.Warnings
		}
	}
	return state, carried
}

// nul is what becomes of the character PostgreSQL cannot hold.
var nul = cmp.Transformer("nul", func(s string) string {
	out := []rune{}
	for _, r := range s {
		if r == 0 {
			r = '\uFFFD'
		}
		out = append(out, r)
	}
	return string(out)
})

func wantReported(t *testing.T, s *store.Store, node appliance.NodeID, all []sent) {
	t.Helper()
	states, err1 := s.NodeStates(t.Context())
	intent, err2 := s.Intent(t.Context())
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	want, carried := expect(all)
	for _, got := range states {
		if got.Node != node {
			continue
		}
		want.Node, want.Name, want.Mode, want.Address, want.Says = got.Node, got.Name, "converged", got.Address, got.Says
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), addresses, cmp.FilterValues(func(a, b string) bool { return a != b }, nul)); diff != "" {
			t.Errorf("order %v: %s", order(all), diff)
		}
	}
	if diff := cmp.Diff(carried, intent.Carried[node], cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("order %v: carried %s", order(all), diff)
	}
}

func reportOf(numbers ...uint16) wire.Report { return wire.Report{Facts: binds(numbers...)} }

func order(all []sent) (sequences []uint64) {
	for _, s := range all {
		sequences = append(sequences, s.sequence)
	}
	return sequences
}

func record(t *testing.T, s *store.Store, node appliance.NodeID, r sent) (bool, error) {
	return s.RecordReport(t.Context(), speaker(t, s, node), r.sequence, start.Add(time.Duration(r.sequence)*time.Second), r.report, r.superseded)
}

// BUS-13: in whatever order reports come, also twice, also at once, an older one never overwrites a younger, and a superseded account
// still gives its facts.
func TestReportsInAnyOrder(t *testing.T) {
	s, _ := founded(t)
	random := rand.New(rand.NewPCG(1, 2))
	for trial := range 60 {
		node := enrolledNode(t, s, fmt.Sprintf("n%d", trial)).Node
		all := said()
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:1+random.IntN(len(all))]
		all = append(all, all[random.IntN(len(all))]) // one comes twice
		if trial%4 == 3 {
			errs := make([]error, len(all))
			var together sync.WaitGroup
			for i, r := range all {
				together.Go(func() { _, errs[i] = record(t, s, node, r) })
			}
			together.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		} else {
			for _, r := range all {
				if _, err := record(t, s, node, r); err != nil {
					t.Fatal(err)
				}
			}
		}
		wantReported(t, s, node, all)
		again, err := record(t, s, node, all[0])
		if err != nil || again {
			t.Errorf("order %v: the first of them again was recorded: %t %v", order(all), again, err)
		}
	}
}

// BUS-13, NODE-6, DEC-7, SAFE-1: a report that says nothing, one of nobody and one out of range are refused; current needs the digest last sent.
func TestReportRefusedAndCurrent(t *testing.T) {
	s, g := founded(t)
	_, err := s.RecordReport(t.Context(), speaker(t, s, g.Hub.ID), 1, start, wire.Report{Warnings: []wire.Warning{{Code: "x"}}}, false)
	wantRefusal(t, err, appliance.Invalid, "")
	_, err = s.RecordReport(t.Context(), speaker(t, s, appliance.NewNodeID()), 1, start, wire.Report{About: about(1)}, false)
	wantRefusal(t, err, appliance.NotFound, "")
	for _, sequence := range []uint64{0, 1 << 63} {
		_, err = s.RecordReport(t.Context(), speaker(t, s, g.Hub.ID), sequence, start, wire.Report{About: about(1)}, false)
		wantRefusal(t, err, appliance.Invalid, "")
	}
	bad := wire.Report{About: about(1), Outcomes: []wire.Outcome{{ID: "a", Status: "fine"}}}
	_, err = s.RecordReport(t.Context(), speaker(t, s, g.Hub.ID), 1, start, bad, false)
	wantRefusal(t, err, appliance.Invalid, "")
	wantReported(t, s, enrolledNode(t, s, "n2").Node, nil)

	current := func() bool {
		states, err := s.NodeStates(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return states[0].Current()
	}
	if current() {
		t.Error("a node that was sent nothing is current")
	}
	number, _, err := s.IssueDeclaration(t.Context(), g.Hub.ID, about(1).Digest, 1, sealed)
	if err != nil || current() {
		t.Errorf("a node that reported nothing is current, or %v", err)
	}
	if _, err := record(t, s, g.Hub.ID, sent{1, wire.Report{About: &wire.About{Number: number, Digest: about(1).Digest}}, false}); err != nil || !current() {
		t.Errorf("a node that reported what was sent is not current, or %v", err)
	}
	if _, _, err := s.IssueDeclaration(t.Context(), g.Hub.ID, about(2).Digest, 1, sealed); err != nil || current() {
		t.Errorf("a node that was sent something new is current, or %v", err)
	}
}

// NODE-6: heartbeats move last_seen, and first contact and capabilities once, and touch nothing else; nobody's are passed over.
func TestSeen(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2").Node
	if _, err := record(t, s, second, said()[0]); err != nil {
		t.Fatal(err)
	}
	states, err := s.NodeStates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	alive := wire.Alive{Run: "r\x00", Machine: "m", Capabilities: capabilities()}
	newer := alive
	newer.Capabilities.Binary = "v1.1.0"
	at := func(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }
	for _, batch := range [][]store.Seen{
		nil,
		{{Speaker: speaker(t, s, second), At: at(1), Alive: alive}, {Speaker: speaker(t, s, appliance.NewNodeID()), At: at(1), Alive: alive}},
		{{Speaker: speaker(t, s, second), At: at(2), Alive: alive}, {Speaker: speaker(t, s, g.Hub.ID), At: at(2), Alive: alive}, {Speaker: speaker(t, s, second), At: at(3), Alive: newer}},
	} {
		if err := s.Seen(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	want := append([]store.Node{}, nodes...)
	want[0].LastSeen, want[0].ConnectedAt, want[0].Run, want[0].Machine = at(2), at(2), "r\uFFFD", "m"
	want[1].LastSeen, want[1].ConnectedAt, want[1].Run, want[1].Machine = at(3), at(1), "r\uFFFD", "m"
	want[1].Capabilities.Binary = "v1.1.0"
	got, err := s.Nodes(t.Context())
	if diff := cmp.Diff(want, got, addresses); err != nil || diff != "" {
		t.Error(err, diff)
	}
	states[0].LastSeen, states[1].LastSeen, states[1].Says.Binary = at(2), at(3), "v1.1.0"
	after, err := s.NodeStates(t.Context())
	if diff := cmp.Diff(states, after, addresses); err != nil || diff != "" {
		t.Error(err, diff)
	}
	// A clock that jumped ahead and came back does not hold last_seen where it was (SAFE-5).
	for _, minutes := range []int{500000, 4} {
		if err := s.Seen(t.Context(), []store.Seen{{Speaker: speaker(t, s, second), At: at(minutes), Alive: newer}}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err = s.Nodes(t.Context()); err != nil || !got[1].LastSeen.Equal(at(4)) {
		t.Errorf("last seen %v: %v", got[1].LastSeen, err)
	}
}
