package appliancetest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
)

// BenchmarkPush: how long an operator waits for a push's answer, and how long after the declaration was numbered its report is recorded; one
// node on a fake host, whose state folder and broker sync as they do for real. Target for push to report: p99 at most 10 ms.
func BenchmarkPush(b *testing.B) {
	m := appliancetest.New(b)
	n := m.AddNode("n1")
	records := m.Database.SQL(b)
	register := func(i int) {
		manifest := fmt.Sprintf(`{"module": "measured", "description": "one file", "resources": [{"kind": "file", "path": "${dir}/file", "content": "%d\n"}]}`, i)
		m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: json.RawMessage(manifest)}, nil)
	}
	register(0)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "measured", Node: "n1"}, nil)
	var answered, reported []time.Duration
	for i := range b.N {
		register(i + 1)
		begun := time.Now()
		var p operators.Pushed
		m.Must(operators.PlanPush, operators.Scope{Nodes: []appliance.NodeName{"n1"}}, &p)
		answered = append(answered, time.Since(begun))
		for digest := ""; digest != string(p.Nodes[0].Digest); {
			if err := records.QueryRow(`SELECT digest FROM report WHERE node = $1`, n.ID).Scan(&digest); err != nil {
				b.Fatal(err)
			}
		}
		seen := time.Now()
		var issued time.Time
		if err := records.QueryRow(`SELECT issued_at FROM declaration WHERE node = $1 AND digest = $2`, n.ID, p.Nodes[0].Digest).Scan(&issued); err != nil {
			b.Fatal(err)
		}
		reported = append(reported, seen.Sub(issued))
	}
	for name, d := range map[string][]time.Duration{"answered": answered, "push-to-report": reported} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, "ms/"+name+"-p50")
		b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, "ms/"+name+"-p99")
	}
}
