package postgres

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// GEN-5: the binaries are found, and what is missing is said.
func TestFind(t *testing.T) {
	dir, major, err := Find("")
	if err != nil {
		t.Fatal(err)
	}
	if again, same, err := Find(dir); err != nil || again != dir || same != major {
		t.Errorf("named: %s, %d, %v", again, same, err)
	}
	if _, _, err := Find(t.TempDir()); err == nil {
		t.Error("found PostgreSQL in an empty folder")
	}
	old := places
	defer func() { places = old }()
	places = nil
	t.Setenv("PATH", dir)
	if got, _, err := Find(""); err != nil || got != dir {
		t.Errorf("from PATH: %s, %v", got, err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, _, err := Find(""); err == nil || !strings.Contains(err.Error(), "install the package postgresql") {
		t.Errorf("with none: %v", err)
	}
}

// GEN-5: binaries for a cluster are those of its major.
func TestFindFor(t *testing.T) {
	_, major, err := Find("")
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	if _, got, err := FindFor("", data); err != nil || got != major {
		t.Errorf("without a cluster: %d, %v", got, err)
	}
	version := func(v int) {
		if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), fmt.Appendln(nil, v), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	version(major)
	if _, got, err := FindFor("", data); err != nil || got != major {
		t.Errorf("same major: %d, %v", got, err)
	}
	version(9)
	var wrong *WrongMajor
	if _, _, err := FindFor("", data); !errors.As(err, &wrong) || wrong.Have != 9 {
		t.Errorf("other major: %v", err)
	}
}
