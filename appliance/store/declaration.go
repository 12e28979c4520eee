package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// Issued is a signed document under its number: the last declaration of a node, or the last membership.
type Issued struct {
	Number   appliance.Number
	Digest   appliance.Digest // of the content or body
	Envelope []byte
	SentAt   time.Time
}

// IssueDeclaration numbers a content and records the envelope that seal makes under the number. Where the last one issued has the same
// digest in this epoch nothing is issued, and the number is the last one's. Send only what this has returned.
func (s *Store) IssueDeclaration(ctx context.Context, node appliance.NodeID, digest appliance.Digest, wireVersion int, seal func(appliance.Number) ([]byte, error)) (number appliance.Number, issued bool, err error) {
	err = s.write(ctx, "issue a declaration", func(tx pgx.Tx) error {
		if _, err := lockNode(ctx, tx, node); err != nil {
			return err
		}
		last, err := lastIssued(ctx, tx, `
			SELECT epoch, counter, digest, envelope, issued_at FROM declaration WHERE node = $1 ORDER BY epoch DESC, counter DESC LIMIT 1`, node)
		if err != nil {
			return err
		}
		number, issued, err = next(ctx, tx, last, digest)
		if err != nil || !issued {
			return err
		}
		envelope, err := seal(number)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE declaration SET envelope = NULL WHERE node = $1 AND envelope IS NOT NULL`, node); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO declaration (node, epoch, counter, digest, wire_version, envelope, issued_at) VALUES ($1, $2, $3, $4, $5, $6, now())`,
			node, number.Epoch, number.Counter, digest, wireVersion, envelope)
		return err
	})
	if err != nil {
		return appliance.Number{}, false, err
	}
	return number, issued, nil
}

// Latest gives the last declaration issued to each node that got one.
func (s *Store) Latest(ctx context.Context) (all map[appliance.NodeID]Issued, err error) {
	err = s.read(ctx, "read the last declarations", func(tx pgx.Tx) error {
		all, err = latest(ctx, tx, "envelope")
		return err
	})
	return all, err
}

// latest gives the last declarations with what stands for their envelopes.
func latest(ctx context.Context, tx pgx.Tx, envelope string) (map[appliance.NodeID]Issued, error) {
	type declaration struct {
		Node appliance.NodeID
		numbered
	}
	found, err := rows[declaration](ctx, tx, `SELECT node, epoch, counter, digest, `+envelope+` AS envelope, issued_at FROM declaration WHERE envelope IS NOT NULL`)
	all := make(map[appliance.NodeID]Issued, len(found))
	for _, d := range found {
		all[d.Node] = d.issued()
	}
	return all, err
}

// IssueMembership does for the membership what IssueDeclaration does for a node's content.
func (s *Store) IssueMembership(ctx context.Context, body []byte, seal func(appliance.Number) ([]byte, error)) (number appliance.Number, issued bool, err error) {
	err = s.write(ctx, "issue the membership", func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		last, err := lastIssued(ctx, tx, `SELECT epoch, counter, digest, envelope, issued_at FROM membership_doc ORDER BY epoch DESC, counter DESC LIMIT 1`)
		if err != nil {
			return err
		}
		digest := appliance.DigestOf(body)
		number, issued, err = next(ctx, tx, last, digest)
		if err != nil || !issued {
			return err
		}
		envelope, err := seal(number)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE membership_doc SET envelope = NULL WHERE envelope IS NOT NULL`); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO membership_doc (epoch, counter, digest, envelope, issued_at) VALUES ($1, $2, $3, $4, now())`,
			number.Epoch, number.Counter, digest, envelope)
		return err
	})
	if err != nil {
		return appliance.Number{}, false, err
	}
	return number, issued, nil
}

// LatestMembership gives the last membership issued; its number is zero before the first.
func (s *Store) LatestMembership(ctx context.Context) (last Issued, err error) {
	err = s.read(ctx, "read the last membership", func(tx pgx.Tx) error {
		last, err = lastIssued(ctx, tx, `SELECT epoch, counter, digest, envelope, issued_at FROM membership_doc WHERE envelope IS NOT NULL`)
		return err
	})
	return last, err
}

// numbered is a row of declaration or membership_doc.
type numbered struct {
	Epoch, Counter uint64
	Digest         appliance.Digest
	Envelope       []byte
	IssuedAt       time.Time
}

func (d numbered) issued() Issued {
	return Issued{Number: appliance.Number{Epoch: d.Epoch, Counter: d.Counter}, Digest: d.Digest, Envelope: d.Envelope, SentAt: d.IssuedAt}
}

func lastIssued(ctx context.Context, tx pgx.Tx, sql string, args ...any) (Issued, error) {
	d, err := row[numbered](ctx, tx, sql, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return Issued{}, nil
	}
	return d.issued(), err
}

// next is the number after last in the mesh's epoch, or last's own where nothing has changed. The counter never falls, so that a
// number rises by either half alone.
func next(ctx context.Context, tx pgx.Tx, last Issued, digest appliance.Digest) (appliance.Number, bool, error) {
	var epoch uint64
	if err := tx.QueryRow(ctx, `SELECT epoch FROM mesh`).Scan(&epoch); err != nil {
		return appliance.Number{}, false, err
	}
	if last.Digest == digest && last.Number.Epoch == epoch {
		return last.Number, false, nil
	}
	return appliance.Number{Epoch: epoch, Counter: last.Number.Counter + 1}, true, nil
}
