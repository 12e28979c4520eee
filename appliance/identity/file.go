package identity

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// maxKeyFile bounds a key file, in bytes.
const maxKeyFile = 4096

// part is one key as one text file.
type part struct {
	file   string
	encode func() ([]byte, error)
	decode func([]byte) error
}

// save writes the keys that have no file yet. An existing file is never replaced.
func save(dir string, parts []part) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("save keys: %w", err)
	}
	if err := sweep(dir); err != nil {
		return fmt.Errorf("save keys: %w", err)
	}
	for _, p := range parts {
		if _, err := os.Lstat(filepath.Join(dir, p.file)); err == nil {
			continue
		}
		text, err := p.encode()
		if err != nil {
			return fmt.Errorf("save key %s: %w", p.file, err)
		}
		if err := create(dir, p.file, text); err != nil {
			return fmt.Errorf("save key %s: %w", p.file, err)
		}
	}
	return durable.SyncFolder(dir)
}

var unfinished = regexp.MustCompile(`^\.[a-z-]+\.key\.[0-9]+$`)

// sweep removes what create left of a process that was killed in it: a copy of a key that nothing else would remove. Who is still at it
// holds the file's lock.
func sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !unfinished.MatchString(entry.Name()) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			err = os.Remove(path)
		}
		f.Close()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// create puts a whole file under name, or nothing. Linking instead of renaming makes the first of two writers win.
func create(dir, name string, text []byte) error {
	for {
		err := tryCreate(dir, name, text)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if _, gone := os.Stat(dir); gone != nil {
			return err
		} // else another's sweep came between making the file and locking it
	}
}

func tryCreate(dir, name string, text []byte) error {
	f, err := os.CreateTemp(dir, "."+name+".") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil && !errors.Is(err, unix.EWOULDBLOCK) { // a sweep that has it removes it
		return err
	}
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	err = os.Link(f.Name(), filepath.Join(dir, name))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func load(dir string, parts []part) error {
	for _, p := range parts {
		text, err := readPrivate(filepath.Join(dir, p.file))
		if err != nil {
			return err
		}
		if err := p.decode(text); err != nil {
			return appliance.Errorf(appliance.Invalid, "read key %s: not a key of its kind", filepath.Join(dir, p.file)).
				WithHint("the file is damaged; restore it from a backup, or remove the state folder and join again")
		}
	}
	return nil
}

// readPrivate reads a file that only its owner may read.
func readPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, appliance.Errorf(appliance.NotFound, "read key %s: no such file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, appliance.Errorf(appliance.Invalid, "read key %s: not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, appliance.Errorf(appliance.Denied, "read key %s: mode %04o lets others read it", path, mode).
			WithHint("a private key is its owner's alone; if nobody else can have read it").WithNext("chmod 600 " + path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("read key %s: %w", path, err)
	}
	if len(text) > maxKeyFile {
		return nil, appliance.Errorf(appliance.Invalid, "read key %s: more than %d bytes", path, maxKeyFile)
	}
	return bytes.TrimSpace(text), nil
}
