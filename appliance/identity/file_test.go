package identity

import (
	"os"
	"path/filepath"
	"testing"
)

// SAFE-5: a writer that did not see the other's file still does not replace it, and leaves nothing else behind.
func TestCreateNeverReplaces(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"first", "second"} {
		if err := create(dir, "a.key", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "a.key"))
	if err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
}
