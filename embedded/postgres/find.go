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

// WrongMajor says that the cluster was made by a major version of which there
// are no binaries. PostgreSQL starts a cluster only with the one that made it.
type WrongMajor struct {
	Data string // the cluster's folder
	Have int    // major that made it
	Want int    // newest major of the binaries at hand; 0: there are none
	Bin  string // their folder
}

func (e *WrongMajor) Error() string {
	here := "no PostgreSQL is on this machine"
	if e.Want != 0 {
		here = fmt.Sprintf("the binaries at hand are of %d, in %s", e.Want, e.Bin)
	}
	return fmt.Sprintf("cluster %s was made by PostgreSQL %d, and %s (GEN-5): run `mesh store upgrade`, or install PostgreSQL %[2]d", e.Data, e.Have, here)
}

// places is where distributions put the binaries of each major version.
var places = []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/libexec/postgresql*", "/usr/lib64/pgsql/postgresql-*/bin"}

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
// the major that made it will do, be they in bin or elsewhere on the machine.
// With none, the error is a *WrongMajor.
func FindFor(bin, data string) (dir string, major int, err error) {
	made, err := MadeBy(data)
	if errors.Is(err, os.ErrNotExist) {
		return Find(bin)
	}
	if err != nil {
		return "", 0, err
	}
	found := installed()
	if bin != "" {
		if i, err := look(bin); err == nil {
			found = append([]installation{i}, found...)
		}
	}
	wrong := &WrongMajor{Data: data, Have: made}
	for _, i := range found {
		if i.major == made {
			return i.dir, i.major, nil
		}
		if i.major > wrong.Want {
			wrong.Want, wrong.Bin = i.major, i.dir
		}
	}
	return "", 0, wrong
}

// find is what Find chooses from, newest first, at least one.
func find(bin string) ([]installation, error) {
	if bin != "" {
		i, err := look(bin)
		if err != nil {
			return nil, fmt.Errorf("PostgreSQL in %s: %w", bin, err)
		}
		return []installation{i}, nil
	}
	found := installed()
	if len(found) == 0 {
		return nil, errors.New("no PostgreSQL server on this machine (GEN-5): install the package postgresql (Debian, Alpine) or postgresql-server (Fedora), or name the folder of initdb and postgres with --postgres-bin")
	}
	return found, nil
}

// installed lists what the machine has, newest first.
func installed() []installation {
	var found []installation
	for _, place := range places {
		dirs, _ := filepath.Glob(place) // the patterns are good
		for _, dir := range dirs {
			if i, err := look(dir); err == nil {
				found = append(found, i)
			}
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			if i, err := look(filepath.Dir(path)); err == nil && !slices.Contains(found, i) {
				found = append(found, i)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b installation) int { return cmp.Compare(b.major, a.major) })
	return found
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

// MadeBy is the major version that made the cluster.
func MadeBy(data string) (int, error) {
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
