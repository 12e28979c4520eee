package manifest

import (
	"strings"

	"github.com/novox/mesh/appliance"
)

const notCarriedOut = "not carried out by this version"

// notYet lists what the schema knows and this version does not act on: a field, or one value of a field. A star is any name or index.
// A line goes when resolve, render and the agent do what it says.
var notYet = []struct{ at, value string }{
	{at: "provides"}, {at: "requires"}, {at: "secrets"}, {at: "generates"}, {at: "bus"}, {at: "tools"},
	{at: "upgrade.before"}, {at: "upgrade.after"}, {at: "upgrade.rollback", value: "restore"},
	{at: "build.artifacts.*.kind", value: "command"}, {at: "build.artifacts.*.kind", value: "image"}, {at: "build.packages"},
	{at: "seats.*.events"}, {at: "seats.*.tools"}, {at: "seats.*.work"},
	{at: "resources.*.kind", value: "packet-filter"},
}

// refuseNotYet names every field of v that is valid and would be ignored.
func refuseNotYet(v any, errs *Errors) {
	for _, n := range notYet {
		walk(v, strings.Split(n.at, "."), "", func(path string, found any) {
			switch {
			case n.value == "":
				errs.add(path, "", "valid, but "+notCarriedOut)
			case found == n.value:
				errs.add(path, "", appliance.Quote(n.value)+" is valid, but "+notCarriedOut)
			}
		})
	}
}

// walk calls visit with everything in v that steps lead to.
func walk(v any, steps []string, path string, visit func(path string, found any)) {
	if len(steps) == 0 {
		visit(path, v)
		return
	}
	switch in := v.(type) {
	case map[string]any:
		for _, k := range keysOf(in) {
			if steps[0] == k || steps[0] == "*" {
				walk(in[k], steps[1:], join(path, k), visit)
			}
		}
	case []any:
		if steps[0] == "*" {
			for i := range in {
				walk(in[i], steps[1:], index(path, i), visit)
			}
		}
	}
}
