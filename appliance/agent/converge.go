package agent

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Record is what the agent remembers of one resource it made, in the order of making.
type Record struct {
	Resource wire.Resource   `json:"resource"`
	Undo     json.RawMessage `json:"undo,omitempty"` // from the first touch, never replaced
	Carried  bool            `json:"carried,omitempty"`
	Declared bool            `json:"declared,omitempty"`
	Owes     string          `json:"owes,omitempty"` // what it still has to do since something it watches changed: restart, reload, signal
	Kept     bool            `json:"kept,omitempty"` // left its declaration; data that stays by rule
	KeptAt   time.Time       `json:"keptAt,omitzero"`
	Bytes    int64           `json:"bytes,omitempty"` // of what is kept; below zero: not known
}

// removals gives the records that a declaration of desired no longer names, last made first. What is carried or already kept stays.
func removals(records []Record, desired []wire.Resource) []Record {
	named := make(map[string]bool, len(desired))
	for _, r := range desired {
		named[r.ID] = true
	}
	var out []Record
	for _, r := range slices.Backward(records) {
		if !named[r.Resource.ID] && !r.Carried && !r.Kept {
			out = append(out, r)
		}
	}
	return out
}

// userStays says whether the user of a resource that leaves has to stay: something carried, or data that is kept, belongs to it.
func userStays(user wire.Resource, records []Record) bool {
	var spec wire.UserSpec
	if user.Kind != wire.User || json.Unmarshal(user.Spec, &spec) != nil {
		return false
	}
	return slices.ContainsFunc(records, func(r Record) bool {
		return r.Resource.ID != user.ID && (r.Kept || r.Carried) && usesUser(r.Resource, spec.Name)
	})
}

func usesUser(r wire.Resource, name string) bool {
	var spec struct{ Name, Owner, Group, User string }
	if json.Unmarshal(r.Spec, &spec) != nil {
		return false
	}
	if r.Kind == wire.User {
		return spec.Name == name
	}
	return spec.Owner == name || spec.Group == name || spec.User == name
}

// blocked gives the first dependency of r that did not come about, empty when none.
func blocked(r wire.Resource, done map[string]wire.Status) string {
	for _, id := range r.After {
		switch done[id] {
		case wire.Unchanged, wire.Applied:
		default:
			return id
		}
	}
	return ""
}

// watchers gives what runs and has to do something when a resource changes: its id -> restart, reload or signal.
func watchers(desired []wire.Resource, changed string) map[string]string {
	out := map[string]string{}
	tree := treeOf(desired, changed)
	for _, r := range desired {
		var spec wire.Run
		if !r.Kind.Runs() || json.Unmarshal(r.Spec, &spec) != nil || spec.Stopped { // once started, it takes up everything
			continue
		}
		if action := spec.OnChange[changed]; action != "" && action != "none" {
			out[r.ID] = action
		} else if tree != "" && bytes.Contains(r.Spec, []byte(tree)) {
			out[r.ID] = "restart" // it has a folder or files open that are gone
		}
	}
	return out
}

// treeOf is where the tree of an artifact lies; empty for any other resource.
func treeOf(desired []wire.Resource, id string) string {
	var spec wire.ArtifactSpec
	i := slices.IndexFunc(desired, func(r wire.Resource) bool { return r.ID == id && r.Kind == wire.Artifact })
	if i < 0 || json.Unmarshal(desired[i].Spec, &spec) != nil {
		return ""
	}
	return spec.Path
}

// stopped says whether an operator wants it not to run.
func stopped(r wire.Resource) bool {
	var spec wire.Run
	return r.Kind.Runs() && json.Unmarshal(r.Spec, &spec) == nil && spec.Stopped
}

// waits says whether something that a process watches failed in this pass.
func waits(process wire.Resource, done map[string]wire.Status) bool {
	var spec wire.Run
	if json.Unmarshal(process.Spec, &spec) != nil {
		return false
	}
	for id := range spec.OnChange {
		if s, ok := done[id]; ok && s != wire.Unchanged && s != wire.Applied {
			return true
		}
	}
	return false
}

// keptData lists the data that no declaration names any more: of folders in one another the outermost.
func keptData(records []Record) []wire.Kept {
	var out []wire.Kept
	for _, r := range records {
		var spec wire.DirectorySpec
		if r.Kept && r.Resource.Kind == wire.Directory && json.Unmarshal(r.Resource.Spec, &spec) == nil {
			out = append(out, wire.Kept{Instance: r.Resource.Instance, Path: spec.Path, Bytes: r.Bytes, Since: r.KeptAt})
		}
	}
	all := slices.Clone(out)
	return slices.DeleteFunc(out, func(k wire.Kept) bool {
		return slices.ContainsFunc(all, func(o wire.Kept) bool { return o.Instance == k.Instance && strings.HasPrefix(k.Path, o.Path+"/") })
	})
}

// instances lists the instances of desired, in order of first appearance.
func instances(desired []wire.Resource) []appliance.InstanceName {
	var out []appliance.InstanceName
	for _, r := range desired {
		if !slices.Contains(out, r.Instance) {
			out = append(out, r.Instance)
		}
	}
	return out
}
