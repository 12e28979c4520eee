package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
)

// holder says who has a name of the one namespace; both empty: nobody.
type holder struct {
	Node   appliance.NodeID
	Module appliance.ModuleName
}

func holderOf(ctx context.Context, tx pgx.Tx, name string) (h holder, err error) {
	h, err = row[holder](ctx, tx, `SELECT COALESCE(node, '') AS node, COALESCE(module, '') AS module FROM name WHERE name = $1`, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return holder{}, nil
	}
	return h, err
}

// freeForNode refuses a name that a node, a module or an instance has.
func freeForNode(ctx context.Context, tx pgx.Tx, name appliance.NodeName) error {
	switch h, err := holderOf(ctx, tx, string(name)); {
	case err != nil:
		return err
	case h.Node != "":
		return enrol.RefuseName(name)
	case h.Module != "":
		return enrol.Refuse(enrol.NameTaken, "the name "+string(name)+" belongs to module "+string(h.Module)).
			WithHint("nodes, modules and instances share one namespace; choose another name")
	}
	return nil
}

// takeForModule makes name one of module's: its own, or that of its instances.
func takeForModule(ctx context.Context, tx pgx.Tx, name string, module appliance.ModuleName) error {
	if _, err := tx.Exec(ctx, `INSERT INTO name (name, module) VALUES ($1, $2) ON CONFLICT DO NOTHING`, name, module); err != nil {
		return err
	}
	h, err := holderOf(ctx, tx, name)
	if err != nil || h.Module == module {
		return err
	}
	who := "module " + string(h.Module)
	if h.Node != "" {
		who = "a node"
	}
	return appliance.Errorf(appliance.Conflict, "the name %s belongs to %s", name, who).
		WithHint("nodes, modules and instances share one namespace; choose another name with --as")
}

// freeInstanceName gives back a name that only instances had, once the last is gone.
func freeInstanceName(ctx context.Context, tx pgx.Tx, name appliance.InstanceName) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM name WHERE name = $1 AND module IS NOT NULL AND name <> module
			AND NOT EXISTS (SELECT FROM assignment WHERE instance = $1)`, name)
	return err
}
