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
)

// MOD-14: what a module may do on its nodes is shown with its reason where it is registered, listed, and about to come.
func TestPrivilegesAreShown(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	manifest := []byte(`{"module": "app", "privileged": [{"user": "root", "reason": "it mounts file systems"}, {"path": "/etc/app", "reason": "others look for it there"}],
		"resources": [{"kind": "file", "path": "/etc/app/conf", "content": "x"}, {"kind": "process", "name": "main", "user": "root", "command": ["run"]}]}`)
	want := []operators.Privilege{{What: "user root", Reason: "it mounts file systems"}, {What: "path /etc/app", Reason: "others look for it there"}}
	same := func(where string, got []operators.Privilege) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", where, d)
		}
	}
	var registered operators.Registered
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: manifest}, &registered)
	same("registered", registered.Privileged)
	var shown operators.Module
	m.Must(operators.ModuleShow, operators.ShowModule{Module: "app"}, &shown)
	same("shown", shown.Privileged)
	var listed []operators.Module
	m.Must(operators.ModuleList, struct{}{}, &listed)
	for _, l := range listed {
		if l.Name == "app" {
			same("listed", l.Privileged)
		}
		if l.Base != (l.Name != "app") {
			t.Errorf("%s is a base module: %v", l.Name, l.Base)
		}
	}
	assign(m, "hub")
	for i := range want {
		want[i].Instance = "app"
	}
	var plan operators.Plan
	m.Must(operators.PlanShow, operators.Scope{}, &plan)
	same("about to come", plan.Nodes[0].Privileged)
	m.Push()
	m.Must(operators.PlanShow, operators.Scope{}, &plan)
	if len(plan.Nodes) > 0 {
		t.Errorf("pushed, and yet %+v", plan.Nodes)
	}
}

// A module registered anew says where that waits for a push, so that the next command is the right one.
func TestRegisteredAnew(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	register := func(content string, want ...appliance.NodeName) {
		t.Helper()
		manifest := fmt.Appendf(nil, `{"module": "app", "resources": [{"kind": "file", "path": "${dir}/conf", "content": %q}]}`, content)
		var registered operators.Registered
		m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: manifest}, &registered)
		if !slices.Equal(want, registered.Nodes) {
			t.Errorf("content %s waits for a push on %s, not %s", content, registered.Nodes, want)
		}
	}
	register("x")
	assign(m, "hub")
	m.Push()
	register("y", "hub")
	register("x")
}

// MOD-7: a module that is assigned is not forgotten; by force its instances leave with the next push, and are named.
func TestRemoveModule(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1 := m.AddNode("n1")
	daemon(m, "one", "a", "n1")
	m.Push()
	m.Current()
	if err := m.Call(operators.ModuleRemove, operators.RemoveModule{Module: "one"}, nil); appliance.KindOf(err) != appliance.Conflict || appliance.AsError(err).Next == "" {
		t.Errorf("while it is assigned: %v", err)
	}
	want := operators.RemovedModule{Module: "one", Broken: []operators.ModuleUse{{Instance: "one", Node: "n1"}}, Nodes: []appliance.NodeName{}}
	var got operators.RemovedModule
	m.Must(operators.ModuleRemove, operators.RemoveModule{Module: "one", Force: true, Show: true}, &got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("shown: %s", d)
	}
	m.Must(operators.ModuleShow, operators.ShowModule{Module: "one"}, nil)
	want.Nodes = []appliance.NodeName{"n1"}
	m.Must(operators.ModuleRemove, operators.RemoveModule{Module: "one", Force: true}, &got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("removed: %s", d)
	}
	wantStates(t, n1, "one", "running")
	m.Push()
	m.Current()
	wantStates(t, n1, "one", "missing")
	if err := m.Call(operators.ModuleShow, operators.ShowModule{Module: "one"}, nil); appliance.KindOf(err) != appliance.NotFound {
		t.Error(err)
	}
	rollback(t, m, operators.Rollback{Name: "n1"}) // DEC-9: what was approved can be approved again, whatever became of the intent
	wantStates(t, n1, "one", "running")
}

// DEC-1, SAFE-1, SAFE-2: what is too long for one declaration is refused before it is approved, and keeps nobody else from theirs.
func TestPushTooLong(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	m.AddNode("n1")
	manifest := fmt.Sprintf(`{"module": "app", "resources": [{"kind": "file", "path": "${dir}/file", "content": %q}]}`, strings.Repeat("x", 100<<10))
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(manifest)}, nil)
	for i := range 12 {
		m.Must(operators.ModuleAssign, operators.AssignModule{Module: "app", Node: "n1", As: appliance.InstanceName(fmt.Sprintf("app%d", i))}, nil)
	}
	assign(m, "hub")
	before := m.Node("n1")
	if err := m.Call(operators.PlanPush, operators.Scope{}, nil); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "n1") || !strings.Contains(err.Error(), "at most") {
		t.Errorf("too long: %v", err)
	}
	m.Current()
	if n := m.Node("n1"); n.Number != before.Number || n.Unpushed != before.Unpushed {
		t.Errorf("n1 is at %s with %d changes, was at %s with %d", n.Number, n.Unpushed, before.Number, before.Unpushed)
	}
	if n := m.Node("hub"); n.Unpushed != 0 {
		t.Errorf("the hub has %d changes", n.Unpushed)
	}
}
