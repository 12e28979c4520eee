package cluster

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/genesis/serve"
)

// Link makes the mesh-store bundle look for PostgreSQL where hub.json says: as root, whose folder that is.
func Link(i installation.Installation) error {
	s, err := serve.ReadSettings(i)
	if err != nil {
		return err
	}
	link := filepath.Join(i.Module(serve.StoreModule), "postgresql")
	if have, err := os.Readlink(link); err == nil && have == s.PostgresBin {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.PostgresBin == "" {
		return nil
	}
	return os.Symlink(s.PostgresBin, link)
}
