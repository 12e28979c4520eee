package store

import (
	"context"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Node is a machine of the mesh with its live keys.
type Node struct {
	ID           appliance.NodeID   `json:"id"`
	Name         appliance.NodeName `json:"name"`
	Hub          bool               `json:"hub"`
	Mode         string             `json:"mode"` // converged, adopted
	Labels       map[string]string  `json:"labels,omitempty"`
	State        string             `json:"state"`              // its installation folder
	Endpoint     string             `json:"endpoint,omitempty"` // host:port of its overlay socket, where known
	Address      netip.Addr         `json:"address"`
	Keys         wire.PublicKeys    `json:"keys"`
	Certificate  []byte             `json:"certificate"` // DER
	EnrolledAt   time.Time          `json:"enrolledAt"`
	LastSeen     time.Time          `json:"lastSeen,omitzero"`    // zero: never
	ConnectedAt  time.Time          `json:"connectedAt,omitzero"` // its first heartbeat; zero: none yet
	Run          string             `json:"run,omitempty"`        // of the last heartbeat
	Machine      string             `json:"machine,omitempty"`    // of the last heartbeat
	Capabilities wire.Capabilities  `json:"capabilities"`
}

// The keys of a node as one JSON value in the wire's form.
const liveKeys = `
	(SELECT json_object_agg(kind, public) FROM node_key AS k WHERE k.node = n.id AND k.retired IS NULL)`

const selectNode = `
	SELECT n.id, n.name, n.hub, n.mode, n.labels, n.state, COALESCE(n.endpoint, '') AS endpoint, o.address,` + liveKeys + ` AS keys,
		n.certificate, n.enrolled_at, COALESCE(a.last_seen, '0001-01-01 00:00:00+00') AS last_seen,
		COALESCE(a.connected_at, '0001-01-01 00:00:00+00') AS connected_at, a.run, a.machine, a.capabilities
	FROM node AS n JOIN overlay_address AS o ON o.node = n.id JOIN node_alive AS a ON a.node = n.id`

// Nodes gives all, the hub first, then by name.
func (s *Store) Nodes(ctx context.Context) (all []Node, err error) {
	err = s.read(ctx, "list nodes", func(tx pgx.Tx) error {
		all, err = rows[Node](ctx, tx, selectNode+` ORDER BY n.hub DESC, n.name`)
		return err
	})
	return all, err
}

// newNode is what addNode records, whether the node is the hub at genesis or a joiner.
type newNode struct {
	ID           appliance.NodeID
	Name         appliance.NodeName
	Hub          bool
	Mode         string
	Labels       map[string]string
	State        string
	Endpoint     string
	Address      netip.Addr
	Keys         wire.PublicKeys
	Certificate  []byte
	Capabilities wire.Capabilities
}

// addNode records a node, its keys, address and name. What is taken was refused before; the constraints stand behind that.
func addNode(ctx context.Context, tx pgx.Tx, by By, n newNode) error {
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	var b pgx.Batch
	b.Queue(`INSERT INTO name (name, node) VALUES ($1, $2)`, n.Name, n.ID)
	b.Queue(`
		INSERT INTO node (id, name, hub, mode, labels, state, endpoint, certificate, enrolled_at)
		VALUES ($1, $2, $3, $4, $5, $6, NULLIF($7, ''), $8, $9)`,
		n.ID, n.Name, n.Hub, n.Mode, n.Labels, n.State, n.Endpoint, n.Certificate, by.At)
	queueKeys(&b, n.ID, n.Keys, by.At)
	b.Queue(`INSERT INTO overlay_address (address, node) VALUES ($1, $2)`, n.Address, n.ID)
	queueUnheard(&b, n.ID, n.Capabilities)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	return audit(ctx, tx, by, "node enrol", string(n.Name), nil, map[string]any{
		"id": n.ID, "name": n.Name, "hub": n.Hub, "mode": n.Mode, "address": n.Address, "keys": n.Keys, "labels": n.Labels, "capabilities": n.Capabilities})
}

func queueKeys(b *pgx.Batch, node appliance.NodeID, k wire.PublicKeys, since time.Time) {
	b.Queue(`
		INSERT INTO node_key (node, kind, public, since)
		VALUES ($1, 'identity', $2, $7), ($1, 'overlay', $3, $7), ($1, 'sealing', $4, $7), ($1, 'tls', $5, $7), ($1, 'bus', $6, $7)`,
		node, k.Identity, k.Overlay, k.Sealing, k.TLS, k.Bus, since)
}

// queueUnheard makes the rows of a machine that has said nothing yet.
func queueUnheard(b *pgx.Batch, node appliance.NodeID, c wire.Capabilities) {
	b.Queue(`INSERT INTO node_alive (node, capabilities) VALUES ($1, $2)`, node, c)
	b.Queue(`INSERT INTO report (node) VALUES ($1)`, node)
}

// mode is how the records name it.
func mode(adopted bool) string {
	if adopted {
		return "adopted"
	}
	return "converged"
}
