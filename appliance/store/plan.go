package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
)

// ApprovedPlan is the plan of a node that is rendered now, and who approved it when.
type ApprovedPlan struct {
	Number  uint64 // rises by one with each plan of the node
	Content []byte
	Digest  appliance.Digest // of the content
	By      string
	At      time.Time
}

// Plan reads the content: only where it is needed, since that takes longer than anything else about many plans.
func (a ApprovedPlan) Plan() (resolve.Plan, error) { return resolve.ParsePlan(a.Content) }

// ApprovePlans makes these the approved plans of their nodes; earlier ones are kept. A plan that is approved already stays as it is.
func (s *Store) ApprovePlans(ctx context.Context, by By, plans map[appliance.NodeID]resolve.Plan) error {
	return s.change(ctx, "approve plans", by, func(tx pgx.Tx) error { return approveAll(ctx, tx, by, plans) })
}

func approveAll(ctx context.Context, tx pgx.Tx, by By, plans map[appliance.NodeID]resolve.Plan) error {
	for _, node := range slices.Sorted(maps.Keys(plans)) { // one order of locks for everybody
		if err := approve(ctx, tx, by, node, plans[node].Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func approve(ctx context.Context, tx pgx.Tx, by By, node appliance.NodeID, content []byte) error {
	name, err := lockNode(ctx, tx, node)
	if err != nil {
		return err
	}
	type kept struct {
		Number   uint64
		Digest   appliance.Digest
		Approved bool
	}
	known, err := rows[kept](ctx, tx, `
		(SELECT number, digest, approved FROM plan WHERE node = $1 AND approved)
		UNION (SELECT number, digest, approved FROM plan WHERE node = $1 ORDER BY number DESC LIMIT 1) ORDER BY number`, node)
	if err != nil {
		return err
	}
	var before any
	number, digest := uint64(1), appliance.DigestOf(content)
	for _, k := range known {
		number = k.Number + 1
		if k.Approved {
			before = map[string]any{"number": k.Number, "digest": k.Digest}
			if k.Digest == digest {
				return nil
			}
		}
	}
	if _, err := tx.Exec(ctx, `UPDATE plan SET approved = false WHERE node = $1 AND approved`, node); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO plan (node, number, content, digest, approved, approved_by, approved_at) VALUES ($1, $2, $3, $4, true, $5, $6)`,
		node, number, string(content), digest, by.Who, by.At)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "plan approve", name, before, map[string]any{"number": number, "digest": digest})
}

// lockNode makes the numbering of one node's plans and declarations one after the other; it gives the node's name.
func lockNode(ctx context.Context, tx pgx.Tx, node appliance.NodeID) (name string, err error) {
	err = tx.QueryRow(ctx, `SELECT name FROM node WHERE id = $1 FOR NO KEY UPDATE`, node).Scan(&name)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(node))).WithNext("mesh node list")
	}
	return name, err
}

// ApprovedPlans gives the approved plan of every node that has one.
func (s *Store) ApprovedPlans(ctx context.Context) (all map[appliance.NodeID]ApprovedPlan, err error) {
	err = s.read(ctx, "read the approved plans", func(tx pgx.Tx) error {
		all, err = approvedPlans(ctx, tx)
		return err
	})
	return all, err
}

// Plans gives a node's plans from a number downwards, at most limit; zero: from the last one.
func (s *Store) Plans(ctx context.Context, node appliance.NodeID, from uint64, limit int) (all []ApprovedPlan, err error) {
	err = s.read(ctx, "read a node's plans", func(tx pgx.Tx) error {
		all, err = rows[ApprovedPlan](ctx, tx, `
			SELECT number, content::text AS content, digest, approved_by AS by, approved_at AS at FROM plan
			WHERE node = $1 AND ($2 = 0 OR number <= $2) ORDER BY number DESC LIMIT $3`, node, from, limit)
		return err
	})
	return all, err
}

func approvedPlans(ctx context.Context, tx pgx.Tx) (map[appliance.NodeID]ApprovedPlan, error) {
	type approved struct {
		Node appliance.NodeID
		ApprovedPlan
	}
	found, err := rows[approved](ctx, tx, `
		SELECT node, number, content::text AS content, digest, approved_by AS by, approved_at AS at FROM plan WHERE approved`)
	all := make(map[appliance.NodeID]ApprovedPlan, len(found))
	for _, f := range found {
		all[f.Node] = f.ApprovedPlan
	}
	return all, err
}
