package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

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
