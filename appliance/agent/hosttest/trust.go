package hosttest

import (
	"encoding/json"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

func trustThing(m *Machine, _ wire.Resource) (thing, error) {
	return thing{
		observe: func() host.Observation { return seen(m.trusts, false, "") },
		before:  func() any { return nil },
		do: func() error {
			if !m.trusts {
				m.trusts = true
				m.ran("update-ca-certificates # with the mesh's")
			}
			return nil
		},
		undo: func(json.RawMessage) (bool, error) {
			if m.trusts {
				m.trusts = false
				m.ran("update-ca-certificates # without the mesh's")
			}
			return false, nil
		},
	}, nil
}
