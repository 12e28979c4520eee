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

// BenchmarkPush: what one push costs the controller, and when its report is recorded; one node on a fake host.
func BenchmarkPush(b *testing.B) {
	m := appliancetest.New(b)
	m.AddNode("n1")
	register := func(i int) {
		manifest := fmt.Sprintf(`{"module": "measured", "description": "one file", "resources": [{"kind": "file", "path": "${dir}/file", "content": "%d\n"}]}`, i)
		m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: json.RawMessage(manifest)}, nil)
	}
	register(0)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "measured", Node: "n1"}, nil)
	var answered, current, status []time.Duration
	for i := range b.N {
		register(i + 1)
		begun := time.Now()
		m.Must(operators.PlanPush, operators.Scope{Nodes: []appliance.NodeName{"n1"}}, nil)
		answered = append(answered, time.Since(begun))
		for {
			asked := time.Now()
			s := m.Status()
			status = append(status, time.Since(asked))
			if good, _, _ := s.Settled("n1"); good {
				break
			}
		}
		current = append(current, time.Since(begun))
	}
	for name, d := range map[string][]time.Duration{"answered": answered, "current": current, "status": status} {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, "ms/"+name+"-p50")
		b.ReportMetric(float64(d[len(d)*99/100].Microseconds())/1000, "ms/"+name+"-p99")
	}
}
