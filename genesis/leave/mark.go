package leave

import (
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/genesis/serve"
)

// Mark says that a machine leaves, or has left and something was kept: what it is, or was.
type Mark struct {
	installation.Record
	Told     bool `json:"told,omitempty"`     // the mesh knows
	Database bool `json:"database,omitempty"` // the records are in a database that was there before
	Begun    bool `json:"-"`                  // an earlier run began
	Left     bool `json:"-"`                  // and came to its end: only what was kept is here
}

// Find says what there is to leave; NotFound where there is nothing.
func Find(i installation.Installation) (Mark, error) {
	m, err := read(i)
	if err != nil {
		return m, err
	}
	s, unset := serve.ReadSettings(i)
	m.Database = m.Database || s.StoreFile != ""
	r, err := i.Read()
	switch {
	case err == nil:
		m.Record = r
		return m, nil
	case appliance.KindOf(err) != appliance.NotFound:
		return m, err
	case m.Begun:
		m.Left = true
		return m, nil
	}
	if errors.Is(unset, os.ErrNotExist) {
		return m, err
	}
	if unset == nil { // a genesis that did not come to its end
		m.Record = installation.Record{Mesh: s.Mesh, MeshName: s.Name, Node: s.Hub.ID, Name: s.Hub.Name, Hub: true, Created: s.Founded}
	}
	return m, unset
}

func read(i installation.Installation) (m Mark, err error) {
	data, err := os.ReadFile(i.LeavingFile())
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil || !m.Mesh.Valid() || !m.Node.Valid() {
		return m, appliance.Errorf(appliance.Invalid, "read %s: it is damaged: %v", i.LeavingFile(), err).WithHint("remove it, and give the command again")
	}
	m.Begun = true
	return m, nil
}

func (m Mark) write(i installation.Installation) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(i.LeavingFile(), append(data, '\n'), 0o600)
}

// Refuse refuses what would bring to life what is leaving, or was removed: it says what is left to do there.
func Refuse(i installation.Installation, command string) error {
	m, err := Find(i)
	if err != nil || m.Left {
		return nil // another look finds what is wrong
	}
	if m.Begun {
		return appliance.Errorf(appliance.Conflict, "%s: node %s is on its way out of mesh %s", command, m.Name, m.MeshName).
			WithHint("what was begun goes on with the same command").WithNext(m.Command())
	}
	if at, err := agent.Removed(i.Node()); err == nil && !at.IsZero() {
		return appliance.Errorf(appliance.Conflict, "%s: mesh %s has removed node %s, which heard so at %s", command, m.MeshName, m.Name, at.Format(time.RFC3339)).
			WithHint("its modules are stopped and their data are here; leaving cleans up").WithNext(m.Command())
	}
	return nil
}

// Command is what takes the mesh off this machine.
func (m Mark) Command() string {
	if m.Hub {
		return "mesh uninstall"
	}
	return "mesh leave"
}
