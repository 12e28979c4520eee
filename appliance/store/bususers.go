package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance/busauth"
)

// BusUsers gives what the bus users are composed from. A token that has ended keeps its user for seven days, so that the refusal
// can be said by name (NODE-2).
func (s *Store) BusUsers(ctx context.Context) (r busauth.Records, err error) {
	err = s.read(ctx, "read the bus users", func(tx pgx.Tx) error {
		m, err := mesh(ctx, tx)
		if err != nil {
			return err
		}
		r.Controller = busauth.Controller{ControlKey: m.Bus, ModulesKey: m.BusModules}
		if err := tx.QueryRow(ctx, `SELECT id FROM node WHERE hub`).Scan(&r.Holder); err != nil {
			return err
		}
		r.Nodes, err = rows[busauth.Node](ctx, tx, `
			SELECT n.id, COALESCE(k.public, '') AS bus
			FROM node AS n LEFT JOIN node_key AS k ON k.node = n.id AND k.kind = 'bus' AND k.retired IS NULL ORDER BY n.id`)
		if err != nil {
			return err
		}
		r.Tokens, err = rows[busauth.Token](ctx, tx, `
			SELECT id, bus FROM token WHERE now() < LEAST(expires_at, revoked_at) + interval '7 days' ORDER BY id`)
		if err != nil {
			return err
		}
		r.Operators, err = rows[busauth.Operator](ctx, tx, `SELECT id, bus FROM operator ORDER BY id`)
		if err != nil {
			return err
		}
		r.Departed, err = rows[busauth.Departed](ctx, tx, `SELECT node, bus FROM departed WHERE until > now() AND shut IS NULL ORDER BY node, bus`)
		return err
	})
	return r, err
}
