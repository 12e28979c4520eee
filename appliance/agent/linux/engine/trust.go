package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

var storeAddress = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?:[0-9]{1,5}$`)

// trust has the engine trust the artifact store at an address by the mesh's authority, and show the node's certificate.
func (e *Engine) trust(store string) error {
	if !storeAddress.MatchString(store) {
		return appliance.Errorf(appliance.Invalid, "trust artifact store: %s is not host:port", appliance.Quote(store))
	}
	credentials, err := e.config.Credentials()
	if err != nil {
		return err
	}
	want := map[string][]byte{"ca.crt": credentials.Authority, "client.cert": credentials.Certificate, "client.key": credentials.Key}
	folder := filepath.Join(e.config.Trust, store)
	have := map[string][]byte{}
	for name := range want {
		if have[name], err = os.ReadFile(filepath.Join(folder, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("trust artifact store: %w", err)
		}
	}
	if maps.EqualFunc(want, have, slices.Equal) {
		return nil
	}
	was, err := e.changed()
	if err != nil {
		return err
	}
	if _, known := was.Before[store]; !known {
		if was.Before == nil {
			was.Before = map[string]map[string][]byte{}
		}
		was.Before[store] = have
		for dir := folder; ; dir = filepath.Dir(dir) {
			if _, err := os.Lstat(dir); err == nil || slices.Contains(was.Folders, dir) {
				break
			}
			was.Folders = append(was.Folders, dir)
		}
		if err := e.remember(was); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("trust artifact store: %w", err)
	}
	for name, content := range want {
		if err := durable.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return fmt.Errorf("trust artifact store: %w", err)
		}
	}
	return nil
}

// distrust puts back what was there before trust.
func (e *Engine) distrust() error {
	was, err := e.changed()
	if err != nil {
		return err
	}
	for store, files := range was.Before {
		for name, content := range files {
			path := filepath.Join(e.config.Trust, store, name)
			if content == nil {
				err = os.Remove(path)
			} else {
				err = durable.WriteFile(path, content, 0o600)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("put back %s: %w", path, err)
			}
		}
	}
	slices.SortFunc(was.Folders, func(a, b string) int { return len(b) - len(a) }) // innermost first
	for _, dir := range was.Folders {
		_ = os.Remove(dir) // somebody else's things may lie in it
	}
	was.Folders, was.Before = nil, nil
	return e.remember(was)
}
