package linux

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// treeFile is what a file, folder or link of a tree shall be. To read every file at every look is too dear: one whose time of change is
// as it was has not changed, since nobody can set that time.
type treeFile struct {
	attributes        // with the kind, in the mode
	Size       int64  `json:"size,omitempty"`
	Changed    int64  `json:"changed"`          // nanoseconds
	Digest     string `json:"digest,omitempty"` // of a file
	Target     string `json:"target,omitempty"` // of a link
}

type treeList struct {
	Version int                 `json:"version"`
	Files   map[string]treeFile `json:"files"` // by path, "." for the tree itself
}

// listTree makes the list of a tree that has just been made.
func listTree(tree string) ([]byte, error) {
	l := treeList{1, map[string]treeFile{}}
	err := filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, f, err := lookAt(tree, path)
		if err == nil {
			err = f.read(path)
		}
		l.Files[name] = f
		return err
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(l)
}

// lookAt gives a path's name in the tree, and all of it but what is in it.
func lookAt(tree, path string) (name string, f treeFile, err error) {
	if name, err = filepath.Rel(tree, path); err != nil {
		return name, f, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return name, f, &os.PathError{Op: "look at", Path: path, Err: err}
	}
	f.UID, f.GID, f.Mode, f.Changed = int(st.Uid), int(st.Gid), st.Mode, st.Ctim.Nano()
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		f.Size = st.Size
	}
	return name, f, nil
}

// read adds what is in a file or link.
func (f *treeFile) read(path string) (err error) {
	switch f.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		f.Target, err = os.Readlink(path)
	case unix.S_IFREG:
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		hash := sha256.New()
		if _, err := io.Copy(hash, file); err != nil {
			return err
		}
		f.Digest = fmt.Sprintf("%x", hash.Sum(nil))
	}
	return err
}

// seenFiles remembers files that are as they should be although their time says that somebody touched them, so that they are read once.
type seenFiles struct {
	mu    sync.Mutex
	times map[string]int64
}

// compare says what in a tree is not as its list says; empty where nothing is.
func (s *seenFiles) compare(tree, list string) (differs string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var want treeList
	data, err := os.ReadFile(list)
	if errors.Is(err, fs.ErrNotExist) || err == nil && json.NewDecoder(bytes.NewReader(data)).Decode(&want) != nil || want.Version > 1 {
		return "it is not known to be whole", nil
	}
	if err != nil {
		return "", err
	}
	err = filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it went meanwhile, and is missed below
		}
		if err != nil {
			return err
		}
		name, have, err := lookAt(tree, path)
		if err != nil {
			return err
		}
		f, known := want.Files[name]
		if !known {
			differs = appliance.Quote(name) + " is not of it"
			return fs.SkipAll
		}
		delete(want.Files, name)
		if differs, err = s.file(path, have, f); differs != "" {
			differs = appliance.Quote(name) + ": " + differs
			return fs.SkipAll
		}
		return err
	})
	if missing := slices.Sorted(maps.Keys(want.Files)); err == nil && differs == "" && len(missing) == 1 {
		differs = appliance.Quote(missing[0]) + " is gone"
	} else if err == nil && differs == "" && len(missing) > 1 {
		differs = fmt.Sprintf("%s and %d more are gone", appliance.Quote(missing[0]), len(missing)-1)
	}
	return differs, err
}

func (s *seenFiles) file(path string, have, want treeFile) (differs string, err error) {
	if have.Changed == want.Changed || have.Changed == s.times[path] {
		return "", nil
	}
	if have.Mode&unix.S_IFMT != want.Mode&unix.S_IFMT {
		return "something else", nil
	}
	if differs := attributes.differs(attributes{have.UID, have.GID, have.Mode & 0o7777}, attributes{want.UID, want.GID, want.Mode & 0o7777}); differs != "" {
		return differs, nil
	}
	if have.Size != want.Size {
		return "content", nil
	}
	if err := have.read(path); err != nil {
		return "", err
	}
	if have.Digest != want.Digest || have.Target != want.Target {
		return "content", nil
	}
	s.times[path] = have.Changed
	return "", nil
}
