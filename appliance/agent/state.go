package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

// state is what the agent keeps on disk, in the node folder. Each file is replaced whole and synced before anything follows from it.
//
//	declaration   the last accepted one, as received: its number is the highest this node will take
//	membership    likewise
//	applied.json  what was done: records, and the account of the last apply
//	outbox.json   the report that is not acknowledged yet, and the last sequence used
type state struct {
	dir     string
	reserve disk.Ballast // of size zero: none
	applied applied
	outbox  pending
}

const stateVersion = 1

type applied struct {
	Version  int            `json:"version"`
	About    wire.About     `json:"about"`
	Outcomes []wire.Outcome `json:"outcomes"`
	Records  []Record       `json:"records"`
	// Artifacts are those of the present plan and of earlier ones, the last first.
	Artifacts [][]appliance.Digest `json:"artifacts,omitempty"`
	Noticed   time.Time            `json:"noticed,omitzero"` // of the last notice that asked for more than a look
}

type pending struct {
	Version  int          `json:"version"`
	Sequence uint64       `json:"sequence"`
	Report   *wire.Report `json:"report,omitempty"`
}

func openState(dir string) (*state, error) {
	s := &state{dir: dir}
	if err := s.read("applied.json", &s.applied); err != nil {
		return nil, err
	}
	if err := s.read("outbox.json", &s.outbox); err != nil {
		return nil, err
	}
	if s.applied.Version > stateVersion || s.outbox.Version > stateVersion {
		return nil, appliance.Errorf(appliance.Conflict, "open state in %s: written by a newer mesh (version %d, this one reads %d)",
			dir, max(s.applied.Version, s.outbox.Version), stateVersion).WithHint("run the newer binary")
	}
	return s, nil
}

func (s *state) read(name string, into any) error {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Join(s.dir, name), err)
	}
	return nil
}

func (s *state) write(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.keep(name, data)
}

// keep uses the reserve up on a full disk: a removal, a revocation and the word about it are still to be carried out.
func (s *state) keep(name string, data []byte) error {
	err := durable.WriteFile(filepath.Join(s.dir, name), data, 0o600)
	if errors.Is(err, syscall.ENOSPC) && s.reserve.Held() {
		if err = s.reserve.LetGo(); err == nil {
			err = durable.WriteFile(filepath.Join(s.dir, name), data, 0o600)
		}
	}
	return err
}

func (s *state) saveApplied() error {
	s.applied.Version = stateVersion
	return s.write("applied.json", &s.applied)
}

func (s *state) saveOutbox() error {
	s.outbox.Version = stateVersion
	return s.write("outbox.json", &s.outbox)
}

// stored gives the bytes kept under name, nil when there are none.
func (s *state) stored(name string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

func (s *state) record(id string) *Record {
	for i := range s.applied.Records {
		if s.applied.Records[i].Resource.ID == id {
			return &s.applied.Records[i]
		}
	}
	return nil
}

func (s *state) forget(id string) {
	kept := s.applied.Records[:0]
	for _, r := range s.applied.Records {
		if r.Resource.ID != id {
			kept = append(kept, r)
		}
	}
	s.applied.Records = kept
}

// Records gives what the agent whose folder is dir has made on this machine, and the account of its last declaration. It serves commands
// on the machine itself; the agent may be running.
func Records(dir string) (records []Record, about wire.About, outcomes []wire.Outcome, err error) {
	s, err := openState(dir)
	if err != nil {
		return nil, about, nil, err
	}
	return s.applied.Records, s.applied.About, s.applied.Outcomes, nil
}
