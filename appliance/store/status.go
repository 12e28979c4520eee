package store

import (
	"context"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// NodeState is what is known of a node against what was sent to it.
type NodeState struct {
	Node     appliance.NodeID
	Name     appliance.NodeName
	Hub      bool
	Mode     string
	Address  netip.Addr
	Labels   map[string]string
	Says     wire.Capabilities // with its last alive
	LastSeen time.Time         // zero: never

	Held      bool      // it changes nothing
	HeldUntil time.Time // zero: until it is resumed
	Drained   bool

	Sent     appliance.Number // the last declaration; zero: none yet
	Declared appliance.Digest
	SentAt   time.Time

	About      appliance.Number // the declaration of the last account; zero: none yet
	Reported   appliance.Digest
	Outcome    string // clean, refused, failed; empty: none yet
	ReportedAt time.Time

	Outcomes []wire.Outcome // in the order of the account
	Health   []wire.Health  // by instance
	Kept     []wire.Kept
	Warnings []wire.Warning
}

// Current says whether the node's last account names the digest last sent to it; an empty digest never is.
func (n NodeState) Current() bool { return n.Declared != "" && n.Declared == n.Reported }

// NodeStates gives all nodes, the hub first, then by name, from one snapshot.
func (s *Store) NodeStates(ctx context.Context) (all []NodeState, err error) {
	err = s.read(ctx, "read the nodes' states", func(tx pgx.Tx) error {
		if all, err = nodeStates(ctx, tx); err != nil {
			return err
		}
		at := map[appliance.NodeID]*NodeState{}
		for i := range all {
			at[all[i].Node] = &all[i]
		}
		return addParts(ctx, tx, at)
	})
	return all, err
}

func nodeStates(ctx context.Context, tx pgx.Tx) ([]NodeState, error) {
	r, err := tx.Query(ctx, `
		SELECT n.id, n.name, n.hub, n.mode, o.address, n.labels, a.capabilities, COALESCE(a.last_seen, '0001-01-01 00:00:00+00'),
			COALESCE(n.held_until > now(), false), COALESCE(NULLIF(n.held_until, 'infinity'), '0001-01-01 00:00:00+00'), n.drained,
			COALESCE(d.epoch, 0), COALESCE(d.counter, 0), COALESCE(d.digest, ''), COALESCE(d.issued_at, '0001-01-01 00:00:00+00'),
			COALESCE(r.epoch, 0), COALESCE(r.counter, 0), COALESCE(r.digest, ''), COALESCE(r.outcome, ''), COALESCE(r.made_at, '0001-01-01 00:00:00+00')
		FROM node AS n JOIN node_alive AS a ON a.node = n.id JOIN report AS r ON r.node = n.id JOIN overlay_address AS o ON o.node = n.id
		LEFT JOIN declaration AS d ON d.node = n.id AND d.envelope IS NOT NULL
		ORDER BY n.hub DESC, n.name`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, func(r pgx.CollectableRow) (n NodeState, err error) {
		return n, r.Scan(&n.Node, &n.Name, &n.Hub, &n.Mode, &n.Address, &n.Labels, &n.Says, &n.LastSeen, &n.Held, &n.HeldUntil, &n.Drained, &n.Sent.Epoch, &n.Sent.Counter, &n.Declared, &n.SentAt,
			&n.About.Epoch, &n.About.Counter, &n.Reported, &n.Outcome, &n.ReportedAt)
	})
}

// addParts asks for the parts of every account at once.
func addParts(ctx context.Context, tx pgx.Tx, at map[appliance.NodeID]*NodeState) error {
	type outcome struct {
		Node appliance.NodeID
		wire.Outcome
	}
	outcomes, err := rows[outcome](ctx, tx, `SELECT node, id, instance, kind, status, step, error, drift, log FROM report_resource ORDER BY node, position`)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		at[o.Node].Outcomes = append(at[o.Node].Outcomes, o.Outcome)
	}
	type health struct {
		Node appliance.NodeID
		wire.Health
	}
	states, err := rows[health](ctx, tx, `SELECT node, instance, state, since, why, log FROM instance_health ORDER BY node, instance`)
	if err != nil {
		return err
	}
	for _, h := range states {
		at[h.Node].Health = append(at[h.Node].Health, h.Health)
	}
	type kept struct {
		Node appliance.NodeID
		wire.Kept
	}
	data, err := rows[kept](ctx, tx, `SELECT node, instance, path, bytes, COALESCE(since, '0001-01-01 00:00:00+00') AS since FROM kept_data ORDER BY node, path`)
	if err != nil {
		return err
	}
	for _, k := range data {
		at[k.Node].Kept = append(at[k.Node].Kept, k.Kept)
	}
	type warning struct {
		Node appliance.NodeID
		wire.Warning
	}
	warnings, err := rows[warning](ctx, tx, `SELECT node, code, severity, text, remedy FROM warning ORDER BY node, position`)
	for _, w := range warnings {
		at[w.Node].Warnings = append(at[w.Node].Warnings, w.Warning)
	}
	return err
}
