package appliancetest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
)

// NODE-7, DEC-6: a machine that was adopted keeps what was there before, and says what that is; drift of what the mesh made is told before it
// is put right. Converging is refused, by name, while something would be cut off, and makes the node as declared by force.
func TestAdopted(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1 := m.Adopt("n1")
	const path = "/etc/one.conf"
	mine := hosttest.Entry{Owner: "root", Group: "root", Mode: "0666", Content: "mine"}
	n1.Machine.Put(path, mine)
	n1.Start()
	m.Current("n1")
	if n := m.Node("n1"); n.Mode != "adopted" {
		t.Errorf("%+v", n)
	}
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(`{"module": "one", "privileged": [{"user": "root", "reason": "the machine of a test knows no other"},
		{"path": "/etc/one.conf", "reason": "where others look for it"}], "resources": [{"kind": "file", "path": "/etc/one.conf", "content": "a"}, {"kind": "process", "name": "main", "user": "root", "command": ["run"]}]}`)}, nil)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "one", Node: "n1"}, nil)
	daemon(m, "two", "a", "n1")
	m.Push()
	m.Wait("it tells what it found", func() string {
		n := m.Node("n1")
		if f := n.Found(); !n.Current || len(f) != 1 || f[0].ID != "one/file//etc/one.conf" {
			return fmt.Sprintf("%+v", n.Failures)
		}
		return ""
	})
	if e, _ := n1.Machine.Path(path); e != mine {
		t.Errorf("overwritten: %+v", e)
	}
	wantStates(t, n1, "one two", "missing", "running")

	const made = "/var/lib/mesh/modules/two/conf"
	e, _ := n1.Machine.Path(made)
	e.Mode = "0600"
	n1.Machine.Put(made, e)
	check := func(drift operators.Drift, mode string) {
		t.Helper()
		m.Must(operators.NodeCheck, operators.CheckNodes{Nodes: []appliance.NodeName{"n1"}}, nil)
		m.Wait("it tells drift", func() string { return cmp.Diff([]operators.Drift{drift}, m.Node("n1").Drift) })
		if e, _ := n1.Machine.Path(made); e.Mode != mode {
			t.Errorf("mode %s, want %s", e.Mode, mode)
		}
	}
	check(operators.Drift{ID: "two/file/conf", What: "mode 0600, want 0640"}, "0600")
	check(operators.Drift{ID: "two/file/conf", What: "mode 0600, want 0640", Repaired: true}, "0640")

	err := m.Call(operators.NodeConverge, operators.ConvergeNode{Node: "n1"}, nil)
	if appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "one/file//etc/one.conf") || appliance.AsError(err).Hint == "" {
		t.Errorf("something would be cut off: %v", err)
	}
	n1.Stop()
	daemon(m, "three", "a", "n1")
	m.Push()
	if err := m.Call(operators.NodeConverge, operators.ConvergeNode{Node: "n1"}, nil); appliance.KindOf(err) != appliance.NotReady {
		t.Errorf("what would be cut off is not known: %v", err)
	}
	n1.Start()
	m.Wait("it has accounted for that", func() string {
		if n := m.Node("n1"); !n.Current {
			return n.Number
		}
		return ""
	})
	var done operators.Switched
	m.Must(operators.NodeConverge, operators.ConvergeNode{Node: "n1", Force: true}, &done)
	if len(done.Nodes) != 1 || !done.Nodes[0].Sent {
		t.Errorf("%+v", done)
	}
	m.Current()
	if e, _ := n1.Machine.Path(path); e.Content != "a" {
		t.Errorf("converged, it is %+v", e)
	}
	wantStates(t, n1, "one two three", "running", "running", "running")
	if n := m.Node("n1"); n.Mode != "converged" {
		t.Errorf("%+v", n)
	}
	m.Must(operators.NodeConverge, operators.ConvergeNode{Node: "n1"}, &done) // is
	m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "one", Node: "n1"}, nil)
	m.Push()
	m.Current()
	if e, _ := n1.Machine.Path(path); e != mine {
		t.Errorf("not given back: %+v", e)
	}
}
