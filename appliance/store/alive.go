package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Seen is one heartbeat, heard at a time of the controller's clock.
type Seen struct {
	Speaker
	At    time.Time
	Alive wire.Alive
}

// Seen moves last_seen and what else heartbeats say, and touches nothing else (NODE-6). Of several of one node the last in the list
// counts; nodes the records do not know are passed over, and machines that were replaced.
func (s *Store) Seen(ctx context.Context, heard []Seen) error {
	last := map[appliance.NodeID]Seen{}
	for _, h := range heard {
		last[h.Node] = h
	}
	var nodes, identities, runs, machines, capabilities []string
	var times []time.Time
	for _, h := range last {
		can, err := json.Marshal(h.Alive.Capabilities)
		if err != nil {
			return explain("record heartbeats", err)
		}
		nodes, times, capabilities = append(nodes, string(h.Node)), append(times, h.At), append(capabilities, string(can))
		identities = append(identities, base64.StdEncoding.EncodeToString(h.Identity))
		runs, machines = append(runs, plain(h.Alive.Run)), append(machines, plain(h.Alive.Machine))
	}
	if len(nodes) == 0 {
		return nil
	}
	return s.write(ctx, "record heartbeats", func(tx pgx.Tx) error {
		// In the order of ids, so that two batches never wait for each other in a circle.
		_, err := tx.Exec(ctx, `
			WITH heard AS (
				SELECT a.node, s.at, s.run, s.machine, s.capabilities
				FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[]) AS s (node, at, run, machine, capabilities, identity)
				JOIN node_key AS k ON k.node = s.node AND k.kind = 'identity' AND k.retired IS NULL AND k.public = s.identity
				JOIN node_alive AS a ON a.node = s.node ORDER BY a.node FOR NO KEY UPDATE OF a
			)
			UPDATE node_alive AS a SET last_seen = h.at, connected_at = COALESCE(a.connected_at, h.at), run = h.run, machine = h.machine,
				capabilities = CASE WHEN a.capabilities::text = h.capabilities THEN a.capabilities ELSE h.capabilities::json END
			FROM heard AS h WHERE a.node = h.node`, nodes, times, runs, machines, capabilities, identities)
		return err
	})
}

// plain takes out of a node's text the one character PostgreSQL cannot hold.
func plain(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }
