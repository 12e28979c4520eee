package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// NonceLife is how long a request's nonce is remembered. A request whose time is further off is refused before it comes here.
const NonceLife = 24 * time.Hour

// Change is one row of the audit.
type Change struct {
	ID      int64           `json:"id"`
	At      time.Time       `json:"at"`
	Who     string          `json:"who"`
	What    string          `json:"what"`    // noun and verb: "token create"
	Subject string          `json:"subject"` // the thing changed
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
}

// maxAudit bounds one answer.
const maxAudit = 1000

// Audit gives the last changes since a time, oldest first, at most limit (and at most 1000).
func (s *Store) Audit(ctx context.Context, since time.Time, limit int) (changes []Change, err error) {
	if limit <= 0 || limit > maxAudit {
		limit = maxAudit
	}
	err = s.read(ctx, "read the audit", func(tx pgx.Tx) error {
		changes, err = rows[Change](ctx, tx, `
			SELECT id, at, who, what, subject, before, after FROM (
				SELECT id, at, who, what, subject, before, after FROM audit WHERE at >= $1 ORDER BY id DESC LIMIT $2
			) AS last ORDER BY id`, since, limit)
		return err
	})
	return changes, err
}

// RecordAction audits what somebody had done that changes no record, and counts the request.
func (s *Store) RecordAction(ctx context.Context, by By, what, subject string, details any) error {
	return s.change(ctx, what+" "+subject, by, func(tx pgx.Tx) error { return audit(ctx, tx, by, what, subject, nil, details) })
}

// audit records one change beside the change itself. Nil before: the thing is new. Nil after: it is gone.
func audit(ctx context.Context, tx pgx.Tx, by By, what, subject string, before, after any) error {
	old, err := document(before)
	if err != nil {
		return err
	}
	now, err := document(after)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO audit (at, who, what, subject, before, after) VALUES ($1, $2, $3, $4, $5, $6)`,
		by.At, by.Who, what, subject, old, now)
	return err
}

// document is v as JSON text, null for nil.
func document(v any) (*string, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	text := string(b)
	return &text, nil
}

// spendNonce refuses a request that was carried out before. A refused change leaves its nonce unspent: it was never carried out.
func spendNonce(ctx context.Context, tx pgx.Tx, by By) error {
	if by.Who == "" || by.At.IsZero() {
		return appliance.Errorf(appliance.Internal, "change the records: nobody, or no time, stands behind the change")
	}
	if by.Nonce == "" {
		return nil
	}
	if _, err := tx.Exec(ctx, `DELETE FROM request_nonce WHERE expires_at < $1`, by.At); err != nil {
		return err
	}
	done, err := tx.Exec(ctx, `INSERT INTO request_nonce (who, nonce, expires_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		by.Who, by.Nonce, by.At.Add(NonceLife))
	if err != nil {
		return err
	}
	if done.RowsAffected() == 0 {
		return appliance.Errorf(appliance.Conflict, "the request was carried out before").WithReason(Replayed).
			WithHint("a signed request counts once; send a new one")
	}
	return nil
}
