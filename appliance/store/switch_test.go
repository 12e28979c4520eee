package store_test

import (
	"errors"
	"testing"

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
