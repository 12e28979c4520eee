package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Contents describes everything that a server holds, so that two can be compared: each role and database; each table, index, view and
// sequence of the records, a table with the number of its rows and a checksum over them, a sequence with its position. What majors of
// PostgreSQL write differently is not in it.
func Contents(ctx context.Context, dsn string) (map[string]string, error) {
	const what = "describe the store"
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, badDSN(err)
	}
	for name, value := range map[string]string{"timezone": "UTC", "datestyle": "ISO", "intervalstyle": "postgres", "extra_float_digits": "1", "bytea_output": "hex", "search_path": "pg_catalog"} {
		config.RuntimeParams[name] = value
	}
	c, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, explain(what, err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	found := map[string]string{}
	err = pgx.BeginTxFunc(ctx, c, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		things, err := rows[thing](ctx, tx, `
			SELECT 'role' AS kind, '' AS schema, rolname::text AS name FROM pg_roles WHERE rolname !~ '^pg_'
			UNION ALL SELECT 'database', '', datname::text FROM pg_database WHERE NOT datistemplate
			UNION ALL SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'p' THEN 'table' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' ELSE 'relation' END, nspname, relname
				FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
				WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' AND relkind <> 'c'
			UNION ALL SELECT 'function', nspname, proname || '(' || pg_get_function_identity_arguments(p.oid) || ')'
				FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
			UNION ALL SELECT 'trigger', relname, tgname FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid WHERE NOT tgisinternal
			UNION ALL SELECT 'constraint', relname, conname FROM pg_constraint JOIN pg_class c ON c.oid = conrelid
				WHERE connamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) AND contype <> 'n'`) // newer majors name NOT NULL, too
		if err != nil {
			return err
		}
		for _, t := range things {
			if found[t.String()], err = t.holds(ctx, tx); err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
		}
		return nil
	})
	return found, explain(what, err)
}

// thing is one part of what a server holds.
type thing struct{ Kind, Schema, Name string }

func (t thing) String() string {
	if t.Schema == "" {
		return t.Kind + " " + t.Name
	}
	return t.Kind + " " + t.Schema + "." + t.Name
}

// holds says what is in a table or a sequence. The checksum is a sum over the rows, whatever their order.
func (t thing) holds(ctx context.Context, tx pgx.Tx) (text string, err error) {
	name := pgx.Identifier{t.Schema, t.Name}.Sanitize()
	switch t.Kind {
	case "table":
		err = tx.QueryRow(ctx, `SELECT count(*) || ' rows, sum ' || coalesce(sum(('x' || left(md5(t::text), 16))::bit(64)::bigint), 0) FROM `+name+` t`).Scan(&text)
	case "sequence":
		err = tx.QueryRow(ctx, `SELECT last_value || ' ' || is_called FROM `+name).Scan(&text)
	}
	return text, err
}
