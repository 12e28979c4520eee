package appliancetest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2, UPG-3: a node that says with every alive that it understands another version has no declaration made, recorded and signed for each.
func TestNodeThatKeepsChangingItsVersion(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	n.Stop()
	l := n.Connect()
	number := func() uint64 { return must(appliance.ParseNumber(m.Node(n.Name).Number))(t).Counter }
	before := number()
	can := n.Machine.Host().Capabilities()
	for i := range uint64(100) {
		can.Wire = int(i % 2)
		if err := l.Publish(wire.AliveSubject(n.ID), say(t, m, n, wire.KindAlive, i+1, wire.Alive{Run: "run", Capabilities: can})); err != nil {
			t.Fatal(err)
		}
		if i == 0 { // that it is heeded shows once; a later change may be taken back before it is composed for
			m.Wait("a declaration for the other version", func() string {
				if number() == before {
					return "none yet"
				}
				return ""
			})
		}
		time.Sleep(10 * time.Millisecond)
	}
	settled(t, m, n, "run")
	if issued := number() - before; issued > 4 {
		t.Errorf("%d declarations", issued)
	}
}

// SAFE-2, DEC-7: the largest report that a node can make leaves the mesh's status to be asked for.
func TestLargestReportLeavesStatus(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n, other := m.AddNode("n1"), m.AddNode("n2")
	n.Stop()
	report := account(t, m, n)
	for room := wire.MaxEnvelope; room > 0; {
		room = wire.MaxEnvelope - 1000 - len(must(wire.Encode(report))(t)) // the rest is the envelope's, and the outcome's around its text
		report.Outcomes = append(report.Outcomes, wire.Outcome{ID: "a", Instance: "a", Kind: wire.User, Status: wire.Failed, Error: strings.Repeat("<", max(min(room, wire.MaxText), 0))})
	}
	stored(t, m, n.Connect(), wire.ReportSubject(n.ID), say(t, m, n, wire.KindReport, sequence(t, n)+1, report))
	m.Wait("the report is recorded, and status answers", func() string {
		var s operators.Status
		if err := m.Call(operators.StatusShow, struct{}{}, &s); err != nil {
			t.Fatal(err)
		}
		for _, node := range s.Nodes {
			if node.Name == n.Name && len(node.Failures) == 0 {
				return "no failure is shown"
			}
			if node.Name == other.Name && !node.Current {
				return "the other node is not current"
			}
		}
		return ""
	})
}
