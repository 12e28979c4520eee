package store

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/bundles"
)

// Assign records that a module runs on a node, under the module's own name when Instance is empty, and assigns the ports its manifest
// leaves to the mesh. What cannot be resolved afterwards is refused.
func (s *Store) Assign(ctx context.Context, by By, a resolve.Assignment) error {
	a.Instance = cmp.Or(a.Instance, appliance.InstanceName(a.Module))
	return s.change(ctx, "assign "+string(a.Module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if err := assign(ctx, tx, by, a); err != nil {
			return err
		}
		return judgeChanged(ctx, tx, func(o resolve.Assignment) bool { return o.Instance == a.Instance && o.Node == a.Node })
	})
}

func assign(ctx context.Context, tx pgx.Tx, by By, a resolve.Assignment) error {
	if a.Instance == "" {
		a.Instance = appliance.InstanceName(a.Module)
	}
	var declared string
	var node bool
	err := tx.QueryRow(ctx, `SELECT COALESCE((SELECT manifest::text FROM module WHERE name = $1), ''), EXISTS (SELECT FROM node WHERE id = $2)`,
		a.Module, a.Node).Scan(&declared, &node)
	switch {
	case err != nil:
		return err
	case declared == "":
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
	m, err := recordedManifest(declared)
	if err != nil {
		return err
	}
	assigned, err := assignPorts(ctx, tx, a, m.Ports)
	if err != nil {
		return err
	}
	return audit(ctx, tx, by, "module assign", string(a.Instance)+"@"+string(a.Node), nil, map[string]any{"module": a.Module, "ports": assigned})
}

// assignPorts chooses numbers for the ports that the mesh may assign and that have none, going round everything recorded for the
// node (PORT-2).
func assignPorts(ctx context.Context, tx pgx.Tx, a resolve.Assignment, declared map[string]manifest.Port) (map[string]uint16, error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(declared)), func(p manifest.Port) bool { return p.Assign }) {
		return map[string]uint16{}, nil
	}
	i, err := intent(ctx, tx)
	if err != nil {
		return nil, err
	}
	var requests []ports.Request
	taken := i.Carried[a.Node]
	for _, other := range i.Assignments {
		if other.Node != a.Node {
			continue
		}
		for name, port := range i.Modules[other.Module].Ports {
			given, assigned := recorded(i.Ports, other, name)
			if other.Instance == a.Instance && port.Assign && assigned == 0 {
				requests = append(requests, ports.Request{Instance: a.Instance, Name: name})
				continue
			}
			taken = append(taken, ports.Bound{Number: ports.Number(given, assigned, port.Number), Protocol: port.Protocol, Holder: ports.Holder(other.Instance, name)})
		}
	}
	chosen, err := ports.Assign(requests, taken)
	if err != nil {
		return nil, err
	}
	return recordPorts(ctx, tx, a, declared, chosen)
}

// followManifest gives the instances of a module the ports of its new manifest, and takes back those it no longer leaves to the mesh.
func followManifest(ctx context.Context, tx pgx.Tx, m *manifest.Manifest) (map[string]map[string]uint16, error) {
	var names, protocols []string
	for name, port := range m.Ports {
		if port.Assign {
			names, protocols = append(names, name), append(protocols, port.Protocol)
		}
	}
	_, err := tx.Exec(ctx, `
		DELETE FROM port AS p USING assignment AS a
		WHERE a.module = $1 AND p.instance = a.instance AND p.node = a.node AND p.origin = 'assigned'
			AND (p.name::text, p.protocol) NOT IN (SELECT name, protocol FROM unnest($2::text[], $3::text[]) AS d (name, protocol))`, m.Module, names, protocols)
	if err != nil {
		return nil, err
	}
	instances, err := rows[resolve.Assignment](ctx, tx, `SELECT instance, node, module, stopped FROM assignment WHERE module = $1 ORDER BY instance, node`, m.Module)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]uint16{}
	for _, a := range instances {
		numbers, err := assignPorts(ctx, tx, a, m.Ports)
		if err != nil {
			return nil, err
		}
		if len(numbers) > 0 {
			all[string(a.Instance)+"@"+string(a.Node)] = numbers
		}
	}
	return all, nil
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

// Unassign removes an instance from a node with its ports. What would break a dependant is refused; on a base module the mesh itself stands.
func (s *Store) Unassign(ctx context.Context, by By, instance appliance.InstanceName, node appliance.NodeID) error {
	return s.change(ctx, "unassign "+string(instance), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if err := unassign(ctx, tx, by, instance, node); err != nil {
			return err
		}
		return judge(ctx, tx)
	})
}

// unassign leaves it to the caller to judge whether what is left can stand.
func unassign(ctx context.Context, tx pgx.Tx, by By, instance appliance.InstanceName, node appliance.NodeID) error {
	var module appliance.ModuleName
	err := tx.QueryRow(ctx, `DELETE FROM assignment WHERE instance = $1 AND node = $2 RETURNING module`, instance, node).Scan(&module)
	if errors.Is(err, pgx.ErrNoRows) {
		var name string
		if err := tx.QueryRow(ctx, `SELECT COALESCE((SELECT name FROM node WHERE id = $1), $1)`, node).Scan(&name); err != nil {
			return err
		}
		return appliance.Errorf(appliance.NotFound, "unassign: no instance %s is assigned to node %s", appliance.Quote(string(instance)), appliance.Quote(name)).
			WithNext("mesh module list")
	}
	if err != nil {
		return err
	}
	if bundles.IsBase(string(module)) {
		return appliance.Errorf(appliance.Conflict, "unassign: %s is a base module, and the mesh stands on it", instance).
			WithHint("genesis and join assign the base modules; they stay for as long as the machine is in the mesh")
	}
	if err := freeInstanceName(ctx, tx, instance); err != nil {
		return err
	}
	return audit(ctx, tx, by, "module unassign", string(instance)+"@"+string(node), map[string]any{"module": module}, nil)
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
	return rows[resolve.Assignment](ctx, tx, `SELECT instance, node, module, stopped FROM assignment ORDER BY instance, node`)
}
