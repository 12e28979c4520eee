package appliancetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// daemon registers a module of one process and assigns it to nodes.
func daemon(m *appliancetest.Mesh, name, value string, nodes ...appliance.NodeName) {
	manifest := fmt.Sprintf(`{"module": %q, "privileged": [{"user": "root", "reason": "the machine of a test knows no other"}], "resources": [
		{"kind": "file", "path": "${dir}/conf", "content": %q}, {"kind": "process", "name": "main", "user": "root", "command": ["run"]}]}`, name, value)
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(manifest)}, nil)
	for _, n := range nodes {
		m.Must(operators.ModuleAssign, operators.AssignModule{Module: appliance.ModuleName(name), Node: n}, nil)
	}
}

// instanceStatus is an instance in the status of its node.
func instanceStatus(m *appliancetest.Mesh, node appliance.NodeName, name appliance.InstanceName) operators.InstanceStatus {
	for _, i := range m.Node(node).Instances {
		if i.Name == name {
			return i
		}
	}
	return operators.InstanceStatus{}
}

// states are the processes of a machine.
func states(n *appliancetest.Node, ids ...string) (out []string) {
	for _, id := range ids {
		out = append(out, n.Machine.Running(id+"/process/main").State)
	}
	return out
}

// intended is what operators and what follows from them have in the records; what machines say goes on changing.
func intended(t *testing.T, m *appliancetest.Mesh) map[string]string {
	out := map[string]string{}
	for table, rows := range records(t, m) {
		if slices.Contains([]string{"assignment", "audit", "declaration", "node", "plan", "request_nonce", "setting"}, table) {
			out[table] = rows
		}
	}
	return out
}

func wantStates(t *testing.T, n *appliancetest.Node, ids string, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, states(n, strings.Fields(ids)...)); d != "" {
		t.Errorf("%s on %s: %s", ids, n.Name, d)
	}
}

// OPS-1, DEC-1, DEC-7: stopping an instance takes effect at once, where it was asked for, and sends nothing else that is recorded; it is
// intent, is shown, makes the node no worse, and ends with a start.
func TestStopAndStart(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	daemon(m, "one", "a", "n1", "n2")
	daemon(m, "two", "a", "n1")
	m.Push()
	m.Current()
	daemon(m, "one", "b")         // recorded by a colleague, and not pushed
	daemon(m, "three", "a", "n1") // likewise
	unpushed := m.Node("n1").Unpushed

	var done operators.Switched
	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "one", Node: "n1"}, &done)
	if d := cmp.Diff([]operators.SwitchedModule{{Name: "one", Node: "n1", Stopped: true}}, done.Instances); d != "" || len(done.Nodes) != 1 || !done.Nodes[0].Sent {
		t.Errorf("stopped: %+v %s", done.Nodes, d)
	}
	m.Current() // a stopped instance is no fault
	wantStates(t, n1, "one two three", "stopped", "running", "missing")
	wantStates(t, n2, "one", "running")
	if e, _ := n1.Machine.Path("/var/lib/mesh/modules/one/conf"); e.Content != "a" {
		t.Errorf("what a colleague recorded was sent: %q", e.Content)
	}
	m.Wait("it is shown as stopped", func() string {
		i := instanceStatus(m, "n1", "one")
		if !i.Stopped || i.Health != wire.Stopped || i.Why != "stopped by an operator" {
			return fmt.Sprintf("%+v", i)
		}
		return ""
	})
	if n := m.Node("n1"); n.Health != wire.Healthy || n.Unpushed != unpushed {
		t.Errorf("health %s, unpushed %d, before %d", n.Health, n.Unpushed, unpushed)
	}
	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "one", Node: "n1"}, &done)
	if len(done.Instances) > 0 || done.Nodes[0].Sent {
		t.Errorf("stopped twice: %+v", done)
	}
	n1.Restart() // nor does the agent's start begin it
	m.Push()     // nor a push, which is of what is recorded
	m.Current()
	wantStates(t, n1, "one two three", "stopped", "running", "running")

	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "one"}, &done)
	if len(done.Nodes) != 2 || len(done.Instances) != 1 || done.Instances[0].Node != "n2" {
		t.Errorf("everywhere: %+v", done)
	}
	m.Current()
	wantStates(t, n2, "one", "stopped")
	m.Must(operators.ModuleStart, operators.SwitchModule{Instance: "one"}, &done)
	if len(done.Instances) != 2 || done.Instances[0].Stopped {
		t.Errorf("started: %+v", done)
	}
	m.Current()
	wantStates(t, n1, "one", "running")
	wantStates(t, n2, "one", "running")

	daemon(m, "four", "a", "n2") // recorded only: it stops before it ever ran
	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "four"}, &done)
	if len(done.Nodes) > 0 {
		t.Errorf("not pushed, and yet: %+v", done)
	}
	m.Push()
	m.Current()
	wantStates(t, n2, "four", "stopped")

	before := intended(t, m)
	for what, ask := range map[string]operators.SwitchModule{"instance": {Instance: "on"}, "elsewhere": {Instance: "two", Node: "n2"}, "node": {Instance: "one", Node: "n9"}, "base": {Instance: "mesh-network"}} {
		for _, verb := range []operators.Verb{operators.ModuleStop, operators.ModuleStart, operators.ModuleRestart} {
			err := m.Call(verb, ask, nil)
			if kind := appliance.KindOf(err); kind != appliance.NotFound && !(what == "base" && kind == appliance.Conflict) || appliance.AsError(err).Next+appliance.AsError(err).Hint == "" {
				t.Errorf("%s of no %s: %v", verb, what, err)
			}
		}
	}
	if err := m.Call(operators.ModuleRestart, operators.SwitchModule{Instance: "four"}, nil); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("restart of what is stopped: %v", err)
	}
	sameRecords(t, "a refusal", before, intended(t, m))
}

// OPS-1: a restart is told to the nodes that have the instance, is done once, and shows in the instance's health.
func TestRestart(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	daemon(m, "one", "a", "n1", "n2")
	m.Push()
	m.Current()
	restart := func(node appliance.NodeName, nodes ...*appliancetest.Node) {
		t.Helper()
		for _, n := range []*appliancetest.Node{n1, n2} {
			n.Machine.Commands()
		}
		var asked operators.Restarted
		m.Must(operators.ModuleRestart, operators.SwitchModule{Instance: "one", Node: node}, &asked)
		if len(asked.Instances) != len(nodes) {
			t.Errorf("asked %+v", asked)
		}
		m.Wait("it is restarted and healthy", func() string {
			_, bad, waiting := asked.Settled(m.Status())
			return strings.Join(slices.Concat(bad, waiting), "; ")
		})
		for _, n := range []*appliancetest.Node{n1, n2} {
			var want []string
			if slices.Contains(nodes, n) {
				want = []string{"systemctl restart one-main"}
			}
			if d := cmp.Diff(want, n.Machine.Commands()); d != "" {
				t.Errorf("on %s: %s", n.Name, d)
			}
		}
	}
	restart("n1", n1)
	restart("", n1, n2)
	restart("n2", n2)
	var rows []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{Limit: 1}, &rows)
	if rows[0].What != "module restart" || rows[0].Subject != "one" {
		t.Errorf("audited %+v", rows[0])
	}
}

// OPS-3, DEC-1: a held node hears and reports, and changes nothing until it is resumed; what is pushed meanwhile waits there and is said to.
func TestHold(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1 := m.AddNode("n1")
	daemon(m, "one", "a", "n1")
	m.Push()
	m.Current()
	daemon(m, "two", "a", "n1") // a colleague's, not pushed
	unpushed := m.Node("n1").Unpushed
	var done operators.Switched
	m.Must(operators.NodeHold, operators.HoldNode{Node: "n1"}, &done)
	if len(done.Nodes) != 1 || !done.Nodes[0].Held || !done.Nodes[0].Sent {
		t.Errorf("held: %+v", done)
	}
	m.Current()
	if n := m.Node("n1"); !n.Held || !n.HeldUntil.IsZero() || n.Unpushed != unpushed {
		t.Errorf("%+v", n)
	}
	n1.Machine.Commands()
	for _, p := range m.Push().Nodes {
		if p.Held != (p.Node == "n1") || p.Sent != (p.Node == "n1") {
			t.Errorf("pushed %+v", p)
		}
	}
	m.Wait("it waits", func() string {
		n := m.Node("n1")
		if !n.Current || n.Outcome != "waiting" || n.Health != wire.Healthy || n.Unpushed != 0 {
			return fmt.Sprintf("%+v", n)
		}
		return ""
	})
	if _, _, waiting := m.Status().Settled("n1"); len(waiting) != 1 || !strings.Contains(waiting[0], "it is held") {
		t.Errorf("who waits is told %q", waiting)
	}
	m.AddNode("n2") // memberships go on
	m.Wait("it knows the new node", func() string { return count(len(n1.Machine.Overlay().Hosts), 3) })
	if c := slices.DeleteFunc(n1.Machine.Commands(), func(s string) bool { return strings.Contains(s, "hosts") || strings.HasPrefix(s, "wg ") }); len(c) > 0 {
		t.Errorf("held, and yet: %q", c)
	}
	n1.Restart()
	m.Must(operators.NodeResume, operators.ResumeNode{Node: "n1"}, &done)
	m.Current()
	wantStates(t, n1, "one two", "running", "running")
	if n := m.Node("n1"); n.Held {
		t.Errorf("%+v", n)
	}
	if err := m.Call(operators.NodeHold, operators.HoldNode{Node: "n9"}, nil); appliance.KindOf(err) != appliance.NotFound {
		t.Error(err)
	}
}

// OPS-3, SAFE-5: a hold with an end ends by itself, also where that comes while the controller is away.
func TestHoldEnds(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1 := m.AddNode("n1")
	ends := func() {
		t.Helper()
		m.Wait("the hold ends", func() string {
			if n := m.Node("n1"); n.Held || n.Outcome != "clean" {
				return fmt.Sprintf("held until %s, %s", n.HeldUntil, n.Outcome)
			}
			return ""
		})
		m.Current()
	}
	m.Must(operators.NodeHold, operators.HoldNode{Node: "n1", For: 2 * time.Second}, nil)
	if n := m.Node("n1"); !n.Held || n.HeldUntil.IsZero() {
		t.Errorf("%+v", n)
	}
	daemon(m, "one", "a", "n1")
	m.Push()
	ends()
	wantStates(t, n1, "one", "running")

	m.Must(operators.NodeHold, operators.HoldNode{Node: "n1", For: time.Second}, nil)
	daemon(m, "two", "a", "n1")
	m.Push()
	m.StopController()
	m.Wait("its time is over", func() string {
		if h := must(m.Store.Holds(t.Context()))(t); len(h) != 1 || h[0].Left > 0 {
			return fmt.Sprintf("%+v", h)
		}
		return ""
	})
	wantStates(t, n1, "two", "missing")
	m.StartController()
	ends()
	wantStates(t, n1, "two", "running")
}

// OPS-3, DEC-1: drained, a node runs only what the mesh stands on; what stops is named, the last first; what is assigned meanwhile does
// not run either; resumed, everything runs that nobody had stopped.
func TestDrain(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	for _, name := range []string{"one", "two", "three"} {
		daemon(m, name, "a", "n1", "n2")
	}
	m.Push()
	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "two", Node: "n1"}, nil)
	m.Current()
	n1.Machine.Commands()
	daemon(m, "one", "b") // a colleague's, not pushed
	var done operators.Switched
	m.Must(operators.NodeDrain, operators.DrainNode{Node: "n1"}, &done)
	if d := cmp.Diff([]operators.SwitchedModule{{Name: "three", Node: "n1", Stopped: true}, {Name: "one", Node: "n1", Stopped: true}}, done.Instances); d != "" {
		t.Error(d)
	}
	m.Current()
	if d := cmp.Diff([]string{"systemctl stop three-main", "systemctl stop one-main"}, n1.Machine.Commands()); d != "" {
		t.Error(d)
	}
	wantStates(t, n2, "one two three", "running", "running", "running")
	if n := m.Node("n1"); !n.Drained || n.Health != wire.Healthy || n.Unpushed == 0 {
		t.Errorf("%+v", n)
	}
	daemon(m, "four", "a", "n1")
	m.Push("n1")
	m.Current()
	wantStates(t, n1, "one two three four", "stopped", "stopped", "stopped", "stopped")
	m.Must(operators.NodeResume, operators.ResumeNode{Node: "n1"}, &done)
	if len(done.Instances) != 3 || done.Instances[0].Stopped {
		t.Errorf("resumed: %+v", done)
	}
	m.Current()
	wantStates(t, n1, "one two three four", "running", "stopped", "running", "running")
	if n := m.Node("n1"); n.Drained {
		t.Errorf("%+v", n)
	}
}
