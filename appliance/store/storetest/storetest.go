// Package storetest gives tests a real store: one private PostgreSQL for the test binary, and a fresh migrated database for each
// test. Call Main from TestMain, then New. It is for tests only; nothing of the product may import it.
package storetest

import (
	"database/sql"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/novox/mesh/appliance/store" // also makes the driver known to database/sql
)

var shared struct {
	sync.Mutex
	running   bool // inside Main
	cluster   *Cluster
	err       error
	databases int
}

const template = "template_mesh"

// Main runs the tests of a package and takes the server down behind them. TestMain is: os.Exit(storetest.Main(m)).
func Main(m *testing.M) int {
	shared.running = true
	code := m.Run()
	if shared.cluster != nil {
		if err := shared.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// New opens a store on a fresh database with the schema of today; both go with the test.
func New(t testing.TB) *store.Store {
	t.Helper()
	return NewDatabase(t).Open(t)
}

// Database is one fresh database, for tests that open several stores on it or cut them off.
type Database struct {
	DSN   string
	name  string
	admin *sql.DB
}

// NewDatabase makes a database with the schema of today; it goes with the test.
func NewDatabase(t testing.TB) *Database { return create(t, template) }

// EmptyDatabase makes one without a schema.
func EmptyDatabase(t testing.TB) *Database { return create(t, "template0") }

func create(t testing.TB, from string) *Database {
	t.Helper()
	cluster, n := start(t)
	d := &Database{name: fmt.Sprintf("mesh_%d", n), admin: cluster.admin}
	d.DSN = cluster.DSN(d.name)
	d.run(t, "CREATE DATABASE "+d.name+" TEMPLATE "+from)
	t.Cleanup(func() {
		if _, err := d.admin.Exec("DROP DATABASE " + d.name + " WITH (FORCE)"); err != nil {
			t.Errorf("drop database %s: %v", d.name, err)
		}
	})
	return d
}

// start gives the one server of this test binary, made on first use, and the number of the next database.
func start(t testing.TB) (*Cluster, int) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.running {
		t.Fatal("storetest: TestMain does not call storetest.Main")
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = Start(false)
		if shared.err == nil {
			shared.err = migrated(t, shared.cluster)
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	shared.databases++
	return shared.cluster, shared.databases
}

// migrated makes the database that all others are copied from.
func migrated(t testing.TB, c *Cluster) error {
	if _, err := c.admin.Exec("CREATE DATABASE " + template); err != nil {
		return fmt.Errorf("create database %s: %w", template, err)
	}
	s, err := store.Open(t.Context(), store.Config{DSN: c.DSN(template)})
	if err != nil {
		return err
	}
	s.Close()
	return nil
}

// Open opens a store on the database; it is closed with the test.
func (d *Database) Open(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{DSN: d.DSN})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Away ends every connection to the database and lets no new one in: to its stores the server is gone.
func (d *Database) Away(t testing.TB) {
	t.Helper()
	d.run(t, "ALTER DATABASE "+d.name+" ALLOW_CONNECTIONS false")
	d.Cut(t)
}

// Back undoes Away.
func (d *Database) Back(t testing.TB) {
	t.Helper()
	d.run(t, "ALTER DATABASE "+d.name+" ALLOW_CONNECTIONS true")
}

// Cut ends every connection to the database, whatever it is in the middle of.
func (d *Database) Cut(t testing.TB) {
	t.Helper()
	d.run(t, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '"+d.name+"'")
}

func (d *Database) run(t testing.TB, statement string) {
	t.Helper()
	if _, err := d.admin.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// SQL opens the database beside its stores, for what only a test may ask or break.
func (d *Database) SQL(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}
