package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// changed is what pulls changed on the machine, for all containers together. It is on disk before the change, and goes with it.
type changed struct {
	Version int                          `json:"version"`
	Folders []string                     `json:"folders,omitempty"` // that were not there
	Before  map[string]map[string][]byte `json:"before,omitempty"`  // store -> file -> what was in it; null: there was none
	Images  []string                     `json:"images,omitempty"`  // that were pulled
}

const changedVersion = 1

func (e *Engine) changed() (changed, error) {
	was := changed{Version: changedVersion}
	data, err := os.ReadFile(e.config.Record)
	if errors.Is(err, fs.ErrNotExist) {
		return was, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err == nil && was.Version > changedVersion {
		err = appliance.Errorf(appliance.Conflict, "written by a newer mesh")
	}
	if err != nil {
		return was, fmt.Errorf("read %s: %w", e.config.Record, err)
	}
	return was, nil
}

// Had says whether anything was pulled for containers and is here still.
func (e *Engine) Had() bool {
	was, err := e.changed()
	return err == nil && len(was.Images) > 0
}

func (e *Engine) remember(was changed) error {
	if len(was.Folders)+len(was.Before)+len(was.Images) == 0 {
		if err := os.Remove(e.config.Record); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(was)
	if err != nil {
		return err
	}
	return durable.WriteFile(e.config.Record, data, 0o600)
}
