package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
)

// Snapshot gives intent and facts of one moment: what resolve and render work on.
func (s *Store) Snapshot(ctx context.Context) (i resolve.Intent, f render.Facts, err error) {
	err = s.read(ctx, "read intent and facts", func(tx pgx.Tx) error {
		if i, err = intent(ctx, tx); err != nil {
			return err
		}
		f, err = facts(ctx, tx)
		return err
	})
	return i, f, err
}

// Intent is the first half of Snapshot.
func (s *Store) Intent(ctx context.Context) (i resolve.Intent, err error) {
	err = s.read(ctx, "read the intent", func(tx pgx.Tx) error {
		i, err = intent(ctx, tx)
		return err
	})
	return i, err
}

// Facts is the second half of Snapshot.
func (s *Store) Facts(ctx context.Context) (f render.Facts, err error) {
	err = s.read(ctx, "read the facts", func(tx pgx.Tx) error {
		f, err = facts(ctx, tx)
		return err
	})
	return f, err
}

func intent(ctx context.Context, tx pgx.Tx) (i resolve.Intent, err error) {
	m, err := mesh(ctx, tx)
	if err != nil {
		return i, err
	}
	i = resolve.Intent{Mesh: m.ID, MeshName: m.Name, Modules: map[appliance.ModuleName]*manifest.Manifest{}}
	if i.Nodes, err = rows[resolve.Node](ctx, tx, `SELECT id, name, hub FROM node ORDER BY name`); err != nil {
		return i, err
	}
	all, err := modules(ctx, tx)
	if err != nil {
		return i, err
	}
	for _, m := range all {
		i.Modules[m.Name] = m.Manifest
	}
	if i.Assignments, err = assignments(ctx, tx); err != nil {
		return i, err
	}
	i.Ports, err = rows[resolve.Port](ctx, tx, `SELECT instance, node, name, number, origin = 'given' AS given FROM port ORDER BY instance, node, name, origin`)
	if err != nil {
		return i, err
	}
	i.Carried, err = carried(ctx, tx)
	return i, err
}

func carried(ctx context.Context, tx pgx.Tx) (map[appliance.NodeID][]ports.Bound, error) {
	type bound struct {
		Node     appliance.NodeID
		Number   uint16
		Protocol string
		Part     string
	}
	found, err := rows[bound](ctx, tx, `SELECT node, number, protocol, part FROM carried_port ORDER BY node, number, protocol`)
	if err != nil {
		return nil, err
	}
	all := map[appliance.NodeID][]ports.Bound{}
	for _, b := range found {
		all[b.Node] = append(all[b.Node], ports.Bound{Number: b.Number, Protocol: b.Protocol, Holder: "the " + b.Part + " (carried)"})
	}
	return all, nil
}

func facts(ctx context.Context, tx pgx.Tx) (f render.Facts, err error) {
	m, err := mesh(ctx, tx)
	if err != nil {
		return f, err
	}
	f = render.Facts{Mesh: m.ID, Range: m.Range, Nodes: map[appliance.NodeID]render.NodeFacts{}}
	type node struct {
		ID appliance.NodeID
		render.NodeFacts
	}
	all, err := rows[node](ctx, tx, `SELECT n.id, n.name, o.address, n.state FROM node AS n JOIN overlay_address AS o ON o.node = n.id`)
	for _, n := range all {
		f.Nodes[n.ID] = n.NodeFacts
	}
	return f, err
}

// judge refuses a change after which the intent would no longer resolve.
func judge(ctx context.Context, tx pgx.Tx) error {
	i, err := intent(ctx, tx)
	if err != nil {
		return err
	}
	_, err = resolve.Resolve(i)
	return err
}
