package store

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

// Snapshot is the records of one moment as far as composing needs them: what resolve and render work on, and what came of it last.
type Snapshot struct {
	Epoch    uint64
	Intent   resolve.Intent
	Facts    render.Facts
	Approved map[appliance.NodeID]ApprovedPlan
	Issued   map[appliance.NodeID]Issued // the last declarations, without their envelopes
}

// Snapshot reads them.
func (s *Store) Snapshot(ctx context.Context) (r Snapshot, err error) {
	err = s.read(ctx, "read the records", func(tx pgx.Tx) error {
		r, err = snapshot(ctx, tx)
		return err
	})
	return r, err
}

func snapshot(ctx context.Context, tx pgx.Tx) (r Snapshot, err error) {
	m, err := mesh(ctx, tx)
	if err != nil {
		return r, err
	}
	r.Epoch = m.Epoch
	if r.Intent, err = intent(ctx, tx); err != nil {
		return r, err
	}
	if r.Facts, err = facts(ctx, tx); err != nil {
		return r, err
	}
	if r.Approved, err = approvedPlans(ctx, tx); err != nil {
		return r, err
	}
	r.Issued, err = latest(ctx, tx, "''::bytea")
	return r, err
}

// Intent is a part of Snapshot.
func (s *Store) Intent(ctx context.Context) (i resolve.Intent, err error) {
	err = s.read(ctx, "read the intent", func(tx pgx.Tx) error {
		i, err = intent(ctx, tx)
		return err
	})
	return i, err
}

// Facts is a part of Snapshot.
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
	i.Nodes, err = rows[resolve.Node](ctx, tx, `
		SELECT n.id, n.name, n.hub, COALESCE(NULLIF((a.capabilities ->> 'os') || '/' || (a.capabilities ->> 'architecture'), '/'), '') AS platform,
			COALESCE(a.capabilities ->> 'runtime', '') AS runtime, COALESCE(n.held_until > now(), false) AS held, n.drained
		FROM node AS n JOIN node_alive AS a ON a.node = n.id ORDER BY n.name`)
	if err != nil {
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
	i.Settings, err = rows[resolve.Setting](ctx, tx, `SELECT module, COALESCE(node, '') AS node, name, value FROM setting ORDER BY module, node, name`)
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
	f = render.Facts{Mesh: m.ID, Range: m.Range, Authority: m.Authority, Nodes: map[appliance.NodeID]render.NodeFacts{}}
	if f.Artifacts, err = artifactStore(ctx, tx, m.ID); err != nil {
		return f, err
	}
	type node struct {
		ID      appliance.NodeID
		Name    appliance.NodeName
		Address netip.Addr
		State   string
		Adopted bool
	}
	all, err := rows[node](ctx, tx, `SELECT n.id, n.name, o.address, n.state, n.mode = 'adopted' AS adopted FROM node AS n JOIN overlay_address AS o ON o.node = n.id`)
	if err != nil {
		return f, err
	}
	for _, n := range all {
		f.Nodes[n.ID] = render.NodeFacts{Name: n.Name, Address: n.Address, State: n.State, Adopted: n.Adopted}
	}
	issued, err := presentCertificates(ctx, tx)
	for _, c := range issued {
		n := f.Nodes[c.Node]
		if n.Certificates == nil {
			n.Certificates = map[render.CertificateKey]render.Certificate{}
		}
		n.Certificates[render.CertificateKey{Instance: c.Instance, Name: c.Name}] = render.Certificate{Names: c.Names, DER: c.DER}
		f.Nodes[c.Node] = n
	}
	return f, err
}

// artifactStore is where the hub says it serves artifacts; without an address while it has not said it.
func artifactStore(ctx context.Context, tx pgx.Tx, mesh appliance.MeshID) (at wire.ArtifactStore, err error) {
	type place struct {
		Name   appliance.NodeName
		Number uint16
	}
	found, err := rows[place](ctx, tx, `SELECT n.name, c.number FROM carried_port AS c JOIN node AS n ON n.id = c.node AND n.hub WHERE c.part = 'artifacts'`)
	if err != nil || len(found) == 0 {
		return at, err
	}
	return wire.ArtifactStore{Address: fmt.Sprintf("%s.internal:%d", found[0].Name, found[0].Number), Name: pki.ArtifactsName(mesh)}, nil
}

// judge refuses a change after which the intent would no longer resolve.
func judge(ctx context.Context, tx pgx.Tx) error {
	return judgeChanged(ctx, tx, func(resolve.Assignment) bool { return false })
}

// judgeChanged is judge, and refuses the assignments that are made, or made otherwise, where their node cannot carry them.
func judgeChanged(ctx context.Context, tx pgx.Tx, changes func(resolve.Assignment) bool) error {
	i, err := intent(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := resolve.Resolve(i); err != nil {
		return err
	}
	return i.Fits(changes)
}
