package hosttest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// thing is one resource with its spec read: what the methods of an effector do for it.
type thing struct {
	observe func() host.Observation
	before  func() any // nil where there is nothing
	do      func() error
	undo    func(before json.RawMessage) (kept bool, err error)
	purge   func(before json.RawMessage) (kept bool, err error) // nil: as undo
}

// effector is the same for every kind; make reads the spec.
type effector struct {
	m    *Machine
	make func(*Machine, wire.Resource) (thing, error)
}

func (e effector) Observe(ctx context.Context, r wire.Resource) (seen host.Observation, err error) {
	err = e.m.step(ctx, "observe", r.ID, func() error {
		t, err := e.make(e.m, r)
		if err == nil {
			seen = t.observe()
		}
		return err
	})
	return seen, err
}

func (e effector) Before(ctx context.Context, r wire.Resource) (undo json.RawMessage, err error) {
	err = e.m.step(ctx, "before", r.ID, func() error {
		t, err := e.make(e.m, r)
		if err != nil {
			return err
		}
		if before := t.before(); before != nil {
			undo, err = json.Marshal(before)
		}
		return err
	})
	return undo, err
}

func (e effector) Do(ctx context.Context, r wire.Resource) error {
	return e.m.step(ctx, "do", r.ID, func() error {
		t, err := e.make(e.m, r)
		if err != nil {
			return err
		}
		return t.do()
	})
}

func (e effector) Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	err = e.m.step(ctx, "undo", r.ID, func() error {
		t, err := e.make(e.m, r)
		if string(undo) == "null" { // what nil becomes on its way through a file
			undo = nil
		}
		if err == nil {
			kept, err = t.undo(undo)
		}
		return err
	})
	return kept, err
}

func (e effector) Purge(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	purging := effector{e.m, func(m *Machine, r wire.Resource) (thing, error) {
		t, err := e.make(m, r)
		if t.purge != nil {
			t.undo = t.purge
		}
		return t, err
	}}
	return purging.Undo(ctx, r, undo)
}

// Holds says what Hold was given.
func (e effector) Holds(ctx context.Context, r wire.Resource, _ json.RawMessage) (why string, err error) {
	err = e.m.step(ctx, "hold", r.ID, func() error { why = e.m.held[r.ID]; return nil })
	return why, err
}

// Remains says what Remain was given.
func (e effector) Remains(ctx context.Context, r wire.Resource, _ json.RawMessage) (left []host.Left, err error) {
	err = e.m.step(ctx, "remains", r.ID, func() error { left = e.m.remains[r.ID]; return nil })
	return left, err
}

func read[T any](r wire.Resource) (spec T, err error) {
	if err := json.Unmarshal(r.Spec, &spec); err != nil {
		return spec, fmt.Errorf("read spec of %s: %w", r.ID, err)
	}
	return spec, nil
}

func packageThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.PackageSpec](r)
	name := s.Names["apt"]
	if err == nil && name == "" {
		err = appliance.Errorf(appliance.Invalid, "package %s has no name for apt", r.ID)
	}
	return thing{
		observe: func() host.Observation { return seen(m.packages[name], m.unless(s.Unless), "") },
		before:  func() any { return thereBefore(m.packages[name] || m.unless(s.Unless)) },
		do: func() error {
			if !m.packages[name] && !m.unless(s.Unless) {
				m.packages[name] = true
				m.ran("apt-get install %s", name)
			}
			return nil
		},
		undo: func(before json.RawMessage) (bool, error) {
			if before == nil && m.packages[name] {
				delete(m.packages, name)
				m.ran("apt-get remove %s", name)
			}
			return false, nil
		},
	}, err
}

// unless says whether one of the patterns matches a path on the machine.
func (m *Machine) unless(patterns []string) bool {
	for _, pattern := range patterns {
		for p := range m.paths {
			if ok, _ := path.Match(pattern, p); ok {
				return true
			}
		}
	}
	return false
}

func userThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.UserSpec](r)
	home := cmp.Or(s.Home, "/nonexistent")
	return thing{
		observe: func() host.Observation { _, ok := m.users[s.Name]; return seen(ok, false, "") },
		before:  func() any { _, ok := m.users[s.Name]; return thereBefore(ok) },
		do: func() error {
			if _, ok := m.users[s.Name]; !ok {
				m.users[s.Name] = home
				m.ran("useradd --system --home-dir %s %s", home, s.Name)
			}
			return nil
		},
		undo: func(before json.RawMessage) (bool, error) {
			if _, ok := m.users[s.Name]; before != nil || !ok {
				return false, nil
			}
			for _, e := range m.paths {
				if e.data && e.Owner == s.Name {
					return true, nil
				}
			}
			delete(m.users, s.Name)
			m.ran("userdel %s", s.Name)
			return false, nil
		},
	}, err
}

func directoryThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.DirectorySpec](r)
	want := Entry{Folder: true, Owner: s.Owner, Group: s.Group, Mode: s.Mode, data: s.IsData()}
	t := m.pathThing(s.Path, want)
	remove := func(before json.RawMessage) (bool, error) {
		if _, ok := m.paths[s.Path]; !ok {
			return false, nil
		}
		if before != nil {
			return false, m.putBack(s.Path, before)
		}
		for p, e := range m.paths {
			if beneath(p, s.Path) && e.data && p != s.Path {
				return true, nil
			}
		}
		maps.DeleteFunc(m.paths, func(p string, _ Entry) bool { return beneath(p, s.Path) })
		m.ran("rm -r %s", s.Path)
		return false, nil
	}
	t.undo = func(before json.RawMessage) (bool, error) {
		if _, ok := m.paths[s.Path]; ok && want.data {
			return true, nil
		}
		return remove(before)
	}
	t.purge = func(before json.RawMessage) (bool, error) {
		if _, ok := m.paths[s.Path]; ok && want.data && before != nil {
			return true, nil
		}
		return remove(before)
	}
	return t, err
}

// beneath says whether a path is a folder or lies in it.
func beneath(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// size counts the bytes of files only.
func (m *Machine) size(ctx context.Context, r wire.Resource) (bytes int64, err error) {
	return bytes, m.step(ctx, "size", r.ID, func() error {
		s, err := read[wire.DirectorySpec](r)
		for p, e := range m.paths {
			if beneath(p, s.Path) {
				bytes += int64(len(e.Content))
			}
		}
		return err
	})
}

func fileThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.FileSpec](r)
	t := m.pathThing(s.Path, Entry{Owner: s.Owner, Group: s.Group, Mode: s.Mode, Content: s.Content})
	t.undo = func(before json.RawMessage) (bool, error) {
		if before != nil {
			return false, m.putBack(s.Path, before)
		} else if _, ok := m.paths[s.Path]; ok {
			delete(m.paths, s.Path)
			m.ran("rm %s", s.Path)
		}
		return false, nil
	}
	return t, err
}

// putBack makes a path what it was at first touch.
func (m *Machine) putBack(path string, before json.RawMessage) error {
	var e Entry
	if err := json.Unmarshal(before, &e); err != nil {
		return fmt.Errorf("read undo record of %s: %w", path, err)
	}
	if m.paths[path] != e {
		m.paths[path] = e
		m.ran("%s", e.command(path))
	}
	return nil
}

func (m *Machine) pathThing(at string, want Entry) thing {
	return thing{
		observe: func() host.Observation {
			have, ok := m.paths[at]
			return seen(ok, false, have.differs(want))
		},
		before: func() any {
			if have, ok := m.paths[at]; ok {
				return have
			}
			return nil
		},
		do: func() error {
			have, ok := m.paths[at]
			for _, name := range []string{want.Owner, want.Group} {
				if _, known := m.users[name]; !known {
					return appliance.Errorf(appliance.NotFound, "make %s: no user or group %q", at, name)
				}
			}
			if ok && have.Folder != want.Folder {
				return appliance.Errorf(appliance.Conflict, "make %s: something else is there", at)
			}
			if !ok || have.differs(want) != "" {
				m.paths[at] = want
				m.ran("%s", want.command(at))
			}
			return nil
		},
	}
}

func thereBefore(was bool) any {
	if was {
		return "there before"
	}
	return nil
}

func (e Entry) differs(want Entry) string {
	switch {
	case e.Folder != want.Folder:
		return "something else is there"
	case e.Owner != want.Owner:
		return fmt.Sprintf("owner %s, want %s", e.Owner, want.Owner)
	case e.Group != want.Group:
		return fmt.Sprintf("group %s, want %s", e.Group, want.Group)
	case e.Mode != want.Mode:
		return fmt.Sprintf("mode %s, want %s", e.Mode, want.Mode)
	case e.Content != want.Content:
		return "content"
	}
	return ""
}

func seen(present, enough bool, differs string) host.Observation {
	if !present {
		return host.Observation{Matches: enough}
	}
	return host.Observation{Present: true, Matches: differs == "", Differs: differs}
}
