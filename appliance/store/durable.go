package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// CheckDurable refuses a server that may lose what it has acknowledged (GEN-9), naming the settings.
func (s *Store) CheckDurable(ctx context.Context) error {
	return s.read(ctx, "check that the store is durable", func(tx pgx.Tx) error {
		r, err := tx.Query(ctx, `
			SELECT name || ' = ' || setting FROM pg_settings
			WHERE name IN ('fsync', 'full_page_writes', 'data_checksums') AND setting <> 'on'
				OR name = 'synchronous_commit' AND setting = 'off' ORDER BY name`)
		if err != nil {
			return err
		}
		off, err := pgx.CollectRows(r, pgx.RowTo[string])
		if err != nil || len(off) == 0 {
			return err
		}
		return appliance.Errorf(appliance.Invalid, "the store may lose what it has acknowledged: %q", off).
			WithHint("set fsync, full_page_writes and synchronous_commit to on; checksums are chosen when a cluster is made, or by pg_checksums while it is stopped")
	})
}
