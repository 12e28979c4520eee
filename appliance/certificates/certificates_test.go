package certificates_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
)

// PKI-3: what a node asks for and its approved plan names is due, once for each key and each set of names; everything else is left alone.
func TestDue(t *testing.T) {
	const one, two = appliance.NodeID("n1"), appliance.NodeID("n2")
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	names := []string{"web.internal", "web.one.internal"}
	plans := map[appliance.NodeID]resolve.Plan{
		one: {Instances: []resolve.Instance{{Name: "other"}, {Name: "web", Certificates: map[string]manifest.Certificate{"tls": {Names: names}}}}},
		two: {Instances: []resolve.Instance{{Name: "web", Certificates: map[string]manifest.Certificate{"tls": {Names: []string{"web.internal"}}}}}},
	}
	asks := func(node appliance.NodeID, instance appliance.InstanceName, name, key string) certificates.Request {
		return certificates.Request{Node: node, Instance: instance, Name: name, Request: []byte(key)}
	}
	was := func(ago time.Duration, key string, names ...string) certificates.Certificate {
		return certificates.Certificate{Node: one, Instance: "web", Name: "tls", Names: names, Request: []byte(key), DER: []byte("c"), IssuedAt: now.Add(-ago)}
	}
	keys := func(n int, c certificates.Certificate) certificates.Certificate { c.Keys = n; return c }
	web := asks(one, "web", "tls", "k")
	due := []certificates.Certificate{{Node: one, Instance: "web", Name: "tls", Names: names, Request: []byte("k")}}
	for name, c := range map[string]struct {
		requests []certificates.Request
		issued   []certificates.Certificate
		due      []certificates.Certificate
		later    []appliance.NodeID
		in       time.Duration
	}{
		"nothing asked":   {},
		"asked":           {requests: []certificates.Request{web}, due: due},
		"answered":        {requests: []certificates.Request{web}, issued: []certificates.Certificate{was(time.Second, "k", names...)}},
		"another key":     {requests: []certificates.Request{web}, issued: []certificates.Certificate{was(time.Hour, "j", names...)}, due: due},
		"keys in a row":   {requests: []certificates.Request{web}, issued: []certificates.Certificate{was(time.Second, "j", names...)}, later: []appliance.NodeID{one}, in: 4 * time.Second},
		"ten in a row":    {requests: []certificates.Request{web}, issued: []certificates.Certificate{keys(10, was(time.Hour, "j", names...))}, later: []appliance.NodeID{one}, in: 1520 * time.Second},
		"a day of keys":   {requests: []certificates.Request{web}, issued: []certificates.Certificate{keys(1000, was(6*time.Hour, "j", names...))}, due: due},
		"other names":     {requests: []certificates.Request{web}, issued: []certificates.Certificate{was(time.Second, "k", names[0])}, due: due},
		"another's":       {requests: []certificates.Request{web}, issued: []certificates.Certificate{{Node: two, Instance: "web", Name: "tls", Names: names, Request: []byte("k")}}, due: due},
		"unknown name":    {requests: []certificates.Request{asks(one, "web", "more", "k")}},
		"no certificates": {requests: []certificates.Request{asks(one, "other", "tls", "k")}},
		"not assigned":    {requests: []certificates.Request{asks(one, "gone", "tls", "k")}},
		"no plan":         {requests: []certificates.Request{asks("n3", "web", "tls", "k")}},
		"two nodes, one name": {requests: []certificates.Request{web, asks(two, "web", "tls", "l")},
			due: append(due[:1:1], certificates.Certificate{Node: two, Instance: "web", Name: "tls", Names: []string{"web.internal"}, Request: []byte("l")})},
	} {
		got, later, in := certificates.Due(plans, c.requests, c.issued, now, 5*time.Second)
		if d := cmp.Diff(c.due, got); d != "" {
			t.Errorf("%s: due (-want +got):\n%s", name, d)
		}
		if in != c.in {
			t.Errorf("%s: in %s, want %s", name, in, c.in)
		}
		if d := cmp.Diff(c.later, later); d != "" {
			t.Errorf("%s: later (-want +got):\n%s", name, d)
		}
	}
}
