package agent

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance/wire"
)

// same says whether two resources are one thing on the machine. Packages, users, directories and trust may be shared (DEC-13).
func same(a, b wire.Resource) bool {
	if a.Kind != b.Kind {
		return false
	}
	var x, y struct {
		Names      map[string]string // package
		Name, Path string
	}
	if json.Unmarshal(a.Spec, &x) != nil || json.Unmarshal(b.Spec, &y) != nil {
		return false
	}
	switch a.Kind {
	case wire.Package:
		for manager, name := range x.Names {
			if name != "" && name == y.Names[manager] {
				return true
			}
		}
	case wire.User:
		return x.Name == y.Name
	case wire.Directory:
		return x.Path == y.Path
	case wire.Trust:
		return true // there is one mesh to trust
	}
	return false
}

// sharer gives the record of another resource that is the same thing.
func (s *state) sharer(r wire.Resource) *Record {
	for i, rec := range s.applied.Records {
		if rec.Resource.ID != r.ID && same(rec.Resource, r) {
			return &s.applied.Records[i]
		}
	}
	return nil
}

// heir gives who still has the thing that r names when r leaves: a resource that is declared, carried, or stays with its data.
func heir(r wire.Resource, records []Record, desired []wire.Resource) (wire.Resource, bool) {
	for _, rec := range records {
		if (rec.Carried || rec.Kept) && rec.Resource.ID != r.ID && same(rec.Resource, r) {
			return rec.Resource, true
		}
	}
	for _, d := range desired {
		if d.ID != r.ID && same(d, r) {
			return d, true
		}
	}
	return wire.Resource{}, false
}

// bequeath leaves the record of the thing, with what was there before it, to the heir.
func (s *state) bequeath(id string, to wire.Resource) {
	if s.record(to.ID) != nil {
		s.forget(id)
		return
	}
	rec := s.record(id)
	rec.Resource, rec.Declared = to, false
}

// needed gives what of others cannot be without r: a declared resource that belongs to the user or lies in the folder, or a folder that
// stays for the sake of one. Data stays by rule, whoever needs it.
func needed(r wire.Resource, records []Record, desired []wire.Resource) (by string) {
	var mine struct{ Name, Path string }
	if _, data := dataOf(r); data || r.Kind != wire.User && r.Kind != wire.Directory || json.Unmarshal(r.Spec, &mine) != nil {
		return ""
	}
	for _, rec := range records {
		if rec.Resource.ID != r.ID && !rec.Declared && !rec.Carried && !rec.Kept {
			desired = append(slices.Clip(desired), rec.Resource)
		}
	}
	for _, d := range desired {
		if r.Kind == wire.User && usesUser(d, mine.Name) || r.Kind == wire.Directory && liesIn(d, mine.Path) {
			return d.ID
		}
	}
	return ""
}

// liesIn says whether a resource is somewhere beneath a folder.
func liesIn(r wire.Resource, folder string) bool {
	var spec struct{ Path, Folder string } // of a certificate it is Folder
	return json.Unmarshal(r.Spec, &spec) == nil && (strings.HasPrefix(spec.Path, folder+"/") || strings.HasPrefix(spec.Folder, folder+"/"))
}
