package genesis

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
)

// BUS-6: an endpoint without a port has the broker's; IPv6 literals have brackets or not.
func TestEndpoint(t *testing.T) {
	for given, want := range map[string]string{
		"192.0.2.7": "192.0.2.7:4300", "192.0.2.7:99": "192.0.2.7:99", "hub.example.org": "hub.example.org:4300", "hub:1": "hub:1",
		"fd00::7": "[fd00::7]:4300", "[fd00::7]:99": "[fd00::7]:99",
		"": "", "a b": "", "hub:0": "", "hub:65536": "", "hub:x": "", ":1": "", "-hub": "", "hub-": "", "a/b": "", "user@hub": "",
	} {
		got, err := endpoint(given, 4300)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", given, got, err, want)
		}
		if err != nil && (appliance.KindOf(err) != appliance.Invalid || appliance.AsError(err).Hint == "") {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// GEN-3: a step is done only where its check says that it is not; a failure ends the run. GEN-7: each says how it went.
func TestRun(t *testing.T) {
	var did, said []string
	do := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { did = append(did, name); return err }
	}
	check := func(done bool, err error) func(context.Context) (bool, error) {
		return func(context.Context) (bool, error) { return done, err }
	}
	boom := errors.New("boom")
	tell := func(e Event) { said = append(said, e.Step+" "+string(e.State)+" "+e.Text) }
	err := run(t.Context(), []step{
		{"a", nil, do("a", nil)}, {"b", check(true, nil), do("b", nil)}, {"c", check(false, nil), do("c", boom)}, {"d", nil, do("d", nil)},
	}, tell)
	if !errors.Is(err, boom) {
		t.Errorf("ends with %v", err)
	}
	if err := run(t.Context(), []step{{"e", check(false, boom), do("e", nil)}}, tell); !errors.Is(err, boom) {
		t.Errorf("a failed check ends with %v", err)
	}
	if diff := cmp.Diff([]string{"a", "c"}, did); diff != "" {
		t.Errorf("did (-want +got):\n%s", diff)
	}
	want := []string{"a started ", "a done ", "b started ", "b already ", "c started ", "c failed boom", "e started ", "e failed boom"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("said (-want +got):\n%s", diff)
	}
}
