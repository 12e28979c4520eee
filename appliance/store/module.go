package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

// Module is a registered module with its present manifest.
type Module struct {
	Name         appliance.ModuleName
	Manifest     *manifest.Manifest
	Digest       appliance.Digest // of the manifest
	RegisteredAt time.Time
}

// RegisterModule records a module, or its new manifest. The same manifest again changes nothing; one that breaks what stands is refused.
func (s *Store) RegisterModule(ctx context.Context, by By, m *manifest.Manifest) error {
	return s.change(ctx, "register module "+string(m.Module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if err := register(ctx, tx, by, m); err != nil {
			return err
		}
		err := judgeChanged(ctx, tx, func(a resolve.Assignment) bool { return a.Module == m.Module })
		if appliance.IsReason(err, resolve.Unset) { // and none can be given before the module has the setting
			return appliance.AsError(err).WithHint("the module is assigned: a setting that comes to it needs a default in its manifest").WithNext("")
		}
		return err
	})
}

func register(ctx context.Context, tx pgx.Tx, by By, m *manifest.Manifest) error {
	if err := takeForModule(ctx, tx, string(m.Module), m.Module); err != nil {
		return err
	}
	var before any
	var digest appliance.Digest
	err := tx.QueryRow(ctx, `SELECT digest FROM module WHERE name = $1`, m.Module).Scan(&digest)
	switch {
	case err == nil && digest == m.Digest():
		return nil
	case err == nil:
		before = map[string]any{"digest": digest}
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO module (name, manifest, digest, registered_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (name) DO UPDATE SET manifest = excluded.manifest, digest = excluded.digest, registered_at = excluded.registered_at`,
		m.Module, string(m.Canonical()), m.Digest(), by.At)
	if err != nil {
		return err
	}
	assigned, err := followManifest(ctx, tx, m)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "module register", string(m.Module), before, map[string]any{"digest": m.Digest(), "ports": assigned})
}

// Modules gives all, by name.
func (s *Store) Modules(ctx context.Context) (all []Module, err error) {
	err = s.read(ctx, "list modules", func(tx pgx.Tx) error {
		all, err = modules(ctx, tx)
		return err
	})
	return all, err
}

func modules(ctx context.Context, tx pgx.Tx) ([]Module, error) {
	r, err := tx.Query(ctx, `SELECT name, manifest::text, digest, registered_at FROM module ORDER BY name`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, func(r pgx.CollectableRow) (m Module, err error) {
		var text string
		if err := r.Scan(&m.Name, &text, &m.Digest, &m.RegisteredAt); err != nil {
			return m, err
		}
		m.Manifest, err = recordedManifest(text)
		return m, err
	})
}

// recordedManifest reads what register wrote: canonical, so nothing is judged again.
func recordedManifest(text string) (*manifest.Manifest, error) {
	m := &manifest.Manifest{}
	return m, wire.Decode([]byte(text), m)
}

func noModule(name appliance.ModuleName) error {
	return appliance.Errorf(appliance.NotFound, "there is no module %s", appliance.Quote(string(name))).WithHint("modules known to the mesh are listed").WithNext("mesh module list")
}
