package agent

import (
	"slices"
	"strings"

	"github.com/novox/mesh/appliance/wire"
)

// Bounds of one report. The controller sets aside what goes beyond its own, and a report set aside leaves the node not current for ever.
const (
	maxText   = 4000
	shortText = 200
	maxReport = wire.MaxEnvelope - 16<<10
)

// fit cuts a report to what the controller takes. Every text is cut to its bound; where the whole is still too long, the logs go first,
// then what is said of things unchanged, then long texts, then the ends of lists. A warning says that something was left out.
func fit(r wire.Report) (wire.Report, error) {
	r.Outcomes, r.Health = slices.Clone(r.Outcomes), slices.Clone(r.Health)
	r.Warnings, r.Kept = slices.Clone(r.Warnings), slices.Clone(r.Kept)
	cutTexts(&r, maxText, wire.MaxLines)
	for i, shorten := range []func(){
		func() { cutTexts(&r, maxText, 0) },
		func() {
			r.Outcomes = slices.DeleteFunc(r.Outcomes, func(o wire.Outcome) bool { return o.Status == wire.Unchanged })
		},
		func() { cutLists(&r, wire.MaxEntries-1) },
		func() { cutTexts(&r, shortText, 0) },
		func() { cutLists(&r, 1000) },
		func() { cutLists(&r, 50) },
	} {
		body, err := wire.Encode(r)
		if err != nil {
			return r, err
		}
		if len(body) <= maxReport && max(len(r.Outcomes), len(r.Health), len(r.Kept), len(r.Warnings)) <= wire.MaxEntries {
			break
		}
		if i == 0 {
			r.Warnings = append(r.Warnings, wire.Warning{Code: "report-cut", Severity: "warning", Text: "the account is too long for one message and was cut",
				Remedy: "applied.json in the node's folder has the whole of it"})
		}
		shorten()
	}
	return r, nil
}

// cutLists keeps the first n of each list, of the outcomes those that went wrong, of the warnings the last.
func cutLists(r *wire.Report, n int) {
	good := func(o wire.Outcome) bool { return clean([]wire.Outcome{o}) }
	slices.SortStableFunc(r.Outcomes, func(a, b wire.Outcome) int {
		switch {
		case good(a) == good(b):
			return 0
		case good(b):
			return -1
		}
		return 1
	})
	r.Outcomes, r.Health = r.Outcomes[:min(n, len(r.Outcomes))], r.Health[:min(n, len(r.Health))]
	r.Kept, r.Warnings = r.Kept[:min(n, len(r.Kept))], r.Warnings[max(0, len(r.Warnings)-n):]
}

func cutTexts(r *wire.Report, size, lines int) {
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		o.Step, o.Error, o.Drift, o.Log = cut(o.Step, size), cut(o.Error, size), cut(o.Drift, size), cutLog(o.Log, size, lines)
	}
	for i := range r.Health {
		h := &r.Health[i]
		h.Why, h.Log = cut(h.Why, size), cutLog(h.Log, size, lines)
	}
	for i := range r.Warnings {
		r.Warnings[i].Text = cut(r.Warnings[i].Text, size)
	}
}

func cutLog(log []string, size, lines int) (out []string) {
	for _, line := range log[max(0, len(log)-lines):] {
		out = append(out, cut(line, size))
	}
	return out
}

// cut gives s as the controller will read it, at most size bytes long.
func cut(s string, size int) string {
	if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= size {
		return s
	}
	return strings.ToValidUTF8(s[:size-len("…")], "") + "…"
}
