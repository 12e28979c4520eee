package store

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/wire"
)

func queueRequests(b *pgx.Batch, node appliance.NodeID, sequence uint64, requests []wire.CertificateRequest) {
	b.Queue(`UPDATE report SET requests = $2 WHERE node = $1`, node, sequence)
	b.Queue(`DELETE FROM certificate_request WHERE node = $1`, node)
	for _, q := range requests {
		if _, err := appliance.ParseName[string]("certificate", q.Name); err != nil {
			continue // no manifest has such a name
		}
		if _, err := appliance.ParseName[string]("instance", string(q.Instance)); err != nil {
			continue
		}
		b.Queue(`INSERT INTO certificate_request (node, instance, name, request) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, node, q.Instance, q.Name, q.Request)
	}
}

// CertificateRequests gives what nodes ask for, replaced whole with what each said last.
func (s *Store) CertificateRequests(ctx context.Context) (all []certificates.Request, err error) {
	err = s.read(ctx, "read certificate requests", func(tx pgx.Tx) error {
		all, err = rows[certificates.Request](ctx, tx, `
			SELECT node, instance, name, request FROM certificate_request ORDER BY node, instance, name`)
		return err
	})
	return all, err
}

// Certificates gives the present ones.
func (s *Store) Certificates(ctx context.Context) (all []certificates.Certificate, err error) {
	err = s.read(ctx, "read certificates", func(tx pgx.Tx) error {
		all, err = presentCertificates(ctx, tx)
		return err
	})
	return all, err
}

func presentCertificates(ctx context.Context, tx pgx.Tx) ([]certificates.Certificate, error) {
	return rows[certificates.Certificate](ctx, tx, `
		SELECT node, instance, name, names, request, der, serial, issued_at, ends_at,
			(SELECT count(DISTINCT o.request) FROM certificate AS o WHERE o.node = c.node AND o.instance = c.instance AND o.name = c.name
				AND o.issued_at > c.issued_at - interval '1 day' AND o.request <> c.request) AS keys
		FROM certificate AS c WHERE present ORDER BY node, instance, name`)
}

// IssueCertificate records a certificate in the place of the present one, unless that is for the same request and names already and
// renew is false: two who issue together agree on the first. It says whether anything changed.
func (s *Store) IssueCertificate(ctx context.Context, by By, c certificates.Certificate, renew bool) (issued bool, err error) {
	err = s.change(ctx, "issue certificate "+c.Name+" of instance "+string(c.Instance), by, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1 FROM node WHERE id = $1 FOR NO KEY UPDATE`, c.Node); err != nil {
			return err
		}
		all, err := presentCertificates(ctx, tx)
		if err != nil {
			return err
		}
		for _, have := range all {
			if !renew && have.Node == c.Node && have.Instance == c.Instance && have.Name == c.Name && bytes.Equal(have.Request, c.Request) && slices.Equal(have.Names, c.Names) {
				return nil
			}
		}
		if _, err := tx.Exec(ctx, `UPDATE certificate SET present = false WHERE node = $1 AND instance = $2 AND name = $3 AND present`, c.Node, c.Instance, c.Name); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO certificate (node, instance, name, names, request, der, serial, issued_at, ends_at, present) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, true)`,
			c.Node, c.Instance, c.Name, c.Names, c.Request, c.DER, c.Serial, c.IssuedAt, c.EndsAt)
		if err != nil {
			return err
		}
		issued = true
		return audit(ctx, tx, by, "certificate issue", string(c.Instance)+"@"+string(c.Node), nil, map[string]any{"name": c.Name, "names": c.Names, "serial": c.Serial, "ends": c.EndsAt})
	})
	return issued && err == nil, err
}
