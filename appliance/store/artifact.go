package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// GrantArtifact records that an operator was given leave to push: it is not kept, but who had it is.
func (s *Store) GrantArtifact(ctx context.Context, by By, of string, grant any) error {
	return s.change(ctx, "grant a push of "+of, by, func(tx pgx.Tx) error {
		return audit(ctx, tx, by, "artifact grant", of, nil, grant)
	})
}

// KeptArtifacts gives the artifacts within reach: those that a registered module names, and those of each node's approved plan and of
// as many approved before it as earlier says.
func (s *Store) KeptArtifacts(ctx context.Context, earlier int) (all []appliance.Digest, err error) {
	err = s.read(ctx, "read which artifacts are kept", func(tx pgx.Tx) error {
		r, err := tx.Query(ctx, `
			SELECT DISTINCT digest FROM (
				SELECT jsonb_path_query(manifest::jsonb, '$.artifacts.*.digest') #>> '{}' AS digest FROM module
				UNION ALL
				SELECT jsonb_path_query(content::jsonb, '$.instances[*].artifacts.*.digest') #>> '{}' FROM plan AS p
				WHERE number >= COALESCE((SELECT number FROM plan WHERE node = p.node AND approved), 0) - $1
			) AS named ORDER BY digest`, earlier)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(r, pgx.RowTo[appliance.Digest])
		return err
	})
	return all, err
}
