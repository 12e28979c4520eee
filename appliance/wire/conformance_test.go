package wire_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// fixture is one folder of conformance.
type fixture struct {
	name   string
	header wire.Header
	head   []byte
	body   []byte
	sealed []byte
	key    ed25519.PrivateKey
}

func (f fixture) public() ed25519.PublicKey { return f.key.Public().(ed25519.PublicKey) }

func fixtures(t testing.TB) []fixture {
	t.Helper()
	dirs, err := filepath.Glob("conformance/*/header.json")
	if err != nil || len(dirs) < 11 {
		t.Fatalf("found %d fixtures: %v", len(dirs), err)
	}
	read := func(dir, name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	unhex := func(text []byte) []byte {
		data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var all []fixture
	for _, path := range dirs {
		dir := filepath.Dir(path)
		f := fixture{name: filepath.Base(dir), head: read(dir, "header.json"), body: read(dir, "body"), sealed: unhex(read(dir, "sealed.hex"))}
		f.key = ed25519.NewKeyFromSeed(unhex(read(dir, "key.hex")))
		if err := wire.Decode(f.head, &f.header); err != nil {
			t.Fatalf("%s: header: %v", f.name, err)
		}
		all = append(all, f)
	}
	return all
}

func named(t testing.TB, name string) fixture {
	for _, f := range fixtures(t) {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("no fixture %s", name)
	return fixture{}
}

// The envelopes another implementation made are those we make, and we read them.
func TestConformance(t *testing.T) {
	for _, f := range fixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			h := f.header
			h.Digest = "" // Seal fills it in
			sealed, err := wire.Seal(h, f.body, f.key)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(sealed, f.sealed) {
				t.Errorf("sealed otherwise:\n%q\nwant\n%q", sealed, f.sealed)
			}
			got, body, err := wire.Open(f.sealed, f.header.Kind, f.public())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(f.header, got); diff != "" {
				t.Error(diff)
			}
			if !bytes.Equal(body, f.body) {
				t.Errorf("body %q", body)
			}
			head, err := wire.Encode(got)
			if err != nil || !bytes.Equal(head, f.head) {
				t.Errorf("header encodes as %q, %v", head, err)
			}
		})
	}
}

// Bodies read strictly and encode to the same bytes.
func TestBodies(t *testing.T) {
	forms := map[string]any{
		"v0-alive": new(wire.Alive), "v0-replace": new(wire.Replace), "declaration": new(wire.Content), "membership": new(wire.Membership),
		"report": new(wire.Report), "hello": new(wire.Hello), "challenge": new(wire.Challenge), "claim": new(wire.Claim),
		"rekey": new(wire.Rekey), "refusal": new(appliance.Error),
	}
	for name, form := range forms {
		f := named(t, name)
		if err := wire.Decode(f.body, form); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := wire.Encode(form)
		if err != nil || !bytes.Equal(again, f.body) {
			t.Errorf("%s encodes as\n%s, %v\nwant\n%s", name, again, err, f.body)
		}
		foreign := append([]byte(`{"foreign":1,`), f.body[1:]...)
		if err := wire.Decode(foreign, form); err == nil {
			t.Errorf("%s: an unknown field was read", name)
		}
	}
}

// Version 0 never changes: neither the code nor the files may move, not even together. UPG-3
func TestVersionZeroIsFrozen(t *testing.T) {
	for name, want := range map[string]appliance.Digest{
		"v0-alive":   "sha256:669fdf649c75f4d5169116afee1cbb42c072bcdc945a9e6875a9ac81ec91b2eb",
		"v0-replace": "sha256:b2f2ddc9a8cb38b2dd13b412e44c64900a8f12bb8e925b0779a7fe693a65f73a",
	} {
		f := named(t, name)
		if got := appliance.DigestOf(f.sealed); got != want {
			t.Errorf("%s: the frozen file has digest %s, want %s", name, got, want)
		}
		if f.header.Version != 0 {
			t.Errorf("%s is of version %d", name, f.header.Version)
		}
	}
	var alive wire.Alive
	if err := wire.Decode(named(t, "v0-alive").body, &alive); err != nil {
		t.Fatal(err)
	}
	if alive.Number != (appliance.Number{Epoch: 1, Counter: 7}) || alive.Run != "r1" || alive.Capabilities.Init != "systemd" {
		t.Errorf("alive reads as %+v", alive)
	}
	more := append([]byte(`{"later":1,`), named(t, "v0-alive").body[1:]...)
	if again, err := wire.ParseAlive(more); err != nil || !cmp.Equal(alive, again) {
		t.Errorf("an alive with a later field reads as %+v, %v", again, err)
	}
	var replace wire.Replace
	if err := wire.Decode(named(t, "v0-replace").body, &replace); err != nil {
		t.Fatal(err)
	}
	if replace.Agent.Size != 23456789 || replace.Agent.Path != "/bin/linux-amd64/mesh" || replace.Agent.Port != 8443 || !replace.Agent.Digest.Valid() {
		t.Errorf("replace reads as %+v", replace)
	}
}
