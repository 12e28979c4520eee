package appliancetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// members is the last membership, as every node reads it.
func members(t *testing.T, m *appliancetest.Mesh) wire.Membership {
	t.Helper()
	last, err := m.Store.LatestMembership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	doc, _, err := membership.Open(last.Envelope, m.ID, m.Hub.Believes().Signing)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// removed says why a node's machine does not know that it is none.
func removed(n *appliancetest.Node) string {
	at, err := agent.Removed(n.Dir)
	if err != nil {
		return err.Error()
	}
	if at.IsZero() {
		return "it does not know"
	}
	return ""
}

// stopped says what of app still runs on a node, or is gone that should stay.
func stopped(n *appliancetest.Node) string {
	machine := n.Machine.String()
	switch {
	case strings.Contains(machine, "systemctl"), strings.Contains(machine, "ip address"), strings.Contains(machine, "/etc/hosts"):
		return "still there:\n" + machine
	case !strings.Contains(machine, "modules/app/data"), !strings.Contains(machine, "useradd"):
		return "gone:\n" + machine
	}
	return ""
}

// NODE-8, PKI-6: removed, a node is out at once, whether its machine is there or not; when it comes back it is told so, stops its modules
// and its overlay, and keeps its data. Restarted it stays so.
func TestNodeRemoved(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	register(m, "one")
	assign(m, "n1")
	assign(m, "n2")
	m.Push()
	m.Current()
	if err := m.Call(operators.NodeRemove, operators.RemoveNode{Node: "hub"}, nil); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(appliance.AsError(err).Next, "mesh uninstall") {
		t.Errorf("the hub: %v", err)
	}
	if err := m.Call(operators.NodeRemove, operators.RemoveNode{Node: "n9"}, nil); appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("no node: %v", err)
	}

	n1.Stop() // it is away
	var done operators.RemovedNode
	m.Must(operators.NodeRemove, operators.RemoveNode{Node: "n1"}, &done)
	if d := cmp.Diff(operators.RemovedNode{Node: "n1", ID: n1.ID, Instances: []appliance.InstanceName{"app", "mesh-network"}, Revoked: 1, Knows: []string{}}, done); d != "" {
		t.Error(d)
	}
	doc := members(t, m) // already
	if slices.ContainsFunc(doc.Members, func(n wire.Member) bool { return n.ID == n1.ID }) || len(doc.Members) != 2 || len(doc.Revoked) != 1 {
		t.Errorf("membership %+v", doc)
	}
	m.Wait("the others have let go of it", func() string {
		for _, n := range []*appliancetest.Node{m.Hub, n2} {
			if o := n.Machine.Overlay(); len(o.Hosts) != 2 || len(m.Hub.Machine.Overlay().Peers) != 1 {
				return fmt.Sprintf("%s knows %v", n.Name, o.Hosts)
			}
		}
		return ""
	})
	m.Current()

	n1.Start()
	m.Wait("it is told", func() string { return removed(n1) })
	m.Wait("it has stopped", func() string { return stopped(n1) })
	n1.Restart()
	n1.Machine.Steps()
	m.StopController()
	m.StartController() // that knows of it from the records
	link := n1.Connect()
	if link.Status().Endpoint == "" {
		t.Error("its machine is not let in")
	}
	if steps := n1.Machine.Steps(); len(steps) > 0 {
		t.Errorf("restarted it does %v", steps)
	}

	// One that is there is cut off at once.
	m.Must(operators.NodeRemove, operators.RemoveNode{Node: "n2"}, nil)
	m.Wait("it is told", func() string { return removed(n2) })
	m.Wait("it has stopped", func() string { return stopped(n2) })
	if n := len(m.Status().Nodes); n != 1 {
		t.Errorf("%d nodes in the status", n)
	}
}

// NODE-8: a node that says it leaves is removed; so is nobody in its name, and never the hub.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	n.Stop()
	other := m.AddNode("n2")
	other.Stop()
	link, hub := n.Connect(), m.Hub.Connect()
	forged := must(wire.Seal(wire.Header{Kind: wire.KindReport, Version: wire.Version, Mesh: m.ID, From: string(n.ID), To: string(m.ID), Sequence: 99, Time: time.Now()},
		must(wire.Encode(wire.Report{Version: 1, Facts: &wire.Facts{Leaving: true}}))(t), other.Keys.Identity))(t)
	stored(t, m, link, wire.ReportSubject(n.ID), forged)
	if err := agent.SayLeaving(t.Context(), m.Hub.Believes(), m.Hub.Keys.Identity, m.Hub.Dir, hub.PublishStored); err != nil {
		t.Error(err)
	}
	m.Wait("both are set aside", func() string {
		if n := len(m.DeadLetters()); n != 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	if len(m.Status().Nodes) != 3 {
		t.Errorf("nodes %+v", m.Status().Nodes)
	}
	if err := agent.SayLeaving(t.Context(), n.Believes(), n.Keys.Identity, n.Dir, link.PublishStored); err != nil {
		t.Error(err)
	}
	m.Wait("it is gone", func() string {
		if names := m.Status().Nodes; len(names) != 2 {
			return fmt.Sprintf("%d nodes", len(names))
		}
		return ""
	})
	var audit []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{Limit: 1}, &audit)
	if a := audit[0]; a.What != "node remove" || a.Subject != "n1" || a.Who != wire.NodeUser(n.ID) {
		t.Errorf("audited %+v", a)
	}
}

// NODE-4: a machine that joins with a token for a node's place is that node, with its modules; the one before, when it comes back, is told
// so and stops, and the new one is not concerned.
func TestNodeReplaced(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	old := m.AddNode("n1")
	register(m, "one")
	assign(m, "n1")
	m.Push()
	m.Current()
	before, address := m.Node("n1"), old.Machine.Overlay().Address.String()
	if err := m.Call(operators.NodeReplace, operators.ReplaceNode{Node: "hub"}, nil); appliance.KindOf(err) != appliance.Conflict || appliance.AsError(err).Hint == "" {
		t.Errorf("the hub: %v", err)
	}
	_, err := m.Join(t.Context(), m.Token(1), "n1", newKeys(t))
	if !appliance.IsReason(err, enrol.NameTaken) || !strings.Contains(appliance.AsError(err).Next, "mesh node replace n1") {
		t.Errorf("under the same name: %v", err)
	}

	var made operators.CreatedToken
	m.Must(operators.NodeReplace, operators.ReplaceNode{Node: "n1"}, &made)
	var tokens []operators.Token
	m.Must(operators.TokenList, struct{}{}, &tokens)
	if i := slices.IndexFunc(tokens, func(k operators.Token) bool { return k.ID == made.ID }); i < 0 || !tokens[i].Replaces || tokens[i].Name != "n1" {
		t.Errorf("listed %+v", tokens)
	}
	m.Current() // the old one is a node until then
	old.Stop()
	fresh, err := m.Join(t.Context(), must(enrol.Parse(made.Token))(t), "whatever", newKeys(t))
	if err != nil {
		t.Fatal(err)
	}
	if fresh.ID != old.ID {
		t.Errorf("it is %s, not %s", fresh.ID, old.ID)
	}
	fresh.Name = "n1"
	fresh.Start()
	m.Current()
	after := m.Node("n1")
	if after.ID != before.ID || after.Declared != before.Declared || after.Number != before.Number {
		t.Errorf("it was %+v, is %+v", before, after)
	}
	if machine := fresh.Machine.String(); !strings.Contains(machine, "systemctl start app-web") || !strings.Contains(machine, address) {
		t.Errorf("the new machine:\n%s", machine)
	}
	m.Wait("the membership names the new machine", func() string {
		if doc := members(t, m); len(doc.Members) != 2 || doc.Members[1].Key != fresh.Keys.Public().Overlay || len(doc.Revoked) != 1 {
			return fmt.Sprintf("%+v", doc)
		}
		return ""
	})

	old.Start()
	m.Wait("the old machine is told", func() string { return removed(old) })
	m.Wait("it has stopped", func() string { return stopped(old) })
	register(m, "two")
	m.Push()
	m.Current()
	if removed(fresh) == "" || len(m.Node("n1").Warnings) > 0 || m.Node("n1").Clone {
		t.Errorf("the new one is concerned: %+v", m.Node("n1"))
	}
	m.StopController()
	m.StartController()
	m.Current()
}

// NODE-8, SAFE-2: a machine that was replaced and says more than anybody would hear is let in no more, so that its successor is heard. What
// it says need not be signed by anybody.
func TestReplacedMachineFloods(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	old := m.AddNode("n1")
	old.Stop()
	var made operators.CreatedToken
	m.Must(operators.NodeReplace, operators.ReplaceNode{Node: "n1"}, &made)
	fresh := must(m.Join(t.Context(), must(enrol.Parse(made.Token))(t), "n1", newKeys(t)))(t)
	link, successor := old.Connect(), fresh.Connect()
	heard, noise := alive(t, m, fresh, "heard", 1), []byte("noise")
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	go func() {
		for {
			select {
			case <-over:
				return
			default:
				link.Publish(wire.AliveSubject(old.ID), noise) // refused once it is shut out
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	m.Wait("the successor is heard beside it", func() string {
		if err := successor.Publish(wire.AliveSubject(fresh.ID), heard); err != nil {
			t.Fatal(err)
		}
		for _, known := range must(m.Store.Nodes(t.Context()))(t) {
			if known.ID == fresh.ID && known.Run != "heard" {
				return "the last recorded is " + known.Run
			}
		}
		if m.Log.Count("shut out who is a node no more") == 0 {
			return "the old machine is not shut out"
		}
		return ""
	})
	_, err := m.Join(t.Context(), m.Token(1), "n2", old.Keys)
	if !appliance.IsReason(err, enrol.KeyTaken) {
		t.Errorf("its keys: %v", err)
	}
}
