package hosttest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// LoseTree takes an unpacked artifact away as a person would.
func (m *Machine) LoseTree(path string) { m.with(func() { delete(m.trees, path) }) }

func artifactThing(m *Machine, r wire.Resource) (thing, error) {
	s, err := read[wire.ArtifactSpec](r)
	return thing{
		observe: func() host.Observation { _, ok := m.trees[s.Path]; return seen(ok, false, "") },
		before:  func() any { return nil },
		do: func() error {
			if _, ok := m.trees[s.Path]; !ok {
				m.trees[s.Path] = s.Digest
				m.ran("%s", unpack(s.Path, s.Digest))
			}
			return nil
		},
		undo: func(json.RawMessage) (bool, error) { return false, nil }, // collected later
	}, err
}

func unpack(path string, d appliance.Digest) string {
	return fmt.Sprintf("tar -x -C %s # %s", path, d.Short())
}

func (m *Machine) collect(ctx context.Context, keep []appliance.Digest) error {
	return m.step(ctx, "collect", "artifacts", func() error {
		for _, path := range slices.Sorted(maps.Keys(m.trees)) {
			if !slices.Contains(keep, m.trees[path]) {
				delete(m.trees, path)
				m.ran("rm -r %s", path)
			}
		}
		return nil
	})
}
