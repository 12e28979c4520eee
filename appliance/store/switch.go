package store

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/resolve"
)

// Decide says which plans to approve, by the records as they are after a change. Where it refuses, nothing of the change stays.
type Decide func(Snapshot) (map[appliance.NodeID]resolve.Plan, error)

// switched makes a change that takes effect at once: what follows from it is approved in the same transaction.
func (s *Store) switched(ctx context.Context, what string, by By, decide Decide, f func(tx pgx.Tx) error) error {
	return s.change(ctx, what, by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return err
		}
		records, err := snapshot(ctx, tx)
		if err != nil {
			return err
		}
		plans, err := decide(records)
		if err != nil {
			return err
		}
		return approveAll(ctx, tx, by, plans)
	})
}

// StopInstance records that an instance shall not run, or shall run again, on a node or wherever it is assigned (OPS-1).
func (s *Store) StopInstance(ctx context.Context, by By, instance appliance.InstanceName, node appliance.NodeID, stopped bool, decide Decide) error {
	verb := map[bool]string{true: "stop", false: "start"}[stopped]
	return s.switched(ctx, verb+" "+string(instance), by, decide, func(tx pgx.Tx) error {
		type assigned struct {
			Node     appliance.NodeID
			Name     appliance.NodeName
			Stopped  bool
			Manifest string
		}
		found, err := rows[assigned](ctx, tx, `
			SELECT a.node, n.name, a.stopped, m.manifest::text AS manifest FROM assignment AS a JOIN node AS n ON n.id = a.node JOIN module AS m ON m.name = a.module
			WHERE a.instance = $1 AND ($2 = '' OR a.node = $2) ORDER BY n.name`, instance, node)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return appliance.Errorf(appliance.NotFound, "%s: no instance %s is assigned there", verb, appliance.Quote(string(instance))).WithNext("mesh module list")
		}
		for _, a := range found {
			m, err := recordedManifest(a.Manifest)
			if err != nil {
				return err
			}
			if m.Base() {
				return appliance.Errorf(appliance.Conflict, "%s: %s is a base module, and the mesh stands on it", verb, instance).
					WithHint("`mesh stop`, given on the machine itself, stops the mesh's own processes there")
			}
			if a.Stopped == stopped {
				continue
			}
			if _, err := tx.Exec(ctx, `UPDATE assignment SET stopped = $3 WHERE instance = $1 AND node = $2`, instance, a.Node, stopped); err != nil {
				return err
			}
			err = audit(ctx, tx, by, "module "+verb, string(instance)+"@"+string(a.Node), map[string]any{"stopped": a.Stopped}, map[string]any{"stopped": stopped})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// standing is what operators want of a node as a whole.
type standing struct {
	Name    appliance.NodeName `json:"-"`
	Mode    string             `json:"mode"`
	Held    bool               `json:"held"`
	Until   *time.Time         `json:"until,omitempty"` // of a hold that ends by itself
	Drained bool               `json:"drained"`
}

// stand changes what operators want of a node, and approves what follows.
func (s *Store) stand(ctx context.Context, verb string, by By, node appliance.NodeID, decide Decide, statement string, args ...any) error {
	return s.switched(ctx, verb+" node "+string(node), by, decide, func(tx pgx.Tx) error {
		const look = `SELECT name, mode, COALESCE(held_until > now(), false) AS held, NULLIF(held_until, 'infinity') AS until, drained FROM node WHERE id = $1 FOR NO KEY UPDATE`
		before, err := row[standing](ctx, tx, look, node)
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(node))).WithNext("mesh node list")
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, statement, append([]any{node}, args...)...); err != nil {
			return err
		}
		after, err := row[standing](ctx, tx, look, node)
		if err != nil || reflect.DeepEqual(before, after) {
			return err
		}
		return audit(ctx, tx, by, "node "+verb, string(before.Name), before, after)
	})
}

// MaxHold bounds how long a hold may last that ends by itself.
const MaxHold = 366 * 24 * time.Hour

// HoldNode records that a node shall change nothing: for some time, or until it is resumed where that is zero (OPS-3).
func (s *Store) HoldNode(ctx context.Context, by By, node appliance.NodeID, d time.Duration, decide Decide) error {
	if d < 0 || d > MaxHold {
		return appliance.Errorf(appliance.Invalid, "hold node: for %s; at most %s", d, MaxHold).WithHint("without a time it is held until it is resumed")
	}
	return s.stand(ctx, "hold", by, node, decide,
		`UPDATE node SET held_until = CASE WHEN $2::float8 = 0 THEN 'infinity' ELSE now() + make_interval(secs => $2) END WHERE id = $1`, d.Seconds())
}

// DrainNode records that a node's modules shall not run, but for the base (OPS-3).
func (s *Store) DrainNode(ctx context.Context, by By, node appliance.NodeID, decide Decide) error {
	return s.stand(ctx, "drain", by, node, decide, `UPDATE node SET drained = true WHERE id = $1`)
}

// ResumeNode undoes both.
func (s *Store) ResumeNode(ctx context.Context, by By, node appliance.NodeID, decide Decide) error {
	return s.stand(ctx, "resume", by, node, decide, `UPDATE node SET held_until = NULL, drained = false WHERE id = $1`)
}

// ConvergeNode records that what was on a machine before the mesh is made as declared, too (NODE-7).
func (s *Store) ConvergeNode(ctx context.Context, by By, node appliance.NodeID, decide Decide) error {
	return s.stand(ctx, "converge", by, node, decide, `UPDATE node SET mode = 'converged' WHERE id = $1`)
}

// EndHold resumes a node whose time is over; its modules stay drained where they are.
func (s *Store) EndHold(ctx context.Context, by By, node appliance.NodeID, decide Decide) error {
	return s.stand(ctx, "resume", by, node, decide, `UPDATE node SET held_until = NULL WHERE id = $1 AND held_until <= now()`)
}

// Hold is one that ends by itself.
type Hold struct {
	Node appliance.NodeID
	Left time.Duration // zero or less: its time is over
}

// Holds gives those that end by themselves, the first to end first.
func (s *Store) Holds(ctx context.Context) (all []Hold, err error) {
	err = s.read(ctx, "look at holds", func(tx pgx.Tx) error {
		r, err := tx.Query(ctx, `SELECT id, extract(epoch FROM held_until - now())::float8 FROM node WHERE held_until < 'infinity' ORDER BY held_until, id`)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(r, func(r pgx.CollectableRow) (h Hold, err error) {
			var seconds float64
			err = r.Scan(&h.Node, &seconds)
			h.Left = time.Duration(seconds * float64(time.Second))
			return h, err
		})
		return err
	})
	return all, err
}
