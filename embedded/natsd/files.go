package natsd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// files keeps the last accepted users file and the one before it.
type files struct {
	path string
	good bool // the file at path was accepted
}

func (f *files) previous() string { return f.path + ".previous" }

func (f *files) load() (map[string]user, error) {
	file, err := read(f.path)
	if err != nil {
		return nil, err
	}
	users, err := parse(file)
	f.good = err == nil
	return users, err
}

// keep makes file the current one and the current one the previous. Cut
// anywhere, the path holds a whole file: the old or the new one.
func (f *files) keep(file []byte) error {
	current, err := read(f.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if bytes.Equal(current, file) {
		return nil
	}
	// A damaged file is nothing to come back to.
	if f.good {
		if err := replace(f.previous(), current); err != nil {
			return err
		}
	}
	if err := replace(f.path, file); err != nil {
		return err
	}
	f.good = true
	return nil
}

// read is bounded, and refuses what is longer.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxUsersFile+1))
}

// replace puts content at path so that it is whole and on disk on return.
func replace(path string, content []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	// One name, so that what a crash leaves is overwritten and never heaps up.
	tmp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// SetUsers makes file the rights that count: checked, on disk, in force, in
// this order. A refused file changes nothing. Connections of users who are
// gone or have other rights are cut before it returns; nobody else notices.
func (s *Server) SetUsers(file []byte) error {
	users, err := parse(file)
	if err != nil {
		return err
	}
	s.set.Lock()
	defer s.set.Unlock()
	if err := s.files.keep(file); err != nil {
		return fmt.Errorf("keep users file: %w", err)
	}
	s.auth.swap(users)
	s.log.heal()
	return nil
}

// Restore puts the previous users file back, for when the last one has locked
// the controller out. It can be done once for each SetUsers.
func (s *Server) Restore() error {
	s.set.Lock()
	defer s.set.Unlock()
	file, err := read(s.files.previous())
	if err != nil {
		return fmt.Errorf("restore users file: %w", err)
	}
	users, err := parse(file)
	if err != nil {
		return fmt.Errorf("restore %s: %w", s.files.previous(), err)
	}
	if err := replace(s.files.path, file); err != nil {
		return fmt.Errorf("restore users file: %w", err)
	}
	s.files.good = true
	s.auth.swap(users)
	s.log.heal()
	if err := os.Remove(s.files.previous()); err != nil {
		return fmt.Errorf("restore users file: %w", err)
	}
	return nil
}
