package appliancetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

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

	before := records(t, m)
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
	sameRecords(t, "a refusal", before, records(t, m))
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
