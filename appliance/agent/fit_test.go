package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2, DEC-5: whatever programs and errors say, a report is one that the controller takes, and what went wrong stays in it.
func TestReportFits(t *testing.T) {
	about := &wire.About{Number: appliance.Number{Epoch: 1, Counter: 1}, Digest: appliance.DigestOf(nil)}
	outcomes := func(n int, status wire.Status, text string) (list []wire.Outcome) {
		for i := range n {
			list = append(list, wire.Outcome{ID: fmt.Sprint("instance/file/some/where/", i), Instance: "instance", Kind: wire.File, Status: status, Error: text, Step: "do"})
		}
		return list
	}
	failed := func(text string, log ...string) wire.Outcome {
		return wire.Outcome{ID: "the/failed/one", Status: wire.Failed, Error: text, Log: log}
	}
	for name, r := range map[string]wire.Report{
		"small":            {Outcomes: []wire.Outcome{failed("short")}},
		"a long error":     {Outcomes: []wire.Outcome{failed(strings.Repeat("x", 100_000))}},
		"a long drift":     {Outcomes: []wire.Outcome{{ID: "the/failed/one", Status: wire.Applied, Drift: strings.Repeat("\xff", 100_000)}}},
		"not UTF-8":        {Outcomes: []wire.Outcome{failed(strings.Repeat("\xff\xfe", 3000), strings.Repeat("\x80", 5000))}},
		"runes on the cut": {Outcomes: []wire.Outcome{failed(strings.Repeat("é", 5000)), failed("x" + strings.Repeat("世", 5000))}},
		"control bytes":    {Outcomes: []wire.Outcome{failed(strings.Repeat("\x00\x1b", 3000), strings.Repeat("\x01", 9000))}},
		"a long log":       {Outcomes: []wire.Outcome{failed("x", strings.Split(strings.Repeat("line\n", 1000), "\n")...)}},
		"many failures":    {Outcomes: append(outcomes(400, wire.Failed, strings.Repeat("y", 5000)), failed("x"))},
		"many things":      {Outcomes: append(outcomes(9_999, wire.Unchanged, ""), failed("x"))},
		"too many things":  {Outcomes: append(outcomes(20_000, wire.Applied, ""), failed("x"))},
		"too many, long":   {Outcomes: append(outcomes(11_000, wire.Applied, strings.Repeat("\x01", 300)), failed("x"))},
		"many healths": {Outcomes: []wire.Outcome{failed("x")}, Health: func() (list []wire.Health) {
			for i := range 300 {
				list = append(list, wire.Health{Instance: appliance.InstanceName(fmt.Sprint("i", i)), State: wire.Looping, Why: strings.Repeat("w", 9000), Log: []string{strings.Repeat("l", 9000)}})
			}
			return list
		}()},
		"much kept": {Outcomes: []wire.Outcome{failed("x")}, Kept: func() (list []wire.Kept) {
			for i := range 11_000 {
				list = append(list, wire.Kept{Instance: "i", Path: fmt.Sprint("/", strings.Repeat("p", 200), i)})
			}
			return list
		}()},
		"many warnings": {Outcomes: []wire.Outcome{failed("x")}, Warnings: []wire.Warning{{Code: "a", Severity: "error", Text: strings.Repeat("w", 99_000)}}},
	} {
		r.Version, r.About = wire.Version, about
		cut, err := fit(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := wire.Encode(cut)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > wire.MaxEnvelope-8<<10 {
			t.Errorf("%s: %d bytes", name, len(body))
		}
		read, err := wire.ParseReport(body)
		if err != nil {
			t.Errorf("%s: the controller says: %v", name, err)
			continue
		}
		found, said := false, false
		for _, o := range read.Outcomes {
			found = found || o.ID == "the/failed/one"
		}
		for _, w := range read.Warnings {
			said = said || w.Code == "report-cut"
		}
		if !found {
			t.Errorf("%s: the failure is not in it", name)
		}
		if whole := len(read.Outcomes) == len(r.Outcomes) && len(read.Health) == len(r.Health) && len(read.Kept) == len(r.Kept); !whole && !said {
			t.Errorf("%s: %d of %d outcomes, and no word that something is left out", name, len(read.Outcomes), len(r.Outcomes))
		}
	}
}
