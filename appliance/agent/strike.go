package agent

import (
	"bytes"
	"slices"

	"github.com/novox/mesh/appliance/wire"
)

// struck stands where a secret stood.
const struck = "[secret]"

// leastSecret is the length below which a value is too common a text to be looked for.
const leastSecret = 8

// strike takes delivered secrets out of a line before it leaves the machine (SEC-3).
func (a *Agent) strike(line []byte) []byte {
	if a.cfg.Secrets == nil {
		return line
	}
	for _, secret := range a.cfg.Secrets() {
		if len(secret) >= leastSecret {
			line = bytes.ReplaceAll(line, []byte(secret), []byte(struck))
		}
	}
	return line
}

// strikeReport does the same for the lines in a report.
func (a *Agent) strikeReport(r *wire.Report) {
	all := func(log []string) []string {
		log = slices.Clone(log)
		for i, line := range log {
			log[i] = string(a.strike([]byte(line)))
		}
		return log
	}
	r.Outcomes, r.Health = slices.Clone(r.Outcomes), slices.Clone(r.Health)
	for i := range r.Outcomes {
		r.Outcomes[i].Log = all(r.Outcomes[i].Log)
		r.Outcomes[i].Error = string(a.strike([]byte(r.Outcomes[i].Error)))
	}
	for i := range r.Health {
		r.Health[i].Log = all(r.Health[i].Log)
		r.Health[i].Why = string(a.strike([]byte(r.Health[i].Why)))
	}
}
