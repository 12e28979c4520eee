package ports_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/ports"
)

// PORT-4: given, over assigned, over the manifest's.
func TestNumber(t *testing.T) {
	for _, c := range []struct{ given, assigned, manifest, want uint16 }{
		{0, 0, 80, 80}, {0, 20000, 80, 20000}, {8888, 20000, 80, 8888}, {8888, 0, 80, 8888},
	} {
		if got := ports.Number(c.given, c.assigned, c.manifest); got != c.want {
			t.Errorf("Number(%d, %d, %d) = %d, want %d", c.given, c.assigned, c.manifest, got, c.want)
		}
	}
}

// PORT-1, PORT-2: whatever is asked for and taken, every request gets a number of its own that nothing had, the lowest there are,
// and the order of asking does not matter.
func TestAssign(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var requests []ports.Request
		for i := range random.IntN(30) {
			requests = append(requests, ports.Request{Instance: appliance.InstanceName(fmt.Sprint("i", i%7)), Name: fmt.Sprint("p", i)})
		}
		taken := map[uint16]bool{}
		var bound []ports.Bound
		for range random.IntN(60) {
			n := uint16(ports.First - 5 + random.IntN(50))
			taken[n] = true
			bound = append(bound, ports.Bound{Number: n, Protocol: []string{"tcp", "udp"}[random.IntN(2)], Holder: "somebody"})
		}
		got, err := ports.Assign(requests, bound)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(requests) {
			t.Fatalf("seed %d: %d numbers for %d requests", seed, len(got), len(requests))
		}
		given := map[uint16]bool{}
		highest := uint16(0)
		for r, n := range got {
			if n < ports.First || n > ports.Last || taken[n] || given[n] {
				t.Errorf("seed %d: %v gets %d", seed, r, n)
			}
			given[n] = true
			highest = max(highest, n)
		}
		for n := uint16(ports.First); n < highest; n++ {
			if !taken[n] && !given[n] {
				t.Errorf("seed %d: %d was free, and %d is assigned", seed, n, highest)
			}
		}
		random.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		random.Shuffle(len(bound), func(i, j int) { bound[i], bound[j] = bound[j], bound[i] })
		again, err := ports.Assign(append(requests, requests...), bound)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("seed %d: another order gives other numbers:\n%s", seed, diff)
		}
	}
}

// SAFE-1: where nothing is left, the range is named.
func TestAssignExhausted(t *testing.T) {
	var bound []ports.Bound
	for n := ports.First; n <= ports.Last; n++ {
		bound = append(bound, ports.Bound{Number: uint16(n), Protocol: "tcp"})
	}
	_, err := ports.Assign([]ports.Request{{Instance: "hello", Name: "http"}}, bound)
	if want := "assign port http of hello: every port from 20000 to 29999 is taken"; err == nil || err.Error() != want || appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("error %v, want %s", err, want)
	}
	got, err := ports.Assign([]ports.Request{{Instance: "hello", Name: "http"}}, bound[:len(bound)-1])
	if err != nil || got[ports.Request{Instance: "hello", Name: "http"}] != ports.Last {
		t.Errorf("the last port is not assigned: %v, %v", got, err)
	}
}

// PORT-2: a conflict shows both sides, the same two in whatever order they came.
func TestCheck(t *testing.T) {
	bound := []ports.Bound{
		{Number: 443, Protocol: "tcp", Holder: "port https of web"},
		{Number: 53, Protocol: "tcp", Holder: "port dns of one"},
		{Number: 53, Protocol: "udp", Holder: "port dns-udp of one"},
	}
	if err := ports.Check("hub", bound); err != nil {
		t.Errorf("tcp and udp of one number: %v", err)
	}
	bound = append(bound, ports.Bound{Number: 443, Protocol: "tcp", Holder: "the broker (carried)"}, ports.Bound{Number: 53, Protocol: "udp", Holder: "port a of two"})
	for range 2 {
		err := ports.Check("hub", bound)
		var conflict *ports.Conflict
		if !errors.As(err, &conflict) {
			t.Fatalf("error %v", err)
		}
		want := &ports.Conflict{Node: "hub", Number: 53, Protocol: "udp", A: "port a of two", B: "port dns-udp of one"}
		if diff := cmp.Diff(want, conflict); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if e := appliance.AsError(err); e.Kind != appliance.Conflict || e.Hint == "" || e.Text != "port 53/udp on node hub is wanted by port a of two and by port dns-udp of one" {
			t.Errorf("%+v", e)
		}
		for i, j := 0, len(bound)-1; i < j; i, j = i+1, j-1 {
			bound[i], bound[j] = bound[j], bound[i]
		}
	}
}
