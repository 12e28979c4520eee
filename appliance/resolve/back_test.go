package resolve_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
)

// planOf has instances as "name:version", with ! behind what is stopped and - behind what cannot be taken back.
func planOf(instances ...string) resolve.Plan {
	p := resolve.Plan{Version: resolve.PlanVersion, Node: node}
	for _, s := range instances {
		i := resolve.Instance{Name: appliance.InstanceName(s[:1]), Module: appliance.ModuleName(s[:1]), Digest: appliance.Digest(s[2:3])}
		i.Stopped, i.NoRollback = s[3:] == "!", s[3:] == "-"
		p.Instances = append(p.Instances, i)
	}
	return p
}

// DEC-9, OPS-1, OPS-3: a rollback brings instances back, of one module where that is named, and leaves alone what is stopped or held.
func TestBack(t *testing.T) {
	held := planOf("a:2")
	held.Hold = true
	heldBack := planOf("a:1")
	heldBack.Hold = true
	for name, c := range map[string]struct {
		present, earlier, want resolve.Plan
		module                 appliance.ModuleName
		differ                 bool
	}{
		"all":             {planOf("a:2", "b:2"), planOf("a:1", "c:1"), planOf("a:1", "c:1"), "", true},
		"one module":      {planOf("a:2", "b:2"), planOf("a:1", "b:1"), planOf("a:2", "b:1"), "b", true},
		"stopped stays":   {planOf("a:2!", "b:2"), planOf("a:1", "b:1!"), planOf("a:1!", "b:1"), "", true},
		"as it was":       {planOf("a:2!", "b:2"), planOf("a:2", "b:1"), planOf("a:2!", "b:2"), "a", false},
		"held":            {held, planOf("a:1"), heldBack, "", true},
		"only what stops": {planOf("a:2!"), planOf("a:2"), planOf("a:2!"), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(string(c.want.Bytes()), string(resolve.Back(c.present, c.earlier, c.module).Bytes())); d != "" {
				t.Error(d)
			}
			if resolve.Differ(c.present, c.earlier, c.module) != c.differ {
				t.Errorf("they differ: %v", !c.differ)
			}
		})
	}
}

// DEC-9, UPG-5: what a module says cannot be taken back is not; the same version, and what is not there any more, is no way back.
func TestCheckBack(t *testing.T) {
	for name, c := range map[string]struct {
		present, next resolve.Plan
		refused       bool
	}{
		"another version":  {planOf("a:2-"), planOf("a:1"), true},
		"the same":         {planOf("a:2-", "b:2"), planOf("a:2-", "b:1"), false},
		"earlier one only": {planOf("a:2"), planOf("a:1-"), false},
		"not there then":   {planOf("a:2-", "b:2"), planOf("b:1"), false},
	} {
		err := resolve.CheckBack(c.present, c.next, "n1")
		if (err != nil) != c.refused || err != nil && (appliance.KindOf(err) != appliance.Conflict || appliance.AsError(err).Hint == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
