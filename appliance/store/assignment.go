package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/resolve"
)

// Assign records that a module runs on a node, under the module's own name when Instance is empty, and assigns the ports its manifest
// leaves to the mesh. What cannot be resolved afterwards is refused.
func (s *Store) Assign(ctx context.Context, by By, a resolve.Assignment) error {
	return s.change(ctx, "assign "+string(a.Module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if err := assign(ctx, tx, by, a); err != nil {
			return err
		}
		return judge(ctx, tx)
	})
}

func assign(ctx context.Context, tx pgx.Tx, by By, a resolve.Assignment) error {
	if a.Instance == "" {
		a.Instance = appliance.InstanceName(a.Module)
	}
	var known, node bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM module WHERE name = $1), EXISTS (SELECT FROM node WHERE id = $2)`, a.Module, a.Node).Scan(&known, &node)
	switch {
	case err != nil:
		return err
	case !known:
		return appliance.Errorf(appliance.NotFound, "assign: no module %s is registered", appliance.Quote(string(a.Module))).
			WithNext("mesh module register " + string(a.Module))
	case !node:
		return appliance.Errorf(appliance.NotFound, "assign: there is no node %s", appliance.Quote(string(a.Node))).WithNext("mesh node list")
	}
	if err := takeForModule(ctx, tx, string(a.Instance), a.Module); err != nil {
		return err
	}
	made, err := tx.Exec(ctx, `INSERT INTO assignment (instance, node, module, assigned_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`,
		a.Instance, a.Node, a.Module, by.At)
	if err != nil {
		return err
	}
	if made.RowsAffected() == 0 {
		return appliance.Errorf(appliance.Conflict, "assign: %s is assigned to the node already", a.Instance).
			WithHint("a second instance of a module on one node needs a name of its own: --as NAME")
	}
	assigned, err := assignPorts(ctx, tx, a)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "module assign", string(a.Instance)+"@"+string(a.Node), nil, map[string]any{"module": a.Module, "ports": assigned})
}

// assignPorts chooses numbers for the ports that the mesh may assign, going round everything recorded for the node (PORT-2).
func assignPorts(ctx context.Context, tx pgx.Tx, a resolve.Assignment) (map[string]uint16, error) {
	i, err := intent(ctx, tx)
	if err != nil {
		return nil, err
	}
	taken := i.Carried[a.Node]
	var requests []ports.Request
	for _, other := range i.Assignments {
		if other.Node != a.Node {
			continue
		}
		for name, port := range i.Modules[other.Module].Ports {
			if other.Instance == a.Instance && port.Assign {
				requests = append(requests, ports.Request{Instance: a.Instance, Name: name})
				continue
			}
			given, assigned := recorded(i.Ports, other, name)
			taken = append(taken, ports.Bound{Number: ports.Number(given, assigned, port.Number), Protocol: port.Protocol, Holder: ports.Holder(other.Instance, name)})
		}
	}
	chosen, err := ports.Assign(requests, taken)
	if err != nil {
		return nil, err
	}
	return recordPorts(ctx, tx, a, i.Modules[a.Module].Ports, chosen)
}

func recorded(all []resolve.Port, a resolve.Assignment, name string) (given, assigned uint16) {
	for _, p := range all {
		switch {
		case p.Instance != a.Instance || p.Node != a.Node || p.Name != name:
		case p.Given:
			given = p.Number
		default:
			assigned = p.Number
		}
	}
	return given, assigned
}

func recordPorts(ctx context.Context, tx pgx.Tx, a resolve.Assignment, declared map[string]manifest.Port, chosen map[ports.Request]uint16) (map[string]uint16, error) {
	numbers := map[string]uint16{}
	for request, number := range chosen {
		numbers[request.Name] = number
		_, err := tx.Exec(ctx, `INSERT INTO port (instance, node, name, protocol, number, origin) VALUES ($1, $2, $3, $4, $5, 'assigned')`,
			a.Instance, a.Node, request.Name, declared[request.Name].Protocol, number)
		if err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// Unassign removes an instance from a node with its ports. What would break a dependant is refused.
func (s *Store) Unassign(ctx context.Context, by By, instance appliance.InstanceName, node appliance.NodeID) error {
	return s.change(ctx, "unassign "+string(instance), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		var module appliance.ModuleName
		err := tx.QueryRow(ctx, `DELETE FROM assignment WHERE instance = $1 AND node = $2 RETURNING module`, instance, node).Scan(&module)
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.NotFound, "unassign: no instance %s is assigned to node %s", appliance.Quote(string(instance)), appliance.Quote(string(node))).
				WithNext("mesh module list")
		}
		if err != nil {
			return err
		}
		if err := freeInstanceName(ctx, tx, instance); err != nil {
			return err
		}
		if err := judge(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, by, "module unassign", string(instance)+"@"+string(node), map[string]any{"module": module}, nil)
	})
}

// Assignments gives all, by instance and node.
func (s *Store) Assignments(ctx context.Context) (all []resolve.Assignment, err error) {
	err = s.read(ctx, "list assignments", func(tx pgx.Tx) error {
		all, err = assignments(ctx, tx)
		return err
	})
	return all, err
}

func assignments(ctx context.Context, tx pgx.Tx) ([]resolve.Assignment, error) {
	return rows[resolve.Assignment](ctx, tx, `SELECT instance, node, module FROM assignment ORDER BY instance, node`)
}
