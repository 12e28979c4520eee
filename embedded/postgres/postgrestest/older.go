// Package postgrestest gives tests the programs of an older PostgreSQL than the machine's. It is for tests only.
package postgrestest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/novox/mesh/embedded/postgres"
)

// Variable names the folder of an older postgres and initdb, where `make packages` brings none.
const Variable = "MESH_OLDER_POSTGRES"

// Older copies an older PostgreSQL into a folder of its own, as a distribution installs it: programs in bin, beside share and lib. Where
// there is none the test is skipped.
func Older(t testing.TB) (dir string) {
	t.Helper()
	from := os.Getenv(Variable)
	if from == "" {
		from = filepath.Join(repository(t), "bin", "postgresql-14", "bin")
	}
	if _, err := os.Stat(filepath.Join(from, "postgres")); err != nil {
		t.Skipf("no older PostgreSQL (%v): run `make packages`, or name the folder of its programs in %s", err, Variable)
	}
	dir, err := os.MkdirTemp("", "pgolder")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Dir(from)+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v: %s", from, err, out)
	}
	here, major, err := postgres.Find("")
	if err != nil {
		t.Fatal(err)
	}
	// The package with the older programs lacks this one. Majors 13 to 16 write one form of what it reads.
	control := filepath.Join(dir, "bin", "pg_controldata")
	if _, err := os.Stat(control); err != nil {
		if major > 16 {
			t.Skipf("PostgreSQL %d reads no control file of an older one: name programs with pg_controldata in %s", major, Variable)
		}
		if err := os.Symlink(filepath.Join(here, "pg_controldata"), control); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// repository is the folder of go.mod, above the package under test.
func repository(t testing.TB) string {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == "/" {
			break
		}
	}
	t.Fatal("no go.mod above the test")
	return ""
}
