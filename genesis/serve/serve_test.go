package serve

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
)

// GEN-4, SAFE-4: a store file is one DSN that only its owner can read; a refusal does not repeat the password.
func TestReadDSN(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dsn")
	const dsn = "postgres://u:geheim@db/mesh"
	for name, c := range map[string]struct {
		content string
		mode    os.FileMode
		says    string // empty: read
	}{
		"good":           {dsn + "\n", 0o600, ""},
		"keywords":       {"host=/run/postgresql dbname=mesh", 0o400, ""},
		"group reads":    {dsn, 0o640, "others may read it (mode 0640)"},
		"others read":    {dsn, 0o604, "others may read it (mode 0604)"},
		"empty":          {" \n", 0o600, "no single DSN"},
		"two lines":      {dsn + "\n" + dsn, 0o600, "no single DSN"},
		"port of no DSN": {"postgres://u:geheim@db:port/mesh", 0o600, path},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(path)
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			got, err := ReadDSN(path)
			if c.says == "" {
				if err != nil || got != strings.TrimSpace(c.content) {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			if err == nil || got != "" || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "geheim") || appliance.AsError(err).Hint == "" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// GEN-3: what was decided is read again as it was; a file of another version is refused.
func TestSettings(t *testing.T) {
	i := installation.Installation{Dir: t.TempDir()}
	if err := os.Mkdir(i.Hub(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSettings(i); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none yet: %v", err)
	}
	want := Settings{Mesh: appliance.NewMeshID(), Name: "home", Endpoints: []string{"h:1"}, Ports: Ports{1, 2, 3, 4}}
	if err := want.Write(i); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSettings(i)
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(), cmpopts.IgnoreFields(Settings{}, "Version", "Range", "Hub")); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	// A hub from before there was an artifact store gets it on its default port.
	if err := os.WriteFile(SettingsFile(i), []byte(`{"version":1,"ports":{"broker":1,"downloads":2,"overlay":3}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSettings(i); err != nil || got.Ports != (Ports{1, 2, 4281, 3}) {
		t.Errorf("%v, %v", got.Ports, err)
	}
	if err := os.WriteFile(SettingsFile(i), []byte(`{"version":2}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSettings(i); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "version 2, this binary reads 1") {
		t.Errorf("another version: %v", err)
	}
}

// SAFE-2: root's agent is held up by nothing that user mesh puts in place of hub.json, and led nowhere else.
func TestSettingsThatAreNone(t *testing.T) {
	i := installation.Installation{Dir: t.TempDir()}
	if err := os.MkdirAll(i.Hub(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, put := range map[string]func(path string) error{
		"a pipe":     func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":     func(path string) error { return os.Symlink("/dev/zero", path) },
		"a folder":   func(path string) error { return os.Mkdir(path, 0o700) },
		"large ones": func(path string) error { return os.WriteFile(path, make([]byte, maxSettings+1), 0o600) },
	} {
		if err := put(SettingsFile(i)); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSettings(i); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(SettingsFile(i)); err != nil {
			t.Fatal(err)
		}
	}
}
