// Package supervise keeps one process running where no init system does it: a supervisor per process, a folder per supervisor. The
// process outlives its supervisor, and the next supervisor takes it over. Which processes there shall be is decided elsewhere.
//
// A folder holds spec.json (what to run), state.json (what runs), log and log.1, control (a socket), and the locks.
package supervise

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// Version is the number in spec.json and state.json.
//
// History:
//
//	1 (2026-12-01) first
const Version = 1

// Restart policies.
const (
	Always    = "always"
	OnFailure = "on-failure"
	Never     = "never"
)

// Spec is what a supervisor runs.
type Spec struct {
	Version     int               `json:"version"`               // set by Start
	Command     []string          `json:"command"`               // required; the first is an absolute path
	Directory   string            `json:"directory"`             // required; absolute
	Environment map[string]string `json:"environment,omitempty"` // everything but PATH, which has a default
	UID         uint32            `json:"uid"`                   // without root: one's own
	GID         uint32            `json:"gid"`
	Groups      []uint32          `json:"groups,omitempty"` // supplementary
	Restart     string            `json:"restart"`          // always, on-failure, never
	Stop        time.Duration     `json:"stop"`             // between SIGTERM and SIGKILL; zero: ten seconds
}

const (
	maxFile     = 1 << 20 // of spec.json and state.json
	defaultStop = 10 * time.Second
)

func (s Spec) check() error {
	refuse := func(what string) error {
		return appliance.Errorf(appliance.Invalid, "process %q: %s", s.Command, what)
	}
	switch {
	case len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]):
		return refuse("the command begins with no absolute path")
	case !filepath.IsAbs(s.Directory):
		return refuse("its directory is not absolute")
	case s.Restart != Always && s.Restart != OnFailure && s.Restart != Never:
		return refuse("restart is neither always nor on-failure nor never")
	case s.Stop < 0 || s.Stop > time.Hour:
		return refuse("stop is not between 0 and 1 hour")
	case os.Geteuid() != 0 && int(s.UID) != os.Geteuid():
		return refuse("only root starts processes of other users")
	}
	return nil
}

// Same says whether the two describe the same.
func (s Spec) Same(t Spec) bool {
	return s.madeOf() == t.madeOf() && s.Restart == t.Restart && s.Stop == t.Stop
}

// madeOf is the digest of what cannot change without a restart.
func (s Spec) madeOf() appliance.Digest {
	s.Version, s.Restart, s.Stop = 0, "", 0
	data, _ := json.Marshal(s) // strings and numbers only: never fails
	return appliance.DigestOf(data)
}

func (s Spec) stopAfter() time.Duration {
	if s.Stop == 0 {
		return defaultStop
	}
	return s.Stop
}

func readSpec(dir string) (s Spec, err error) {
	path := filepath.Join(dir, "spec.json")
	data, err := readBounded(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, appliance.Errorf(appliance.Invalid, "read %s: %w", path, err)
	}
	if s.Version != Version {
		return s, appliance.Errorf(appliance.Invalid, "read %s: version %d, this binary knows %d", path, s.Version, Version)
	}
	return s, s.check()
}

func writeSpec(dir string, s Spec) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return appliance.Errorf(appliance.Invalid, "process %q: its description has %d bytes, more than %d", s.Command[0], len(data), maxFile)
	}
	return durable.WriteFile(filepath.Join(dir, "spec.json"), data, 0o600)
}
