package appliancetest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
)

// conf is the content of a daemon's file on a machine.
func conf(n *appliancetest.Node, name string) string {
	e, _ := n.Machine.Path("/var/lib/mesh/modules/" + name + "/conf")
	return e.Content
}

// wayBack asks what a rollback would do.
func wayBack(m *appliancetest.Mesh, ask operators.Rollback) (r operators.RolledBack, err error) {
	err = m.Call(operators.PlanRollback, ask, &r)
	return r, err
}

// rollback does what it was shown to do.
func rollback(t *testing.T, m *appliancetest.Mesh, ask operators.Rollback) operators.RolledBack {
	t.Helper()
	shown, err := wayBack(m, ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(shown.Nodes) > 0 {
		t.Fatalf("shown only, and yet done: %+v", shown.Nodes)
	}
	ask.Steps = shown.Steps
	done, err := wayBack(m, ask)
	if err != nil {
		t.Fatal(err)
	}
	m.Current()
	return done
}

// DEC-9, DEC-1, DEC-2: a node goes back to what was approved before, and a module on every node to its earlier version, with today's facts;
// intent stays as it is recorded, and the difference is shown. What is stopped stays so, and what runs of others is untouched.
func TestRollback(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	daemon(m, "one", "a", "n1", "n2")
	daemon(m, "two", "a", "n1")
	m.Push()
	m.Current()
	daemon(m, "one", "b")
	daemon(m, "two", "b")
	m.Push()
	m.Current()
	m.Must(operators.ModuleStop, operators.SwitchModule{Instance: "two"}, nil) // plans of which only this differs are none to go back to
	m.Current()
	want := func(one1, two1, one2 string) {
		t.Helper()
		if got := []string{conf(n1, "one"), conf(n1, "two"), conf(n2, "one")}; !slices.Equal(got, []string{one1, two1, one2}) {
			t.Errorf("the machines have %q, want %q", got, []string{one1, two1, one2})
		}
		wantStates(t, n1, "one two", "running", "stopped")
	}
	want("b", "b", "b")

	shown, err := wayBack(m, operators.Rollback{Name: "n1"})
	if err != nil || len(shown.Steps) != 1 || shown.Steps[0].Node != "n1" || !slices.ContainsFunc(shown.Steps[0].Changes, func(c operators.Change) bool { return c.Resource == "file/conf" }) {
		t.Fatalf("%+v, %v", shown, err)
	}
	want("b", "b", "b")
	done := rollback(t, m, operators.Rollback{Name: "n1"})
	if len(done.Nodes) != 1 || !done.Nodes[0].Sent {
		t.Errorf("%+v", done.Nodes)
	}
	want("a", "a", "b")
	var plan operators.Plan
	m.Must(operators.PlanShow, operators.Scope{}, &plan)
	if len(plan.Nodes) != 1 || plan.Nodes[0].Node != "n1" {
		t.Errorf("the difference to what is recorded: %+v", plan.Nodes)
	}
	m.Push()
	m.Current()
	want("b", "b", "b")

	done = rollback(t, m, operators.Rollback{Name: "one"})
	if len(done.Nodes) != 2 {
		t.Errorf("%+v", done.Nodes)
	}
	want("a", "b", "a")
	done = rollback(t, m, operators.Rollback{Name: "one"}) // and forth again
	want("b", "b", "b")

	var history operators.PlanHistory
	m.Must(operators.PlanList, operators.ListPlans{Node: "n1"}, &history)
	numbers := ""
	for _, p := range history.Plans {
		numbers += fmt.Sprintf("%d:%d ", p.Number, len(p.Changes))
		if p.Present != (p.Number == history.Plans[0].Number) || p.By == "" || p.At.IsZero() {
			t.Errorf("%+v", p)
		}
	}
	// The network's; one and two; both anew; two stopped; back; forth; one back; forth. Each changed one is a manifest and its file.
	if numbers != "8:2 7:2 6:4 5:4 4:1 3:4 2:6 1:2 " {
		t.Errorf("plans and what they changed: %s", numbers)
	}
	rollback(t, m, operators.Rollback{Name: "n1", To: 2})
	want("a", "a", "b")
	rollback(t, m, operators.Rollback{Name: "n1", To: 1})
	wantStates(t, n1, "one two", "missing", "missing")

	before := intended(t, m)
	for what, ask := range map[string]operators.Rollback{"name": {Name: "on"}, "number": {Name: "n1", To: 99}, "a module's number": {Name: "one", To: 2}, "the present one": {Name: "n1", To: 10}, "the same": {Name: "n1", To: 1}} {
		if _, err := wayBack(m, ask); err == nil || appliance.AsError(err).Next == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := wayBack(m, operators.Rollback{Name: "n1", Steps: shown.Steps}); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("as it was shown long ago: %v", err)
	}
	for limit, good := range map[int]bool{-1: false, 1: true, 100: true, 101: false} {
		if err := m.Call(operators.PlanList, operators.ListPlans{Node: "n1", Limit: limit}, &history); (err == nil) != good || good && len(history.Plans) != min(limit, 10) {
			t.Errorf("%d of history: %v, %d", limit, err, len(history.Plans))
		}
	}
	if after := intended(t, m); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Error("a refusal changed the records")
	}
}

// DEC-9: what a module says cannot be taken back, and what the artifact store does not have any more, is refused by name; a held node is
// told, and waits.
func TestRollbackRefused(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	m.AddNode("n1")
	for _, content := range []string{"one", "two"} {
		m.Must(operators.ModuleRegister, withTree("app", pushFiles(t, m, "app", "tree", content).Digest), nil)
		if content == "one" {
			m.Must(operators.ModuleAssign, operators.AssignModule{Module: "app", Node: "n1"}, nil)
		}
		m.Push()
		m.Current()
	}
	if _, err := wayBack(m, operators.Rollback{Name: "app"}); err != nil {
		t.Errorf("while it is there: %v", err)
	}
	must(m.Artifacts.Collect(func(appliance.Digest) bool { return false }))(t)
	for _, name := range []string{"app", "n1"} {
		if _, err := wayBack(m, operators.Rollback{Name: name}); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "app/tree") {
			t.Errorf("%s, whose artifact is gone: %v", name, err)
		}
	}

	daemon(m, "db", "a", "n1")
	m.Push()
	m.Current()
	final := strings.Replace(`{"module": "db", "upgrade": {"rollback": "none"}, "privileged": [{"user": "root", "reason": "the machine of a test knows no other"}],
		"resources": [{"kind": "file", "path": "${dir}/conf", "content": "b"}, {"kind": "process", "name": "main", "user": "root", "command": ["run"]}]}`, "\n", "", -1)
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(final)}, nil)
	m.Push()
	m.Current()
	if _, err := wayBack(m, operators.Rollback{Name: "db"}); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "db on n1") {
		t.Errorf("what cannot be taken back: %v", err)
	}

	daemon(m, "one", "a", "n1")
	m.Push()
	m.Current()
	m.Must(operators.NodeHold, operators.HoldNode{Node: "n1"}, nil)
	daemon(m, "one", "b")
	m.Push()
	ask := operators.Rollback{Name: "one"}
	shown, err := wayBack(m, ask)
	if err != nil {
		t.Fatal(err)
	}
	ask.Steps = shown.Steps
	if done, err := wayBack(m, ask); err != nil || !done.Nodes[0].Held {
		t.Errorf("%+v, %v", done, err)
	}
	if n := m.Node("n1"); !n.Held {
		t.Error("it is held no more")
	}
}
