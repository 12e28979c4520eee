package netns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultDir is where beds stand: $LAB_DIR, else a folder on a real disk, so that fsync on a host means something.
func DefaultDir() string { return cmp.Or(os.Getenv("LAB_DIR"), "/var/tmp/mesh-lab") }

const (
	recordName = "bed.json"
	maxBeds    = 31 // each has maxLinks subnets of 10.77.0.0/16
)

// record is what any process needs to find a bed again and to take it down.
type record struct {
	Bed    Bed       `json:"bed"`
	Owner  process   `json:"owner"` // zero: stands until it is taken down
	BootID string    `json:"boot"`  // of the machine; no process survives its end
	Group  string    `json:"group,omitempty"`
	Switch process   `json:"switch"`
	Hosts  []process `json:"hosts"` // by the bed's order
}

func (r record) abandoned(bootID string) bool {
	return r.BootID != bootID || r.Owner != (process{}) && !r.Owner.alive()
}

func (r record) save(folder string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(folder, recordName)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func machineBootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// locked runs f while no other process makes or removes a bed in dir.
func locked(dir string, f func() error) error {
	if strings.ContainsAny(dir, ":,\\") || !filepath.IsAbs(dir) {
		return fmt.Errorf("lab folder %q: an overlay wants an absolute path without colon, comma and backslash; set LAB_DIR", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	return f()
}

// claim makes the folder NAME.N with the bed's record in it, N being the lowest number that is free.
func claim(dir string, bed Bed, owner process) (folder string, r record, err error) {
	err = locked(dir, func() error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		taken := map[string]bool{}
		for _, entry := range entries {
			_, number, _ := strings.Cut(entry.Name(), ".")
			taken[number] = true
		}
		n := 1
		for taken[fmt.Sprint(n)] {
			n++
		}
		if n > maxBeds {
			return fmt.Errorf("raise bed %s: %d beds stand in %s already; take one down with `lab down`", bed.Name, maxBeds, dir)
		}
		if bed, err = bed.settled(n * maxLinks); err != nil {
			return err
		}
		bootID, err := machineBootID()
		if err != nil {
			return err
		}
		r = record{Bed: bed, Owner: owner, BootID: bootID, Hosts: make([]process, len(bed.Hosts))}
		folder = filepath.Join(dir, fmt.Sprintf("%s.%d", bed.Name, n))
		// A folder without its record would be nobody's, so it gets its name with the record in it.
		fresh := filepath.Join(dir, ".fresh")
		if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
			return err
		}
		return errors.Join(r.save(fresh), os.Rename(fresh, folder))
	})
	return folder, r, err
}

// List finds the beds of a folder.
func List(dir string) ([]*Running, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var beds []*Running
	for _, entry := range entries {
		folder := filepath.Join(dir, entry.Name())
		text, err := os.ReadFile(filepath.Join(folder, recordName))
		if !entry.IsDir() || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var r record
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("read record of bed %s: %w", folder, err)
		}
		beds = append(beds, running(folder, r))
	}
	return beds, nil
}

// Sweep takes down the beds whose owner is dead, and returns their names.
func Sweep(ctx context.Context, dir string) ([]string, error) {
	bootID, err := machineBootID()
	if err != nil {
		return nil, err
	}
	beds, err := List(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	var failed []error
	for _, bed := range beds {
		if bed.record.abandoned(bootID) {
			names = append(names, bed.Name())
			failed = append(failed, bed.Down(ctx))
		}
	}
	return names, errors.Join(failed...)
}
