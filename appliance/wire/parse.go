package wire

import (
	"encoding/json"
	"slices"

	"github.com/novox/mesh/appliance"
)

// Bounds of what a node may say in one message.
const (
	MaxEntries  = 10_000 // of each list
	MaxLines    = 50     // of a log
	MaxText     = 4096   // bytes of one text
	maxCarried  = 1000
	MaxRequests = 1000
)

// ParseReport reads and checks a report's body. One that carries neither an account nor a fact is a heartbeat and refused (NODE-6).
func ParseReport(body []byte) (Report, error) {
	var r Report
	refuse := func(why string) (Report, error) {
		return Report{}, appliance.Errorf(appliance.Invalid, "read report: %s", why)
	}
	if err := Decode(body, &r); err != nil {
		return refuse(err.Error())
	}
	switch {
	case r.About == nil && r.Facts == nil:
		return refuse("it carries neither an account nor a fact")
	case r.About == nil && len(r.Outcomes)+len(r.Health) > 0:
		return refuse("an account of no declaration")
	case r.About != nil && !r.About.Digest.Valid():
		return refuse("the digest it is about is none")
	case r.About != nil && !r.About.Number.Recordable():
		return refuse("its number " + r.About.Number.String() + " is none that could have been issued")
	case r.Facts != nil && r.Facts.Carried != nil && len(*r.Facts.Carried) > maxCarried:
		return refuse("more than 1000 carried ports")
	case len(r.Outcomes) > MaxEntries || len(r.Health) > MaxEntries || len(r.Kept) > MaxEntries || len(r.Warnings) > MaxEntries:
		return refuse("more than 10000 entries")
	}
	states := []HealthState{Starting, Healthy, Unhealthy, Looping, Stopped}
	severities := []string{"info", "warning", "error"}
	statuses := []Status{Unchanged, Applied, Removed, StatusKept, Refused, Failed, Waiting}
	for _, o := range r.Outcomes {
		if !slices.Contains(statuses, o.Status) || o.ID == "" || long(o.Log, o.ID, o.Step, o.Error, o.Drift, string(o.Instance)) {
			return refuse("outcome " + appliance.Quote(o.ID) + " is not one, or too long")
		}
	}
	for _, h := range r.Health {
		if !slices.Contains(states, h.State) || h.Instance == "" || long(h.Log, h.Why, string(h.Instance)) {
			return refuse("health of " + appliance.Quote(string(h.Instance)) + " is not one, or too long")
		}
	}
	for _, w := range r.Warnings {
		if !slices.Contains(severities, w.Severity) || long(nil, w.Code, w.Text, w.Remedy) {
			return refuse("warning " + appliance.Quote(w.Code) + " is not one, or too long")
		}
	}
	if r.Facts != nil && r.Facts.Carried != nil {
		for _, c := range *r.Facts.Carried {
			if c.Port == 0 || c.Protocol != "tcp" && c.Protocol != "udp" || long(nil, c.Part) {
				return refuse("carried port " + appliance.Quote(c.Part) + " is not one")
			}
		}
	}
	if r.Facts != nil && r.Facts.Requests != nil {
		if len(*r.Facts.Requests) > MaxRequests {
			return refuse("more than 1000 certificate requests")
		}
		for _, q := range *r.Facts.Requests {
			if q.Instance == "" || len(q.Request) == 0 || len(q.Request) > MaxText || long(nil, string(q.Instance), q.Name) {
				return refuse("certificate request " + appliance.Quote(q.Name) + " is not one, or too long")
			}
		}
	}
	for _, k := range r.Kept {
		if long(nil, string(k.Instance), k.Path) {
			return refuse("a kept path is too long")
		}
	}
	return r, nil
}

func long(lines []string, texts ...string) bool {
	return len(lines) > MaxLines || slices.ContainsFunc(append(texts, lines...), func(s string) bool { return len(s) > MaxText })
}

// ParseAlive reads and checks an alive's body. Fields it does not know are passed over: a newer agent may say more.
func ParseAlive(body []byte) (Alive, error) {
	var a Alive
	if len(body) > 16<<10 {
		return a, appliance.Errorf(appliance.Invalid, "read alive: %d bytes, at most %d", len(body), 16<<10)
	}
	err := unique(body)
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	if err != nil {
		return Alive{}, appliance.Errorf(appliance.Invalid, "read alive: %w", err)
	}
	c := a.Capabilities
	if a.Run == "" || long(nil, a.Run, a.Machine, c.Binary, c.OS, c.Architecture, c.Distribution, c.Init, c.Runtime, c.State) || len(c.Kinds) > 100 ||
		a.Digest != "" && !a.Digest.Valid() {
		return Alive{}, appliance.Errorf(appliance.Invalid, "read alive: it names no run, or something in it is too long")
	}
	return a, nil
}
