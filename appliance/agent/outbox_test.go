package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/wire"
)

// BUS-13: facts that were not delivered yet go along with the next report, unless that states them anew; an empty set is a statement, too.
func TestFactsGoAlong(t *testing.T) {
	ports := &[]wire.CarriedPort{{Port: 1, Protocol: "tcp", Part: "broker"}}
	asks, none := &[]wire.CertificateRequest{{Instance: "a", Name: "web", Request: []byte("r")}}, &[]wire.CertificateRequest{}
	for name, c := range map[string]struct{ older, newer, want *wire.Facts }{
		"nothing":      {},
		"older only":   {&wire.Facts{Carried: ports}, nil, &wire.Facts{Carried: ports}},
		"newer only":   {nil, &wire.Facts{Requests: asks}, &wire.Facts{Requests: asks}},
		"one of each":  {&wire.Facts{Carried: ports}, &wire.Facts{Requests: asks}, &wire.Facts{Carried: ports, Requests: asks}},
		"other order":  {&wire.Facts{Requests: asks}, &wire.Facts{Carried: ports}, &wire.Facts{Carried: ports, Requests: asks}},
		"stated anew":  {&wire.Facts{Requests: asks}, &wire.Facts{Requests: none}, &wire.Facts{Requests: none}},
		"nothing anew": {&wire.Facts{Requests: none}, &wire.Facts{}, &wire.Facts{Requests: none}},
	} {
		if d := cmp.Diff(c.want, mergeFacts(c.older, c.newer)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
