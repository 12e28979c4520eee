package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

// OPS-1, SAFE-1: what stops is recorded and approved together or not at all, on the nodes named; the base is not stopped.
func TestStopInstance(t *testing.T) {
	s, g := founded(t)
	second := enrolledNode(t, s, "n2").Node
	register(t, s, plain, `{"module": "net", "seats": [{"name": "mesh-network", "scope": "node"}], "claims": ["mesh-network"]}`)
	assign(t, s, "plain", "", g.Hub.ID)
	assign(t, s, "plain", "", second)
	assign(t, s, "net", "", g.Hub.ID)
	follow := func(r store.Snapshot) (map[appliance.NodeID]resolve.Plan, error) { return resolve.Resolve(r.Intent) }
	stop := func(instance appliance.InstanceName, node appliance.NodeID, stopped bool, decide store.Decide) error {
		return s.StopInstance(t.Context(), by(), instance, node, stopped, decide)
	}
	stopped := func(want map[appliance.NodeID]bool) {
		t.Helper()
		approved, err := s.ApprovedPlans(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[appliance.NodeID]bool{}
		for node, a := range approved {
			plan, err := a.Plan()
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range plan.Instances {
				if i.Module == "plain" {
					got[node] = i.Stopped
				}
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("approved as stopped: %s", d)
		}
	}
	for _, step := range []struct {
		node appliance.NodeID
		stop bool
		want map[appliance.NodeID]bool
	}{
		{second, true, map[appliance.NodeID]bool{g.Hub.ID: false, second: true}},
		{second, true, map[appliance.NodeID]bool{g.Hub.ID: false, second: true}},
		{"", true, map[appliance.NodeID]bool{g.Hub.ID: true, second: true}},
		{g.Hub.ID, false, map[appliance.NodeID]bool{g.Hub.ID: false, second: true}},
		{"", false, map[appliance.NodeID]bool{g.Hub.ID: false, second: false}},
	} {
		if err := stop("plain", step.node, step.stop, follow); err != nil {
			t.Fatal(err)
		}
		stopped(step.want)
	}
	before := everythingRecorded(t, s)
	wantRefusal(t, stop("plian", "", true, follow), appliance.NotFound, "")
	wantRefusal(t, stop("net", second, true, follow), appliance.NotFound, "")
	wantRefusal(t, stop("net", "", true, follow), appliance.Conflict, "")
	refuse := appliance.Errorf(appliance.Conflict, "no").WithHint("h")
	err := stop("plain", "", true, func(r store.Snapshot) (map[appliance.NodeID]resolve.Plan, error) {
		for _, a := range r.Intent.Assignments {
			if a.Module == "plain" && !a.Stopped {
				t.Error("it decides by the records from before the change")
			}
		}
		return nil, refuse
	})
	if !errors.Is(err, refuse) {
		t.Error(err)
	}
	if d := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); d != "" {
		t.Errorf("a refusal changed the records: %s", d)
	}
}

// OPS-3: what is held and drained is part of the intent until it is resumed, or its time is over.
func TestHoldAndDrain(t *testing.T) {
	s, _ := founded(t)
	second := enrolledNode(t, s, "n2").Node
	good := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(held, drained bool) {
		t.Helper()
		for _, n := range intentOf(t, s).Nodes {
			if n.ID == second && (n.Held != held || n.Drained != drained) || n.ID != second && (n.Held || n.Drained) {
				t.Errorf("%+v, want held %v, drained %v", n, held, drained)
			}
		}
		states, err := s.NodeStates(t.Context())
		if err != nil || states[1].Held != held || states[1].Drained != drained {
			t.Errorf("state %+v: %v", states[1], err)
		}
	}
	hold := func(d time.Duration) error { return s.HoldNode(t.Context(), by(), second, d, approveNothing) }
	holds := func() []store.Hold {
		t.Helper()
		all, err := s.Holds(t.Context())
		good(err)
		return all
	}
	good(hold(0))
	want(true, false)
	if h := holds(); len(h) != 0 {
		t.Errorf("without an end: %+v", h)
	}
	good(s.EndHold(t.Context(), by(), second, approveNothing)) // is not over
	want(true, false)
	good(s.DrainNode(t.Context(), by(), second, approveNothing))
	want(true, true)
	good(s.ResumeNode(t.Context(), by(), second, approveNothing))
	want(false, false)

	good(hold(time.Hour))
	want(true, false)
	states, err := s.NodeStates(t.Context())
	if h := holds(); err != nil || len(h) != 1 || h[0].Node != second || h[0].Left < 59*time.Minute || h[0].Left > time.Hour || states[1].HeldUntil.IsZero() {
		t.Errorf("%+v, %+v, %v", h, states[1], err)
	}
	good(s.DrainNode(t.Context(), by(), second, approveNothing))
	good(hold(time.Microsecond))
	want(false, true)
	if h := holds(); len(h) != 1 || h[0].Left > 0 {
		t.Errorf("over: %+v", h)
	}
	good(s.EndHold(t.Context(), by(), second, approveNothing))
	want(false, true)
	if h := holds(); len(h) > 0 {
		t.Errorf("ended: %+v", h)
	}
	before := everythingRecorded(t, s)
	wantRefusal(t, hold(-time.Second), appliance.Invalid, "")
	wantRefusal(t, hold(store.MaxHold+1), appliance.Invalid, "")
	wantRefusal(t, s.HoldNode(t.Context(), by(), appliance.NewNodeID(), 0, approveNothing), appliance.NotFound, "")
	good(s.DrainNode(t.Context(), by(), second, approveNothing)) // is drained
	if d := cmp.Diff(before, everythingRecorded(t, s), addresses, prefixes); d != "" {
		t.Errorf("a refusal, or nothing new, changed the records: %s", d)
	}
}
