package store

import (
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
)

// Token is a right to join. The records hold the public halves of the keys derived from its secret, never the secret.
type Token struct {
	ID        appliance.TokenID  `json:"id"`
	Name      appliance.NodeName `json:"name,omitempty"`     // the name its node will have; only with one use
	Replaces  appliance.NodeID   `json:"replaces,omitempty"` // the node whose place its machine takes; Name is that node's
	Labels    map[string]string  `json:"labels,omitempty"`
	Uses      int                `json:"uses"`
	Used      int                `json:"used"`
	Bus       string             `json:"bus"`   // user nkey
	Claim     ed25519.PublicKey  `json:"claim"` // signs hello and claim
	CreatedAt time.Time          `json:"createdAt"`
	ExpiresAt time.Time          `json:"expiresAt"`
	RevokedAt time.Time          `json:"revokedAt,omitzero"` // zero: not revoked
}

const selectToken = `
	SELECT id, COALESCE(name, '') AS name, COALESCE(replaces, '') AS replaces, labels, uses, used, bus, claim, created_at, expires_at,
		COALESCE(revoked_at, '0001-01-01 00:00:00+00') AS revoked_at
	FROM token`

// Tokens gives all, newest first.
func (s *Store) Tokens(ctx context.Context) (all []Token, err error) {
	err = s.read(ctx, "list tokens", func(tx pgx.Tx) error {
		all, err = rows[Token](ctx, tx, selectToken+` ORDER BY created_at DESC, id`)
		return err
	})
	return all, err
}

// Token gives one, whatever its state; its absence is refused by the reason token-unknown.
func (s *Store) Token(ctx context.Context, id appliance.TokenID) (t Token, err error) {
	err = s.read(ctx, "read token "+string(id), func(tx pgx.Tx) error {
		t, err = token(ctx, tx, id)
		return err
	})
	return t, err
}

func token(ctx context.Context, tx pgx.Tx, id appliance.TokenID) (Token, error) {
	t, err := row[Token](ctx, tx, selectToken+` WHERE id = $1`, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Token{}, enrol.Refuse(enrol.TokenUnknown, "the records hold no token "+appliance.Quote(string(id)))
	}
	return t, err
}

// CreateToken records a token; CreatedAt is the change's time. A name that is taken is refused here already. One that replaces a node takes
// the place of an earlier one that does.
func (s *Store) CreateToken(ctx context.Context, by By, t Token) error {
	return s.change(ctx, "create token", by, func(tx pgx.Tx) error {
		t.CreatedAt, t.Used, t.RevokedAt = by.At, 0, time.Time{}
		if err := checkName(ctx, tx, by, &t); err != nil {
			return err
		}
		if t.Labels == nil {
			t.Labels = map[string]string{}
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO token (id, name, replaces, labels, uses, bus, claim, created_at, expires_at)
			VALUES ($1, NULLIF($2, ''), NULLIF($3, ''), $4, $5, $6, $7, $8, $9)`,
			t.ID, string(t.Name), string(t.Replaces), t.Labels, t.Uses, t.Bus, t.Claim, t.CreatedAt, t.ExpiresAt)
		if err != nil {
			return err
		}
		return audit(ctx, tx, by, "token create", string(t.ID), nil, t)
	})
}

// checkName settles the name of a token's machine: free, or that of the node it replaces.
func checkName(ctx context.Context, tx pgx.Tx, by By, t *Token) error {
	if t.Replaces == "" {
		if t.Name == "" {
			return nil
		}
		return freeForNode(ctx, tx, t.Name)
	}
	n, err := lockedNode(ctx, tx, t.Replaces)
	if err != nil {
		return err
	}
	if n.Hub {
		return appliance.Errorf(appliance.Conflict, "replace node %s: it is the hub", n.Name).WithHint("another machine becomes the hub with a copy of the hub's state folder")
	}
	t.Name = n.Name
	return endReplacing(ctx, tx, by, n.ID)
}

// endReplacing revokes the unspent tokens with which a machine would take a node's place.
func endReplacing(ctx context.Context, tx pgx.Tx, by By, node appliance.NodeID) error {
	_, err := tx.Exec(ctx, `UPDATE token SET revoked_at = $2 WHERE replaces = $1 AND used < uses AND revoked_at IS NULL`, node, by.At)
	return err
}

// RevokeToken ends a token. Revoking one that is revoked changes nothing.
func (s *Store) RevokeToken(ctx context.Context, by By, id appliance.TokenID) error {
	return s.change(ctx, "revoke token "+string(id), by, func(tx pgx.Tx) error {
		before, err := token(ctx, tx, id)
		if err != nil {
			return err
		}
		done, err := tx.Exec(ctx, `UPDATE token SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL`, id, by.At)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
		after := before
		after.RevokedAt = by.At
		return audit(ctx, tx, by, "token revoke", string(id), before, after)
	})
}

// Record is the token as package enrol verifies with it.
func (t Token) Record() enrol.Record { return enrol.Record{ID: t.ID, Bus: t.Bus, Claim: t.Claim} }
