package installation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/durable"
)

// Record is what the installation is. Genesis or join writes it.
type Record struct {
	Mesh     appliance.MeshID   `json:"mesh"`
	MeshName string             `json:"meshName"`
	Node     appliance.NodeID   `json:"node"`
	Name     appliance.NodeName `json:"name"`
	Hub      bool               `json:"hub"`
	Created  time.Time          `json:"created"`
	// Below it nothing new is made on this machine; absent: 1 GiB or the twentieth part of the disk, zero: that never stops anything.
	LeastFree *disk.Size `json:"leastFree,omitempty"`
}

const maxRecord = 64 << 10

// Read gives the record; NotFound when there is no installation.
func (i Installation) Read() (Record, error) {
	info, err := os.Stat(i.File())
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, appliance.Errorf(appliance.NotFound, "read installation: there is none in %s", i.Dir).
			WithHint("found a mesh with mesh genesis, enter one with mesh join, or name another folder with --state")
	}
	if err != nil {
		return Record{}, fmt.Errorf("read installation: %w", err)
	}
	if info.Size() > maxRecord {
		return Record{}, appliance.Errorf(appliance.Invalid, "read installation: %s has %d bytes, at most %d", i.File(), info.Size(), maxRecord)
	}
	data, err := os.ReadFile(i.File())
	if err != nil {
		return Record{}, fmt.Errorf("read installation: %w", err)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil { // not strict: the previous binary must read what the next one wrote
		return Record{}, appliance.Errorf(appliance.Invalid, "read installation %s: %w", i.File(), err)
	}
	return r, r.check()
}

// Write replaces the record, whole or not at all; that an earlier one has left is history. The caller holds the lock.
func (i Installation) Write(r Record) error {
	if err := r.check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write installation: %w", err)
	}
	if err := os.Remove(i.LeavingFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write installation: %w", err)
	}
	return durable.WriteFile(i.File(), append(data, '\n'), 0o644)
}

// Keeps says whether the record has the floor that somebody asks for; nil asks for none.
func (r Record) Keeps(least *disk.Size) bool {
	return least == nil || r.LeastFree != nil && *r.LeastFree == *least
}

func (r Record) check() error {
	if !r.Mesh.Valid() || !r.Node.Valid() {
		return appliance.Errorf(appliance.Invalid, "installation record: mesh %s and node %s are not both ids", appliance.Quote(string(r.Mesh)), appliance.Quote(string(r.Node))).
			WithHint("mesh.json is damaged; restore it from a backup")
	}
	return nil
}
