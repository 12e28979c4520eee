package store_test

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/migrations"
)

// Migrations are contiguous from 0001 and have no way down.
func TestMigrationsAreContiguous(t *testing.T) {
	names, err := fs.Glob(migrations.FS, "*")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files: %v", len(names), err)
	}
	for i, name := range names {
		if !strings.HasPrefix(name, fmt.Sprintf("%04d_", i+1)) || !strings.HasSuffix(name, ".sql") {
			t.Errorf("file %d is %s", i+1, name)
		}
		text, err := fs.ReadFile(migrations.FS, name)
		if err != nil || strings.Contains(string(text), "+goose Down") || !strings.HasPrefix(string(text), "-- +goose Up\n") {
			t.Errorf("%s: %v: it goes up and only up", name, err)
		}
	}
}

// GEN-2, SAFE-5: migrations that start together, and again, leave one schema; a schema newer than the binary is left as it is.
func TestMigrateTogetherAndAgain(t *testing.T) {
	d := storetest.EmptyDatabase(t)
	errs := make([]error, 4)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			var s *store.Store
			if s, errs[i] = store.Open(t.Context(), store.Config{DSN: d.DSN}); errs[i] == nil {
				s.Close()
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	db := d.SQL(t)
	var versions, newest int
	if err := db.QueryRow(`SELECT count(*), max(version_id) FROM goose_db_version WHERE version_id > 0`).Scan(&versions, &newest); err != nil || versions != newest || newest == 0 {
		t.Errorf("%d versions, the newest %d: %v", versions, newest, err)
	}
	if _, err := db.Exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
	s := d.Open(t)
	if err := s.Found(t.Context(), by(), genesis(t)); err != nil {
		t.Error(err)
	}
}

// A migration cut off in the middle is finished by the next start.
func TestMigrateCutOff(t *testing.T) {
	d := storetest.EmptyDatabase(t)
	ended := make(chan error, 1)
	go func() {
		s, err := store.Open(t.Context(), store.Config{DSN: d.DSN})
		if err == nil {
			s.Close()
		}
		ended <- err
	}()
	for open := true; open; { // cut as often as it takes until the migration has ended one way or the other
		d.Cut(t)
		select {
		case err := <-ended:
			if err != nil && !store.IsUnavailable(err) {
				t.Errorf("cut off: %v", err)
			}
			open = false
		default:
		}
	}
	if err := d.Open(t).Found(t.Context(), by(), genesis(t)); err != nil {
		t.Error(err)
	}
}

// Every table says what it is and who writes it.
func TestTablesNameTheirWriter(t *testing.T) {
	d := storetest.NewDatabase(t)
	rows, err := d.SQL(t).Query(`
		SELECT relname, COALESCE(obj_description(oid), '') FROM pg_class
		WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	tables := 0
	for rows.Next() {
		var table, comment string
		if err := rows.Scan(&table, &comment); err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`; writer: .+`).MatchString(comment) {
			t.Errorf("table %s: %q", table, comment)
		}
		tables++
	}
	if tables < 20 {
		t.Errorf("%d tables", tables)
	}
}
