package store

import (
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// Operator is a person, or a program that acts as one. Keys are public halves.
type Operator struct {
	ID      appliance.OperatorID   `json:"id"`
	Name    appliance.OperatorName `json:"name"`
	Role    string                 `json:"role"` // admin, viewer
	Signing ed25519.PublicKey      `json:"signing"`
	Bus     string                 `json:"bus"` // user nkey
	AddedAt time.Time              `json:"addedAt"`
}

// Operators gives all, by name.
func (s *Store) Operators(ctx context.Context) (all []Operator, err error) {
	err = s.read(ctx, "list operators", func(tx pgx.Tx) error {
		all, err = rows[Operator](ctx, tx, `SELECT id, name, role, signing, bus, added_at FROM operator ORDER BY name`)
		return err
	})
	return all, err
}

// Operator gives one; NotFound when there is none.
func (s *Store) Operator(ctx context.Context, id appliance.OperatorID) (o Operator, err error) {
	err = s.read(ctx, "read operator "+string(id), func(tx pgx.Tx) error {
		o, err = row[Operator](ctx, tx, `SELECT id, name, role, signing, bus, added_at FROM operator WHERE id = $1`, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.NotFound, "read operator %s: there is none", appliance.Quote(string(id))).WithNext("mesh operator list")
		}
		return err
	})
	return o, err
}

// AddOperator records a new operator; AddedAt is the change's time.
func (s *Store) AddOperator(ctx context.Context, by By, o Operator) error {
	return s.change(ctx, "add operator "+string(o.Name), by, func(tx pgx.Tx) error { return addOperator(ctx, tx, by, o) })
}

func addOperator(ctx context.Context, tx pgx.Tx, by By, o Operator) error {
	o.AddedAt = by.At
	_, err := tx.Exec(ctx, `INSERT INTO operator (id, name, role, signing, bus, added_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		o.ID, o.Name, o.Role, o.Signing, o.Bus, o.AddedAt)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "operator add", string(o.Name), nil, o)
}
