package store_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
)

// GEN-5: two servers with the same records are described alike, and any value, row or thing that differs is seen.
func TestContents(t *testing.T) {
	d := storetest.NewDatabase(t)
	if err := d.Open(t).Found(t.Context(), by(), genesis(t)); err != nil {
		t.Fatal(err)
	}
	sql := d.SQL(t)
	run := func(statement string) {
		t.Helper()
		if _, err := sql.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	contents := func() map[string]string {
		t.Helper()
		c, err := store.Contents(t.Context(), d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	run(`CREATE TABLE "Extra" (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz, f float8, b bytea); INSERT INTO "Extra" (at, f, b) SELECT now(), 1.0/n, '\x00' FROM generate_series(1, 3) n`)
	before := contents()
	for _, name := range []string{"role mesh", "database postgres", "table public.mesh", "table public.Extra", "sequence public.Extra_n_seq", "index public.mesh_pkey", "constraint mesh.mesh_pkey"} {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is not described", name)
		}
	}
	// The order of rows is nothing to compare.
	run(`UPDATE "Extra" SET f = f WHERE n = 1`)
	if diff := cmp.Diff(before, contents()); diff != "" {
		t.Errorf("rows in another order (-before +after):\n%s", diff)
	}
	for what, change := range map[string]struct{ do, undo string }{
		"table public.Extra":          {`UPDATE "Extra" SET b = '\x01' WHERE n = 1`, `UPDATE "Extra" SET b = '\x00'`},
		"sequence public.Extra_n_seq": {`SELECT nextval('"Extra_n_seq"')`, `SELECT setval('"Extra_n_seq"', 3)`},
		"relation public.v":           {`CREATE VIEW v AS SELECT 1`, `DROP VIEW v`},
		"function public.f(integer)":  {`CREATE FUNCTION f(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'`, `DROP FUNCTION f`},
		"index public.i":              {`CREATE INDEX i ON "Extra" (f)`, `DROP INDEX i`},
	} {
		run(change.do)
		if after := contents(); before[what] == after[what] && len(before) == len(after) {
			t.Errorf("%s: the change is not seen", what)
		}
		run(change.undo)
	}
	if diff := cmp.Diff(before, contents()); diff != "" {
		t.Errorf("all undone (-before +after):\n%s", diff)
	}
}
