package resolve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/wire"
)

// What happens to a thing between two plans.
const (
	Add    = "add"
	Modify = "change"
	Remove = "remove"
)

// Change is one line of the difference between two plans.
type Change struct {
	Instance appliance.InstanceName `json:"instance"`
	Resource string                 `json:"resource"` // "file/app.ini", "port/http"; "module" and "manifest" for the instance itself
	What     string                 `json:"what"`     // add, change, remove
	Detail   string                 `json:"detail,omitempty"`
}

// Diff says what new changes against old, sorted by instance and resource. It is empty exactly when the two have the same bytes.
func Diff(old, new Plan) []Change {
	var all []Change
	before, after := byName(old), byName(new)
	for _, name := range union(before, after) {
		a, inOld := before[name]
		b, inNew := after[name]
		d := differ{name: name}
		switch {
		case !inOld:
			d.add("module", Add, string(b.Module))
		case !inNew:
			d.add("module", Remove, string(a.Module))
		case a.Module != b.Module:
			d.add("module", Modify, fmt.Sprintf("%s to %s", a.Module, b.Module))
		case a.Digest != b.Digest:
			d.add("manifest", Modify, fmt.Sprintf("%s to %s", a.Digest.Short(), b.Digest.Short()))
		}
		if inOld && inNew && a.Stopped != b.Stopped {
			d.add("module", Modify, map[bool]string{true: "stop", false: "start"}[b.Stopped])
		}
		d.ports(a.Ports, b.Ports)
		values(&d, "setting", a.Settings, b.Settings, func(s string) string { return s })
		values(&d, "artifact", a.Artifacts, b.Artifacts, func(r ResolvedArtifact) string { return r.Digest.Short() })
		values(&d, "certificate", a.Certificates, b.Certificates, func(c manifest.Certificate) string { return strings.Join(c.Names, " ") })
		d.resources(a.Resources, b.Resources)
		slices.SortFunc(d.changes, func(a, b Change) int { return cmp.Compare(a.Resource, b.Resource) })
		all = append(all, d.changes...)
	}
	if old.Hold != new.Hold {
		all = append(all, Change{Resource: "node", What: Modify, Detail: map[bool]string{true: "hold", false: "resume"}[new.Hold]})
	}
	if len(all) == 0 && string(old.Bytes()) != string(new.Bytes()) {
		all = append(all, Change{Resource: "plan", What: Modify, Detail: "form or order"})
	}
	return all
}

type differ struct {
	name    appliance.InstanceName
	changes []Change
}

func (d *differ) add(resource, what, detail string) {
	d.changes = append(d.changes, Change{d.name, resource, what, detail})
}

func (d *differ) ports(a, b map[string]ResolvedPort) { values(d, "port", a, b, ResolvedPort.String) }

// values compares two maps of what an instance is given.
func values[V any](d *differ, kind string, a, b map[string]V, show func(V) string) {
	for _, name := range union(a, b) {
		old, inOld := a[name]
		new, inNew := b[name]
		switch {
		case !inOld:
			d.add(kind+"/"+name, Add, short(show(new)))
		case !inNew:
			d.add(kind+"/"+name, Remove, short(show(old)))
		case !reflect.DeepEqual(old, new):
			d.add(kind+"/"+name, Modify, fmt.Sprintf("%s to %s", short(show(old)), short(show(new))))
		}
	}
}

// short keeps a line of a plan readable.
func short(s string) string {
	if s = strings.Join(strings.Fields(s), " "); len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

func (p ResolvedPort) String() string {
	return fmt.Sprintf("%d/%s from %s", p.Number, p.Protocol, p.From)
}

func (d *differ) resources(a, b []manifest.Resource) {
	before, after := byID(a), byID(b)
	for _, id := range union(before, after) {
		old, inOld := before[id]
		new, inNew := after[id]
		switch {
		case !inOld:
			d.add(id, Add, "")
		case !inNew && old.Kind == wire.Directory && old.Class == "data":
			d.add(id, Remove, "its data is kept")
		case !inNew:
			d.add(id, Remove, "")
		default:
			if changed := fields(old, new); len(changed) > 0 {
				d.add(id, Modify, strings.Join(changed, ", "))
			}
		}
	}
}

// fields says which fields of a resource differ, short ones with both values.
func fields(a, b manifest.Resource) []string {
	var changed []string
	old, new := asMap(a), asMap(b)
	for _, name := range union(old, new) {
		x, y := old[name], new[name]
		if reflect.DeepEqual(x, y) {
			continue
		}
		from, short := x.(string)
		to, short2 := y.(string)
		if name != "content" && short && short2 && len(from)+len(to) < 80 {
			name = fmt.Sprintf("%s %s to %s", name, from, to)
		}
		changed = append(changed, name)
	}
	return changed
}

func asMap(r manifest.Resource) map[string]any {
	var m map[string]any
	b, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(err) // strings, numbers and maps of strings always go there and back
	}
	return m
}

func byName(p Plan) map[appliance.InstanceName]Instance {
	m := map[appliance.InstanceName]Instance{}
	for _, i := range p.Instances {
		m[i.Name] = i
	}
	return m
}

func byID(resources []manifest.Resource) map[string]manifest.Resource {
	m := map[string]manifest.Resource{}
	for _, r := range resources {
		m[r.ID()] = r
	}
	return m
}

func union[K cmp.Ordered, V any](a, b map[K]V) []K {
	both := maps.Clone(a)
	if both == nil {
		both = map[K]V{}
	}
	maps.Copy(both, b)
	return slices.Sorted(maps.Keys(both))
}
