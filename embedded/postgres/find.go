package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// WrongMajor says that the cluster was made by another major version than the
// binaries at hand. PostgreSQL starts a cluster only with the one that made it.
type WrongMajor struct {
	Data string // the cluster's folder
	Have int    // major that made it
	Want int    // major of the binaries; 0: none of that major found
}

func (e *WrongMajor) Error() string {
	if e.Want == 0 {
		return fmt.Sprintf("cluster %s was made by PostgreSQL %d, which is not installed (GEN-5): install it, or run `mesh store upgrade` with the one that is", e.Data, e.Have)
	}
	return fmt.Sprintf("cluster %s was made by PostgreSQL %d, the binaries are of %d (GEN-5): run `mesh store upgrade`, or install PostgreSQL %[2]d", e.Data, e.Have, e.Want)
}

// places is where distributions put the binaries of each major version.
var places = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*"}

type installation struct {
	dir   string
	major int
}

// Find gives the folder with initdb and postgres, and their major version: bin
// when it is named, else the newest a distribution installed, else what PATH has.
func Find(bin string) (dir string, major int, err error) {
	found, err := find(bin)
	if err != nil {
		return "", 0, err
	}
	return found[0].dir, found[0].major, nil
}

// FindFor is Find for a data folder: if that holds a cluster, only binaries of
// the major that made it will do. With none, the error is a *WrongMajor.
func FindFor(bin, data string) (dir string, major int, err error) {
	made, err := madeBy(data)
	if errors.Is(err, os.ErrNotExist) {
		return Find(bin)
	}
	if err != nil {
		return "", 0, err
	}
	found, err := find(bin)
	if err != nil {
		return "", 0, err
	}
	for _, i := range found {
		if i.major == made {
			return i.dir, i.major, nil
		}
	}
	wrong := &WrongMajor{Data: data, Have: made}
	if bin != "" {
		wrong.Want = found[0].major
	}
	return "", 0, wrong
}

// find lists installations, newest first, at least one.
func find(bin string) ([]installation, error) {
	if bin != "" {
		i, err := look(bin)
		if err != nil {
			return nil, fmt.Errorf("PostgreSQL in %s: %w", bin, err)
		}
		return []installation{i}, nil
	}
	var found []installation
	for _, place := range places {
		dirs, err := filepath.Glob(place)
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if i, err := look(dir); err == nil {
				found = append(found, i)
			}
		}
	}
	slices.SortFunc(found, func(a, b installation) int { return cmp.Compare(b.major, a.major) })
	if path, err := exec.LookPath("postgres"); err == nil && len(found) == 0 {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			if i, err := look(filepath.Dir(path)); err == nil {
				found = append(found, i)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no PostgreSQL server on this machine (GEN-5): install the package postgresql (Debian, Alpine) or postgresql-server (Fedora), or name the folder of initdb and postgres with --postgres-bin")
	}
	return found, nil
}

// versionLine is the answer to postgres --version.
var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

func look(dir string) (installation, error) {
	for _, name := range []string{"initdb", "pg_controldata"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return installation{}, err
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return installation{}, fmt.Errorf("ask postgres its version: %w", err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return installation{}, fmt.Errorf("postgres says its version is %.80q", out)
	}
	major, err := strconv.Atoi(string(m[1]))
	return installation{dir, major}, err
}

// madeBy is the major version that made the cluster.
func madeBy(data string) (int, error) {
	text, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("cluster %s: version %.20q is not a number: restore it from a backup", data, text)
	}
	return major, nil
}
