package postgres_test

import (
	"context"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/embedded/postgres"
	"github.com/novox/mesh/embedded/postgres/postgrestest"
)

// GEN-5: a cluster of an older major is started by its own programs only; without them it is refused by name. The newer programs dump
// it, and load it whole or not at all.
func TestOlderMajor(t *testing.T) {
	older := filepath.Join(postgrestest.Older(t), "bin")
	newer, major, err := postgres.Find("")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { // the server's user writes the dump
		t.Fatal(err)
	}
	old := config(t, older, dir, "old")
	server := start(t, old)
	const rows = "create table kept (n int generated always as identity primary key, at timestamptz, sealed bytea, doc jsonb); " +
		"insert into kept (at, sealed, doc) select now(), sha256(n::text::bytea), jsonb_build_object('n', n) from generate_series(1, 1000) n"
	run(t, server, rows)
	const sum = "select count(*) || ' ' || md5(string_agg(kept::text, ',' order by n)) from kept"
	want := ask(t, server, sum)
	stop(t, server)

	if bin, made, err := postgres.FindFor(older, old.Data); err != nil || bin != older || made >= major {
		t.Errorf("with its programs: %s, %d, %v", bin, made, err)
	}
	made, err := postgres.MadeBy(old.Data)
	if err != nil {
		t.Fatal(err)
	}
	var wrong *postgres.WrongMajor
	for _, bin := range []string{"", newer, filepath.Join(dir, "gone")} {
		if _, _, err := postgres.FindFor(bin, old.Data); !errors.As(err, &wrong) || wrong.Have != made || wrong.Want != major || wrong.Bin != newer ||
			!strings.Contains(err.Error(), "mesh store upgrade") || !strings.Contains(err.Error(), "PostgreSQL "+strconv.Itoa(made)) {
			t.Errorf("without them, %q named: %v", bin, err)
		}
	}
	mixed := old
	mixed.Bin = newer
	if _, err := postgres.Start(t.Context(), mixed); !errors.As(err, &wrong) {
		t.Errorf("started by another major: %v", err)
	}

	dump := filepath.Join(dir, "dump")
	server = start(t, old)
	if err := postgres.Dumps(newer); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Dumps(older); err == nil {
		t.Error("programs without pg_dump are said to have it")
	}
	if err := server.Dump(t.Context(), newer, dump); err != nil {
		t.Fatal(err)
	}
	stop(t, server)
	server = start(t, config(t, newer, dir, "new"))
	if err := server.Load(t.Context(), dump); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, server, sum); got != want {
		t.Errorf("loaded %q, want %q", got, want)
	}

	// What is in the way stops it, and nothing is loaded.
	run(t, server, "drop table kept; create table kept (other int)")
	if err := server.Load(t.Context(), dump); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("loaded over another table: %v", err)
	}
	if got := ask(t, server, "select count(*)::text from pg_class where relname like 'kept%'"); got != "1" {
		t.Errorf("a load that failed left %s things", got)
	}
}

// config is a server as nobody when the tests run as root.
func config(t *testing.T, bin, dir, name string) postgres.Config {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	cfg := postgres.Config{Bin: bin, Data: filepath.Join(dir, name), Socket: filepath.Join(dir, name+".run"),
		Map: map[string]string{me.Username: "mesh", "nobody": "mesh"}, Superuser: "mesh"}
	if os.Geteuid() == 0 {
		cfg.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	return cfg
}

func start(t *testing.T, cfg postgres.Config) *postgres.Server {
	t.Helper()
	s, err := postgres.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func stop(t *testing.T, s *postgres.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func connect(t *testing.T, s *postgres.Server) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func run(t *testing.T, s *postgres.Server, sql string) {
	t.Helper()
	c := connect(t, s)
	defer c.Close(context.Background())
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, s *postgres.Server, sql string) (answer string) {
	t.Helper()
	c := connect(t, s)
	defer c.Close(context.Background())
	if err := c.QueryRow(t.Context(), sql).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}
