package supervise

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// state is what the supervisor remembers; it alone writes it.
type state struct {
	Version    int              `json:"version"`
	Boot       string           `json:"boot"`
	Supervisor identity         `json:"supervisor"`
	Child      identity         `json:"child"`            // zero: none
	MadeOf     appliance.Digest `json:"madeOf,omitempty"` // of the spec the child was last started with
	Group      string           `json:"group,omitempty"`  // folder of its cgroup, empty without
	Since      time.Time        `json:"since"`            // of the present condition
	Restarts   []time.Time      `json:"restarts,omitempty"`
	Failures   int              `json:"failures,omitempty"` // in a row: the exponent of the backoff
	LastExit   string           `json:"lastExit,omitempty"`
	Stopped    bool             `json:"stopped,omitempty"` // on demand
	Ended      bool             `json:"ended,omitempty"`   // by itself, and its policy leaves it so
}

// Status is what others are told.
type Status struct {
	State      string    `json:"state"`      // running, backoff, stopped, missing
	Supervised bool      `json:"supervised"` // a supervisor is there
	PID        int       `json:"pid,omitempty"`
	Since      time.Time `json:"since"`
	Restarts   int       `json:"restarts"` // within the last ten minutes
	LastExit   string    `json:"lastExit,omitempty"`
	Stopped    bool      `json:"stopped,omitempty"` // on demand, not by itself
}

const restartsWindow = 10 * time.Minute

func (s *state) status(now time.Time) Status {
	out := Status{State: "backoff", PID: s.Child.PID, Since: s.Since, LastExit: s.LastExit, Stopped: s.Stopped}
	switch {
	case s.Child != identity{}:
		out.State = "running"
	case s.Stopped || s.Ended:
		out.State = "stopped"
	}
	for _, at := range s.Restarts {
		if d := now.Sub(at); d >= 0 && d < restartsWindow {
			out.Restarts++
		}
	}
	return out
}

// restarted counts one, and forgets those that no longer matter; also ones from a clock that was ahead.
func (s *state) restarted(now time.Time) {
	s.Restarts = slices.DeleteFunc(slices.Clone(s.Restarts), func(at time.Time) bool { return at.After(now) || now.Sub(at) >= restartsWindow })
	s.Restarts = append(s.Restarts, now)
}

// readState gives what is known. A state that cannot be read is no state: what it said is then found by looking at the machine.
func readState(dir string) *state {
	s := &state{}
	data, err := readBounded(filepath.Join(dir, "state.json"))
	if err != nil || json.Unmarshal(data, s) != nil || s.Version != Version {
		s = &state{}
	}
	s.Version = Version
	if boot := bootID(); s.Boot != boot { // everything that ran is gone, and pids mean something else
		*s = state{Version: Version, Boot: boot, Stopped: s.Stopped, LastExit: s.LastExit}
	}
	return s
}

func (s *state) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, "state.json"), data, 0o600)
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = appliance.Errorf(appliance.Invalid, "read %s: more than %d bytes", path, maxFile)
	}
	return data, err
}
