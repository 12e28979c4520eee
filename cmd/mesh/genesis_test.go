package main

import (
	"os"
	"testing"

	"github.com/novox/mesh/appliance/installation"
)

// Genesis given anew with a newer binary does not let somebody believe that this upgraded the hub.
func TestOtherBuild(t *testing.T) {
	i, err := installation.Find(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if otherBuild(i) {
		t.Error("there is no binary, and it is another one")
	}
	if err := os.Mkdir(i.Dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	this, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		binary []byte
		other  bool
	}{{this, false}, {append(this, 0), true}} {
		if err := os.WriteFile(i.Binary(), c.binary, 0o755); err != nil {
			t.Fatal(err)
		}
		if got := otherBuild(i); got != c.other {
			t.Errorf("%d bytes: another build is %v, not %v", len(c.binary), got, c.other)
		}
	}
}
