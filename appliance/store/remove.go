package store

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/bundles"
)

// Use is an instance that cannot be without a module: one of its own, or one that claims a seat which only it declares.
type Use struct {
	resolve.Assignment
	NodeName appliance.NodeName
	Seat     appliance.SeatName // empty: an instance of the module itself
}

func (u Use) String() string {
	at := string(u.Instance) + "@" + string(u.NodeName)
	if u.Seat != "" {
		at += " (which holds seat " + string(u.Seat) + ")"
	}
	return at
}

// Uses gives all of a module, by instance and node.
func (s *Store) Uses(ctx context.Context, module appliance.ModuleName) (all []Use, err error) {
	err = s.read(ctx, "look for uses of module "+string(module), func(tx pgx.Tx) error {
		i, err := intent(ctx, tx)
		if err != nil {
			return err
		}
		all, err = uses(i, module)
		return err
	})
	return all, err
}

func uses(in resolve.Intent, module appliance.ModuleName) (all []Use, err error) {
	m := in.Modules[module]
	if m == nil {
		return nil, noModule(module)
	}
	names := map[appliance.NodeID]appliance.NodeName{}
	for _, n := range in.Nodes {
		names[n.ID] = n.Name
	}
	for _, a := range in.Assignments {
		u := Use{Assignment: a, NodeName: names[a.Node]}
		if a.Module == module {
			all = append(all, u)
			continue
		}
		for _, claim := range in.Modules[a.Module].Claims {
			if slices.ContainsFunc(m.Seats, func(s manifest.Seat) bool { return s.Name == claim }) {
				u.Seat = claim
			}
		}
		if u.Seat != "" {
			all = append(all, u)
		}
	}
	return all, nil
}

// RemoveModule makes the mesh forget a module. While something cannot be without it that is refused, naming where (MOD-7); by force all
// that is unassigned, and named. The data of instances stays on their nodes.
func (s *Store) RemoveModule(ctx context.Context, by By, module appliance.ModuleName, force bool) (broken []Use, err error) {
	err = s.change(ctx, "remove module "+string(module), by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		i, err := intent(ctx, tx)
		if err != nil {
			return err
		}
		if broken, err = uses(i, module); err != nil {
			return err
		}
		if bundles.IsBase(string(module)) || i.Modules[module].Base() {
			return appliance.Errorf(appliance.Conflict, "remove module %s: it is a base module, and the mesh stands on it", module).WithHint("it stays for as long as the mesh does")
		}
		if len(broken) > 0 && !force {
			var at []string
			for _, u := range broken {
				at = append(at, u.String())
			}
			return appliance.Errorf(appliance.Conflict, "remove module %s: it is needed by %s", module, strings.Join(at, ", ")).
				WithHint("unassign what needs it first; --force unassigns all of that").WithNext("mesh module unassign " + string(broken[0].Instance) + " " + string(broken[0].NodeName))
		}
		for _, u := range broken {
			if err := unassign(ctx, tx, by, u.Instance, u.Node); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `DELETE FROM module WHERE name = $1`, module); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM name WHERE module = $1`, module); err != nil {
			return err
		}
		if err := judge(ctx, tx); err != nil {
			return err
		}
		return audit(ctx, tx, by, "module remove", string(module), map[string]any{"digest": i.Modules[module].Digest()}, nil)
	})
	if err != nil {
		return nil, err
	}
	return broken, nil
}
