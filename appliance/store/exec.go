package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// NoteExec records that an operator runs a command beside an instance (OPS-2). Nothing else changes.
func (s *Store) NoteExec(ctx context.Context, by By, instance appliance.InstanceName, node appliance.NodeName, command []string) error {
	return s.change(ctx, "exec in "+string(instance), by, func(tx pgx.Tx) error {
		var at appliance.NodeID
		if err := tx.QueryRow(ctx, `SELECT id FROM node WHERE name = $1`, node).Scan(&at); err != nil {
			return err
		}
		return audit(ctx, tx, by, "module exec", string(instance)+"@"+string(at), nil, map[string]any{"command": command})
	})
}
