package appliancetest_test

import (
	"crypto/ed25519"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// DEC-6, DEC-7: asked by an operator, the nodes named look at once; what was changed by hand is as it was, and shown until the next
// declaration.
func TestCheck(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n, other := m.AddNode("n1"), m.AddNode("n2")
	register(m, "one")
	assign(m, "n1")
	assign(m, "n2")
	m.Push()
	m.Current()
	const path = "/var/lib/mesh/modules/app/conf"
	loosen := func(n *appliancetest.Node) {
		e, ok := n.Machine.Path(path)
		if !ok {
			t.Fatalf("no %s on %s:\n%s", path, n.Name, n.Machine)
		}
		e.Mode = "0666"
		n.Machine.Put(path, e)
	}
	check := func(nodes ...appliance.NodeName) (done operators.Checked) {
		m.Must(operators.NodeCheck, operators.CheckNodes{Nodes: nodes}, &done)
		return done
	}
	shown := func(name appliance.NodeName, want ...operators.Drift) {
		t.Helper()
		m.Wait(string(name)+" tells its drift", func() string {
			return cmp.Diff(append([]operators.Drift{}, want...), append([]operators.Drift{}, m.Node(name).Drift...))
		})
	}
	mode := operators.Drift{ID: "app/file/conf", What: "mode 0666, want 0640", Repaired: true}
	process := operators.Drift{ID: "app/process/web", What: "missing, want running", Repaired: true}

	loosen(n)
	loosen(other)
	if d := cmp.Diff([]appliance.NodeName{"n1"}, check("n1").Nodes); d != "" {
		t.Error("asked:\n" + d)
	}
	shown("n1", mode)
	if e, _ := n.Machine.Path(path); e.Mode != "0640" {
		t.Errorf("n1: it is %+v", e)
	}
	if e, _ := other.Machine.Path(path); e.Mode != "0666" {
		t.Errorf("n2 was not asked, and yet it is %+v", e)
	}
	n.Machine.SetRunning("app/process/web", host.Running{State: "missing"})
	if d := cmp.Diff([]appliance.NodeName{"hub", "n1", "n2"}, check().Nodes); d != "" {
		t.Error("asked:\n" + d)
	}
	shown("n1", mode, process)
	shown("n2", mode)
	shown("hub")
	m.Current()
	if err := m.Call(operators.NodeCheck, operators.CheckNodes{Nodes: []appliance.NodeName{"n1", "n9"}}, nil); appliance.KindOf(err) != appliance.NotFound || !strings.Contains(err.Error(), "n9") {
		t.Errorf("of a node that is none: %v", err)
	}
	register(m, "two")
	m.Push("n1")
	m.Current("n1")
	shown("n1")
	shown("n2", mode)
}

// DEC-6, SAFE-1, SAFE-2: nobody but the mesh has a node look, and a notice has it look once.
func TestForgedNotices(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	m := v.mesh
	others := map[string]ed25519.PrivateKey{"the node itself": v.Keys.Identity, "the hub's node": m.Hub.Keys.Identity, "an operator": m.Admin.SigningKey()}
	seal := func(at time.Time) []byte {
		return must(wire.Seal(wire.Header{Kind: wire.KindNotice, Version: wire.Version, Mesh: m.ID, From: string(m.ID), To: string(v.ID), Time: at},
			must(wire.Encode(wire.Notice{Version: wire.Version, Check: true}))(t), m.Keys.Signing))(t)
	}
	looked := func() (n int) {
		for _, s := range v.Machine.Steps() {
			if s == "observe app/file/conf" {
				n++
			}
		}
		return n
	}
	looked()
	good := takeApart(t, seal(time.Now()), m.Keys.Signing)
	forged := append(forgeries(t, good, others), forgery{"for everybody", good.with("to", wire.Everybody).sealed()}, forgery{"for another", good.with("to", string(m.Hub.ID)).sealed()},
		forgery{"of yesterday", seal(time.Now().Add(-24 * time.Hour))}, forgery{"of tomorrow", seal(time.Now().Add(24 * time.Hour))},
		forgery{"version 99", good.with("version", 99).sealed()}, forgery{"asks nothing", good.saying([]byte(`{"version":1}`)).sealed()})
	v.play(t, wire.NoticeSubject(v.ID), forged)
	if n := looked(); n != 0 {
		t.Errorf("it looked %d times", n)
	}
	t.Logf("%d forged notices", len(forged))

	now := seal(time.Now())
	if err := v.impostor.Publish(wire.NoticeSubject(v.ID), now); err != nil {
		t.Fatal(err)
	}
	m.Wait("it looks", func() string { return count(looked(), 1) })
	again := forgery{"again", now}
	v.play(t, wire.NoticeSubject(v.ID), slices.Repeat([]forgery{again}, 5))
	if n := looked(); n != 0 {
		t.Errorf("played again, it looked %d times", n)
	}
	if said := m.Log.Count("refused", "part=n1", "a later one was heard already"); said != 5 {
		t.Errorf("%d of 5 replays were known as such", said)
	}
}
