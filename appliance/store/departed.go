package store

import (
	"context"
	"crypto/x509"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/resolve"
)

// DepartedLife is how long a machine that is a node no more is let in to hear so (NODE-8).
const DepartedLife = 30 * 24 * time.Hour

// Departed is a machine that was a node, by the keys it had.
type Departed struct {
	Node     appliance.NodeID
	Name     appliance.NodeName
	Identity string // Ed25519, base64
	Until    time.Time
}

// RemovedNode is what a node was when it was removed.
type RemovedNode struct {
	ID        appliance.NodeID
	Name      appliance.NodeName
	Instances []resolve.Assignment // by instance
	Revoked   int                  // certificates
}

// RemoveNode takes a node out of the records with everything that is keyed by it; its name and address are free (NODE-8). Its
// certificates are revoked, and its machine is let in to be told so for a while. The audit keeps what it was. Nothing is asked about
// what needs an instance there: a stolen machine goes at once, and the next plan says what is lacking. The hub's own node stays.
func (s *Store) RemoveNode(ctx context.Context, by By, id appliance.NodeID) (RemovedNode, error) {
	return s.removeNode(ctx, by, id, func(pgx.Tx) error { return nil })
}

// LeaveNode is RemoveNode at the node's own word.
func (s *Store) LeaveNode(ctx context.Context, by By, who Speaker) (RemovedNode, error) {
	return s.removeNode(ctx, by, who.Node, func(tx pgx.Tx) error { return who.live(ctx, tx) })
}

func (s *Store) removeNode(ctx context.Context, by By, id appliance.NodeID, may func(pgx.Tx) error) (done RemovedNode, err error) {
	err = s.change(ctx, "remove node "+string(id), by, func(tx pgx.Tx) error {
		n, err := lockedNode(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := may(tx); err != nil {
			return err
		}
		if n.Hub {
			return appliance.Errorf(appliance.Conflict, "remove node %s: it is the hub, and the mesh ends with it", n.Name).
				WithHint("mesh uninstall, on the hub itself, takes the mesh away").WithNext("mesh uninstall   (on the hub)")
		}
		done = RemovedNode{ID: n.ID, Name: n.Name}
		if done.Instances, err = rows[resolve.Assignment](ctx, tx, `SELECT instance, node, module, stopped FROM assignment WHERE node = $1 ORDER BY instance`, id); err != nil {
			return err
		}
		if done.Revoked, err = depart(ctx, tx, by, n); err != nil {
			return err
		}
		if err := endReplacing(ctx, tx, by, id); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM node WHERE id = $1`, id); err != nil { // what is keyed by it goes along
			return err
		}
		for _, a := range done.Instances {
			if err := freeInstanceName(ctx, tx, a.Instance); err != nil {
				return err
			}
		}
		return audit(ctx, tx, by, "node remove", string(n.Name), map[string]any{"node": n, "instances": done.Instances}, nil)
	})
	if err != nil {
		return RemovedNode{}, err
	}
	return done, nil
}

// lockedNode gives a node and keeps reports and everything else about it waiting. The report's row comes first, as in RecordReport.
func lockedNode(ctx context.Context, tx pgx.Tx, id appliance.NodeID) (n Node, err error) {
	if err := lockMesh(ctx, tx); err != nil {
		return n, err
	}
	if _, err := tx.Exec(ctx, `SELECT FROM report WHERE node = $1 FOR UPDATE`, id); err != nil {
		return n, err
	}
	if _, err := lockNode(ctx, tx, id); err != nil {
		return n, err
	}
	return row[Node](ctx, tx, selectNode+` WHERE n.id = $1`, id)
}

// depart ends what the machine of a node holds: its certificates are revoked, and its keys are only good to be told so. It says how many
// certificates there were.
func depart(ctx context.Context, tx pgx.Tx, by By, n Node) (revoked int, err error) {
	_, err = tx.Exec(ctx, `INSERT INTO departed (identity, node, name, bus, since, until) VALUES ($1, $2, $3, $4, $5, $6)`,
		n.Keys.Identity, n.ID, n.Name, n.Keys.Bus, by.At, by.At.Add(DepartedLife))
	if err != nil {
		return 0, err
	}
	cert, err := x509.ParseCertificate(n.Certificate)
	if err != nil {
		return 0, appliance.Errorf(appliance.Internal, "revoke the certificate of node %s: %w", n.Name, err)
	}
	done, err := tx.Exec(ctx, `
		INSERT INTO revoked (serial, at, ends_at)
		SELECT serial, $1::timestamptz, ends_at FROM (VALUES ($2::text, $3::timestamptz)) AS own (serial, ends_at)
		UNION SELECT serial, $1, ends_at FROM certificate WHERE node = $4 AND ends_at > $1
		ON CONFLICT DO NOTHING`, by.At, pki.Serial(cert), cert.NotAfter, n.ID)
	return int(done.RowsAffected()), err
}

// Departed gives the machines that are let in to be told that they are nodes no more.
func (s *Store) Departed(ctx context.Context, now time.Time) (all []Departed, err error) {
	err = s.read(ctx, "list departed machines", func(tx pgx.Tx) error {
		all, err = rows[Departed](ctx, tx, `SELECT node, name, identity, until FROM departed WHERE until > $1 AND shut IS NULL ORDER BY node, since`, now)
		return err
	})
	return all, err
}

// ShutOut lets no more in who departed under a node's id: its successor has the same subject, and nobody could tell who of them says too
// much there. It says whether there was anybody.
func (s *Store) ShutOut(ctx context.Context, by By, node appliance.NodeID) (some bool, err error) {
	err = s.change(ctx, "shut out who was node "+string(node), by, func(tx pgx.Tx) error {
		names, err := rows[struct{ Name appliance.NodeName }](ctx, tx, `UPDATE departed SET shut = $2 WHERE node = $1 AND shut IS NULL RETURNING name`, node, by.At)
		if some = len(names) > 0; err != nil || !some {
			return err
		}
		return audit(ctx, tx, by, "node shut out", string(names[0].Name), nil, map[string]any{"node": node, "machines": len(names)})
	})
	return some && err == nil, err
}

// Revoked gives the serials of certificates that hold no longer and have not ended by themselves: those that end last, at most limit.
func (s *Store) Revoked(ctx context.Context, now time.Time, limit int) (serials []string, err error) {
	err = s.read(ctx, "list revoked certificates", func(tx pgx.Tx) error {
		r, err := tx.Query(ctx, `SELECT serial FROM revoked WHERE ends_at > $1 ORDER BY ends_at DESC, serial LIMIT $2`, now, limit)
		if err == nil {
			serials, err = pgx.CollectRows(r, pgx.RowTo[string])
		}
		return err
	})
	return serials, err
}

// Forget lets go of departed machines that had their time to hear it, and of revoked certificates that have ended by themselves. It
// says whether there were any.
func (s *Store) Forget(ctx context.Context, now time.Time) (any bool, err error) {
	err = s.write(ctx, "forget departed machines", func(tx pgx.Tx) error {
		for _, sql := range []string{`DELETE FROM departed WHERE until <= $1`, `DELETE FROM revoked WHERE ends_at <= $1`} {
			gone, err := tx.Exec(ctx, sql, now)
			if err != nil {
				return err
			}
			any = any || gone.RowsAffected() > 0
		}
		return nil
	})
	return any && err == nil, err
}

// replace puts a machine in the place of the one that a node is (NODE-4): id, name, address, assignments and plans stay, and everything
// that the old machine made, held or said goes.
func replace(ctx context.Context, tx pgx.Tx, by By, e Enrolment, t Token) (Enrolled, error) {
	n, err := lockedNode(ctx, tx, t.Replaces)
	if err != nil {
		return Enrolled{}, err
	}
	if _, err := depart(ctx, tx, by, n); err != nil {
		return Enrolled{}, err
	}
	was := n
	n.Keys, n.State, n.Capabilities = e.Keys, e.State, e.Capabilities
	n.Labels = merged(n.Labels, e.Labels, t.Labels)
	if n.Certificate, err = e.Issue(n.ID, n.Name, n.Address); err != nil {
		return Enrolled{}, err
	}
	var b pgx.Batch
	b.Queue(`UPDATE node SET state = $2, labels = $3, certificate = $4, endpoint = NULL, enrolled_at = $5, mode = $6 WHERE id = $1`, n.ID, n.State, n.Labels, n.Certificate, by.At, mode(e.Adopted))
	b.Queue(`UPDATE node_key SET retired = $2 WHERE node = $1 AND retired IS NULL`, n.ID, by.At)
	queueKeys(&b, n.ID, n.Keys, by.At)
	for _, table := range []string{"node_alive", "report", "report_resource", "instance_health", "kept_data", "warning", "carried_port", "certificate_request", "certificate", "enrolment"} {
		b.Queue(`DELETE FROM `+table+` WHERE node = $1`, n.ID)
	}
	queueUnheard(&b, n.ID, n.Capabilities)
	b.Queue(`INSERT INTO enrolment (token, identity, node, at) VALUES ($1, $2, $3, $4)`, e.Token, e.Keys.Identity, n.ID, by.At)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return Enrolled{}, err
	}
	if err := audit(ctx, tx, by, "node replace", string(n.Name), map[string]any{"keys": was.Keys, "machine": was.Machine}, map[string]any{"keys": n.Keys}); err != nil {
		return Enrolled{}, err
	}
	return Enrolled{Node: n.ID, Name: n.Name, Address: n.Address, Certificate: n.Certificate}, nil
}
