package appliancetest_test

import (
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
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
		time.Sleep(30 * time.Millisecond) // slower than compositions
	}
	settled(t, m, n, "run")
	if issued := number() - before; issued == 0 || issued > 4 {
		t.Errorf("%d declarations in 3 s", issued)
	}
}
