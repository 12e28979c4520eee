package appliancetest_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
)

// MOD-10: data stays when its instance leaves, is listed with size and age, and goes when an operator purges it, which is refused while it
// is in use; it is audited, and what others keep stays.
func TestPurge(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	register(m, "one")
	assign(m, "n1")
	assign(m, "n2")
	m.Push()
	m.Current()
	const data = "/var/lib/mesh/modules/app/data"
	for _, n := range []*appliancetest.Node{n1, n2} {
		n.Machine.Put(data+"/rows", hosttest.Entry{Owner: "app", Group: "app", Mode: "0600", Content: "12345"})
	}
	ask := operators.PurgeData{Instance: "app", Node: "n1"}
	refused := func(kind appliance.Kind, why string) {
		t.Helper()
		if err := m.Call(operators.ModulePurge, ask, nil); appliance.KindOf(err) != kind || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %s", err, why)
		}
	}
	refused(appliance.Conflict, "assigned there")
	for _, node := range []appliance.NodeName{"n1", "n2"} {
		m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "app", Node: node}, nil)
	}
	refused(appliance.Conflict, "not pushed yet")
	m.Push()
	m.Current()
	for _, node := range []appliance.NodeName{"n1", "n2"} {
		kept := m.Node(node).Kept
		if len(kept) != 1 || kept[0].Path != "/var/lib/mesh/modules/app" || kept[0].Bytes != 5 || time.Since(kept[0].Since) > time.Minute {
			t.Errorf("%s keeps %+v", node, kept)
		}
	}
	ask.Instance = "other"
	refused(appliance.NotFound, "keeps no data")
	ask = operators.PurgeData{Instance: "app", Node: "n9"}
	refused(appliance.NotFound, "n9")

	ask.Node = "n1"
	var done operators.Purged
	m.Must(operators.ModulePurge, ask, &done)
	if len(done.Data) != 1 || done.Data[0].Bytes != 5 {
		t.Errorf("asked to remove %+v", done)
	}
	m.Wait("the data is gone", func() string {
		good, bad, waiting := ask.Settled(m.Status())
		if good {
			return ""
		}
		return strings.Join(append(bad, waiting...), "; ")
	})
	if c := n1.Machine.String(); strings.Contains(c, "app") {
		t.Errorf("left on n1:\n%s", c)
	}
	if _, ok := n2.Machine.Path(data + "/rows"); !ok || len(m.Node("n2").Kept) != 1 {
		t.Error("the data on n2 went with it")
	}
	var audited []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{}, &audited)
	if !slices.ContainsFunc(audited, func(e operators.AuditEntry) bool {
		return e.What == "module purge" && e.Subject == "app@"+string(n1.ID) && e.Who != ""
	}) {
		t.Errorf("not audited: %+v", audited[0])
	}
	refused(appliance.NotFound, "keeps no data")
	assign(m, "n1")
	m.Push("n1")
	m.Current("n1")
}
