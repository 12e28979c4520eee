package store

import (
	"bytes"
	"context"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

// Genesis is everything the first records hold. The hub's node is made before them, with its keys, and spends no token.
type Genesis struct {
	Mesh        Mesh // Epoch and FoundedAt are set by Found
	Hub         Hub
	Operator    Operator
	Modules     []*manifest.Manifest // the base bundles
	Assignments []resolve.Assignment // of the base bundles, on the hub
}

// Hub is the node on which genesis runs.
type Hub struct {
	ID           appliance.NodeID
	Name         appliance.NodeName
	State        string // its installation folder
	Endpoint     string // host:port of its overlay socket
	Address      netip.Addr
	Keys         wire.PublicKeys
	Certificate  []byte // DER
	Capabilities wire.Capabilities
}

// Found makes the first records in one transaction (GEN-2). Where they exist for the same mesh it changes nothing; where they are
// another mesh's it refuses.
func (s *Store) Found(ctx context.Context, by By, g Genesis) error {
	return s.change(ctx, "found the mesh", by, func(tx pgx.Tx) error {
		winner, err := ensureAuthority(ctx, tx, by, g.Mesh.Authority)
		if err != nil {
			return err
		}
		made, err := tx.Exec(ctx, `
			INSERT INTO mesh (id, name, range, overlay_port, endpoints, signing, sealing, bus, bus_modules, founded_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING`,
			g.Mesh.ID, g.Mesh.Name, g.Mesh.Range, g.Mesh.OverlayPort, g.Mesh.Endpoints, g.Mesh.Signing, g.Mesh.Sealing, g.Mesh.Bus, g.Mesh.BusModules, by.At)
		if err != nil {
			return err
		}
		m, err := mesh(ctx, tx)
		switch {
		case err != nil:
			return err
		case m.ID != g.Mesh.ID:
			return appliance.Errorf(appliance.Conflict, "found the mesh: the records are those of mesh %s (%s)", m.Name, m.ID).
				WithHint("one store holds one mesh; name another database")
		case !bytes.Equal(winner, g.Mesh.Authority):
			return appliance.Errorf(appliance.Conflict, "found the mesh: the records hold another authority").
				WithHint("the first authority recorded is the mesh's; issue the hub's certificate from it")
		case made.RowsAffected() == 0:
			return nil
		}
		return found(ctx, tx, by, g, m)
	})
}

func found(ctx context.Context, tx pgx.Tx, by By, g Genesis, m Mesh) error {
	if err := audit(ctx, tx, by, "mesh found", string(m.ID), nil, m); err != nil {
		return err
	}
	if err := addOperator(ctx, tx, by, g.Operator); err != nil {
		return err
	}
	h := g.Hub
	err := addNode(ctx, tx, by, newNode{ID: h.ID, Name: h.Name, Hub: true, Mode: mode(false), State: h.State, Endpoint: h.Endpoint, Address: h.Address,
		Keys: h.Keys, Certificate: h.Certificate, Capabilities: h.Capabilities})
	if err != nil {
		return err
	}
	for _, module := range g.Modules {
		if err := register(ctx, tx, by, module); err != nil {
			return err
		}
	}
	for _, a := range g.Assignments {
		if err := assign(ctx, tx, by, a); err != nil {
			return err
		}
	}
	return judge(ctx, tx)
}
