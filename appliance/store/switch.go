package store

import (
	"context"

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

// RecordAction audits what somebody had done that changes no record, and counts the request.
func (s *Store) RecordAction(ctx context.Context, by By, what, subject string, details any) error {
	return s.change(ctx, what+" "+subject, by, func(tx pgx.Tx) error { return audit(ctx, tx, by, what, subject, nil, details) })
}
