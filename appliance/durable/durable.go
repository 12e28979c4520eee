// Package durable writes files that survive a power cut: into a temporary file, synced, renamed, the folder synced.
// It knows nothing about what is written.
package durable

import (
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces path with data. A reader sees the old bytes or the new ones, also after a power cut.
// The temporary file is path + ".tmp"; two writers of one path must exclude each other.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode) // the umask does not decide
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncFolder(filepath.Dir(path))
}

// SyncFolder makes renames and removals in dir durable.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
