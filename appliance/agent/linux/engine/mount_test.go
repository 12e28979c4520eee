package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// MOD-14, SAFE-3: what a module's own user puts in the place of a mounted folder leads nowhere. The engine itself would follow it.
func TestMountLeadsNowhere(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	data, deep, secret := filepath.Join(b.dir, "data"), filepath.Join(b.dir, "data", "deep"), t.TempDir()
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(filepath.Join(secret, "x"), []byte("secret"), 0o644), os.Chmod(filepath.Dir(secret), 0o755), os.Chmod(secret, 0o755)); err != nil {
		t.Fatal(err)
	}
	r := b.web(image, func(s *wire.ContainerSpec) { s.Mounts = []wire.Mount{{Source: deep, Target: "/deep"}} })
	b.do(r)
	b.undo(r)
	if err := os.Chown(data, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := b.Do(t.Context(), r); appliance.KindOf(err) != appliance.Denied {
		t.Errorf("in a folder that nobody can change: %v", err)
	}
	b.undo(r)
	if err := errors.Join(os.Remove(deep), os.Symlink(secret, deep)); err != nil {
		t.Fatal(err)
	}
	if err := b.Do(t.Context(), r); appliance.KindOf(err) != appliance.Denied {
		t.Errorf("a link in such a folder: %v, and inside %q", err, strings.TrimSpace(ask("file", "/deep/x")))
	}
	if err := os.Chown(data, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Do(t.Context(), r); appliance.KindOf(err) != appliance.Conflict {
		t.Errorf("a link that was left: %v", err)
	}
}
