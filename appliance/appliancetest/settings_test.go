package appliancetest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
)

const site = `{
  "module": "site", "settings": {"title": {"default": "Ours", "description": "Shown on the front page"}, "note": {"default": "", "description": "Anything"}},
  "resources": [{"kind": "file", "path": "${dir}/page", "content": "${setting:title}\n"}]
}`

const page = "/var/lib/mesh/modules/site/page"

// MOD-11, DEC-1, DEC-2: a chosen value is recorded and reaches the nodes it is for with the next push of that module, and none before.
func TestSettings(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(site)}, nil)
	for _, n := range []appliance.NodeName{"n1", "n2"} {
		m.Must(operators.ModuleAssign, operators.AssignModule{Module: "site", Node: n}, nil)
	}
	m.Push()
	m.Current()
	set := func(node appliance.NodeName, value string, want ...appliance.NodeName) {
		t.Helper()
		var done operators.Recorded
		m.Must(operators.SettingSet, operators.SetSetting{Module: "site", Node: node, Name: "title", Value: value}, &done)
		if d := cmp.Diff(want, done.Nodes); d != "" {
			t.Errorf("to be pushed: %s", d)
		}
	}
	pages := func(want1, want2 string) {
		t.Helper()
		a, _ := n1.Machine.Path(page)
		b, _ := n2.Machine.Path(page)
		if a.Content != want1+"\n" || b.Content != want2+"\n" {
			t.Errorf("pages %q and %q, want %q and %q", a.Content, b.Content, want1, want2)
		}
	}
	pages("Ours", "Ours")
	set("", "Theirs", "n1", "n2")
	set("n2", "Mine", "n1", "n2")
	pages("Ours", "Ours")
	var plan operators.Plan
	m.Must(operators.PlanShow, operators.Scope{Nodes: []appliance.NodeName{"n2"}}, &plan)
	if c := plan.Nodes[0].Changes; len(c) != 1 || c[0].Resource != "setting/title" || c[0].Detail != "Ours to Mine" || c[0].By != "operator admin" {
		t.Errorf("plan %+v", c)
	}
	register(m, "one")
	assign(m, "n1") // a colleague's, which a push of site leaves alone
	var done operators.Pushed
	m.Must(operators.PlanPush, operators.Scope{Only: "site"}, &done)
	if len(done.Nodes) != 2 {
		t.Errorf("pushed to %+v", done.Nodes)
	}
	m.Current()
	pages("Theirs", "Mine")
	if n := m.Node("n1").Unpushed; n == 0 {
		t.Error("the colleague's change was pushed, too")
	}

	list := func(node appliance.NodeName, want ...operators.Setting) {
		t.Helper()
		var got []operators.Setting
		m.Must(operators.SettingList, operators.ListSettings{Module: "site", Node: node}, &got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("settings of site@%s: %s", node, d)
		}
	}
	note := operators.Setting{Name: "note", From: "default", Description: "Anything"}
	title := func(node appliance.NodeName, value, from string) operators.Setting {
		return operators.Setting{Name: "title", Node: node, Value: value, From: from, Description: "Shown on the front page"}
	}
	list("", note, title("", "Theirs", "mesh"), title("n2", "Mine", "node"))
	list("n1", note, title("", "Theirs", "mesh"))
	list("n2", note, title("", "Mine", "node"))
	m.Must(operators.SettingUnset, operators.UnsetSetting{Module: "site", Node: "n2", Name: "title"}, nil)
	list("n2", note, title("", "Theirs", "mesh"))

	long := strings.Repeat("x", resolve.MaxSetting)
	m.Must(operators.SettingSet, operators.SetSetting{Module: "site", Name: "note", Value: long}, nil)
	var got []operators.Setting
	m.Must(operators.SettingList, operators.ListSettings{Module: "site"}, &got)
	if got[0].Value != long || got[0].Cut {
		t.Errorf("%d bytes, cut %v", len(got[0].Value), got[0].Cut)
	}
	for what, ask := range map[string]operators.SetSetting{"module": {Module: "sit", Name: "title"}, "name": {Module: "site", Name: "titel"}, "node": {Module: "site", Node: "n9", Name: "title"}} {
		if err := m.Call(operators.SettingSet, ask, nil); appliance.KindOf(err) != appliance.NotFound {
			t.Errorf("unknown %s: %v", what, err)
		}
	}
}
