package identity_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

func node(t testing.TB) identity.NodeKeys {
	t.Helper()
	k, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// files reads a folder whole.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(data)
	}
	return all
}

// NODE-1
func TestNodeKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "node", "keys")
	k := node(t)
	if err := k.Save(dir); err != nil {
		t.Fatal(err)
	}
	saved := files(t, dir)
	for name := range saved {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
	if len(saved) != 5 {
		t.Errorf("files %v, want five keys and nothing else", saved)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
	got, err := identity.LoadNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(k.Public(), got.Public()); diff != "" {
		t.Error(diff)
	}
	if !k.Identity.Equal(got.Identity) || k.Overlay != got.Overlay || k.Sealing.String() != got.Sealing.String() || !k.TLS.Equal(got.TLS) {
		t.Error("private halves differ")
	}
	public, err := identity.ParsePublic(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	if !public.Identity.Equal(k.Identity.Public()) || public.Overlay != identity.OverlayPublic(k.Overlay) || !public.TLS.Equal(&k.TLS.PublicKey) {
		t.Error("public halves differ")
	}
}

func TestMeshKeys(t *testing.T) {
	dir := t.TempDir()
	k, err := identity.GenerateMesh()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Save(dir); err != nil {
		t.Fatal(err)
	}
	got, err := identity.LoadMesh(dir)
	if err != nil {
		t.Fatal(err)
	}
	bus, _ := got.ControllerBus.PublicKey()
	modules, _ := got.ControllerModulesBus.PublicKey()
	wantBus, _ := k.ControllerBus.PublicKey()
	wantModules, _ := k.ControllerModulesBus.PublicKey()
	if !k.Signing.Equal(got.Signing) || k.Sealing.String() != got.Sealing.String() || !k.Authority.Equal(got.Authority) || k.Challenge != got.Challenge ||
		bus != wantBus || modules != wantModules || bus == modules {
		t.Error("the keys differ")
	}
	if n := len(files(t, dir)); n != 6 {
		t.Errorf("%d files", n)
	}
}

// NODE-3: what a printed line pins holds over every start of the hub, until somebody removes the key.
func TestServerKeyStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := identity.ServerKey(dir, "downloads")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "downloads.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := identity.ServerKey(dir, "downloads"); err != nil || !again.Equal(first) {
		t.Errorf("another key at the second start: %v", err)
	}
	if err := os.Truncate(path, 60); err != nil {
		t.Fatal(err)
	}
	if key, err := identity.ServerKey(dir, "downloads"); appliance.KindOf(err) != appliance.Invalid || key != nil {
		t.Errorf("a damaged key: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if other, err := identity.ServerKey(dir, "downloads"); err != nil || other.Equal(first) {
		t.Errorf("after it was removed: %v", err)
	}
}

// NODE-1, SAFE-5: an existing key is never replaced, and what a crash left out is filled in.
func TestFirstKeysStay(t *testing.T) {
	dir := t.TempDir()
	first, second := node(t), node(t)
	if err := first.Save(dir); err != nil {
		t.Fatal(err)
	}
	before := files(t, dir)
	half := filepath.Join(dir, ".tls.key.123") // of a process that was killed in it
	if err := os.WriteFile(half, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, lost := range []string{"tls.key", "bus.key"} { // the crash came before these
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(half); !os.IsNotExist(err) {
		t.Errorf("half a key is left: %v", err)
	}
	after := files(t, dir)
	for name, text := range before {
		if same := after[name] == text; same != (name != "tls.key" && name != "bus.key") {
			t.Errorf("%s: the same as before is %v", name, same)
		}
	}
	if err := first.Save(dir); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(after, files(t, dir)); diff != "" {
		t.Error("a third save changed something")
	}
	got, err := identity.LoadNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := first.Public()
	want.TLS, want.Bus = second.Public().TLS, second.Public().Bus
	if diff := cmp.Diff(want, got.Public()); diff != "" {
		t.Error(diff)
	}
}

// Many writers at once leave one whole set, whoever wins.
func TestRacingSaves(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		k := node(t)
		all.Go(func() {
			if err := k.Save(dir); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(files(t, dir)); n != 5 {
		t.Errorf("%d files", n)
	}
	if _, err := identity.LoadNode(dir); err != nil {
		t.Error(err)
	}
}

// SAFE-1, SAFE-4
func TestLoadRefuses(t *testing.T) {
	dir := t.TempDir()
	k := node(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, c := range map[string]struct {
		spoil func() error
		want  appliance.Kind
		says  string
	}{
		"readable by the group": {func() error { return os.Chmod(path("tls.key"), 0o640) }, appliance.Denied, "0640"},
		"readable by all":       {func() error { return os.Chmod(path("identity.key"), 0o604) }, appliance.Denied, "0604"},
		"missing":               {func() error { return os.Remove(path("sealing.key")) }, appliance.NotFound, "sealing.key"},
		"empty":                 {func() error { return os.WriteFile(path("overlay.key"), nil, 0o600) }, appliance.Invalid, "overlay.key"},
		"zeros": {func() error {
			return os.WriteFile(path("overlay.key"), []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600)
		}, appliance.Invalid, "overlay.key"},
		"half":      {func() error { return os.Truncate(path("identity.key"), 60) }, appliance.Invalid, "identity.key"},
		"too large": {func() error { return os.WriteFile(path("bus.key"), bytes.Repeat([]byte{'A'}, 5000), 0o600) }, appliance.Invalid, "4096"},
		"a folder":  {func() error { os.Remove(path("bus.key")); return os.Mkdir(path("bus.key"), 0o700) }, appliance.Invalid, "regular"},
		"a key of another kind": {func() error {
			data, err := os.ReadFile(path("identity.key"))
			if err != nil {
				return err
			}
			return os.WriteFile(path("tls.key"), data, 0o600)
		}, appliance.Invalid, "tls.key"},
		"an account's nkey": {func() error {
			account, err := nkeys.CreateAccount()
			if err != nil {
				return err
			}
			seed, err := account.Seed()
			if err != nil {
				return err
			}
			return os.WriteFile(path("bus.key"), seed, 0o600)
		}, appliance.Invalid, "bus.key"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := k.Save(dir); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(); err != nil {
				t.Fatal(err)
			}
			got, err := identity.LoadNode(dir)
			if err == nil || appliance.KindOf(err) != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %s that says %s", err, c.want, c.says)
			}
			if got.Identity != nil || got.TLS != nil {
				t.Error("it gives some keys all the same")
			}
		})
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path("bus.key"), path("real")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("real"), path("bus.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadNode(dir); err == nil {
		t.Error("followed a link to a key")
	}
}

// A damaged key file is named, and nothing of it is repeated.
func TestErrorsKeepSecrets(t *testing.T) {
	dir := t.TempDir()
	if err := node(t).Save(dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range files(t, dir) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text[:len(text)-6]+"?\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := identity.LoadNode(dir)
		if err == nil {
			t.Fatalf("%s: damaged and loaded", name)
		}
		secret := strings.Split(text, "\n")[0]
		if strings.HasPrefix(text, "-----") {
			secret = strings.Split(text, "\n")[1]
		}
		if strings.Contains(err.Error(), secret[:12]) || strings.Contains(appliance.AsError(err).Hint, secret[:12]) {
			t.Errorf("%s: the error repeats the key: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// NODE-1, SAFE-4: strict, one spelling per key, no key with two uses.
func TestParsePublicRefuses(t *testing.T) {
	good, other := node(t).Public(), node(t).Public()
	wide := func(s string, bit byte) string {
		raw, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		raw[31] |= bit
		return base64.StdEncoding.EncodeToString(raw)
	}
	prime := append([]byte{0xed}, bytes.Repeat([]byte{0xff}, 30)...)
	same := node(t)
	same.Identity = ed25519.NewKeyFromSeed(rawSeed(t, same))
	for name, spoil := range map[string]func(*wire.PublicKeys){
		"no identity":           func(p *wire.PublicKeys) { p.Identity = "" },
		"identity of zeros":     func(p *wire.PublicKeys) { p.Identity = base64.StdEncoding.EncodeToString(make([]byte, 32)) },
		"identity, url base64":  func(p *wire.PublicKeys) { p.Identity = strings.Repeat("-", 43) + "=" },
		"identity, a newline":   func(p *wire.PublicKeys) { p.Identity += "\n" },
		"identity, newline in":  func(p *wire.PublicKeys) { p.Identity = p.Identity[:9] + "\n" + p.Identity[9:] },
		"identity, 33 bytes":    func(p *wire.PublicKeys) { p.Identity = base64.StdEncoding.EncodeToString(make([]byte, 33)) },
		"no overlay":            func(p *wire.PublicKeys) { p.Overlay = "" },
		"overlay, top bit":      func(p *wire.PublicKeys) { p.Overlay = wide(p.Overlay, 0x80) },
		"overlay, not reduced":  func(p *wire.PublicKeys) { p.Overlay = base64.StdEncoding.EncodeToString(append(prime, 0x7f)) },
		"no sealing":            func(p *wire.PublicKeys) { p.Sealing = "" },
		"sealing in capitals":   func(p *wire.PublicKeys) { p.Sealing = strings.ToUpper(p.Sealing) },
		"a private sealing key": func(p *wire.PublicKeys) { p.Sealing = node(t).Sealing.String() },
		"no TLS":                func(p *wire.PublicKeys) { p.TLS = "" },
		"identity as TLS":       func(p *wire.PublicKeys) { p.TLS = p.Identity },
		"much as TLS":           func(p *wire.PublicKeys) { p.TLS = strings.Repeat("A", 4000) },
		"no bus":                func(p *wire.PublicKeys) { p.Bus = "" },
		"an account as bus":     func(p *wire.PublicKeys) { p.Bus = "A" + p.Bus[1:] },
		"two uses":              func(p *wire.PublicKeys) { p.Identity = same.Public().Identity; p.Bus = same.Public().Bus },
	} {
		p := good
		spoil(&p)
		if _, err := identity.ParsePublic(p); err == nil || appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := good
	p.TLS = other.TLS
	if _, err := identity.ParsePublic(p); err != nil {
		t.Errorf("a good set: %v", err)
	}
	if got := (identity.NodeKeys{}).Public(); got.Identity != "" || got.Sealing != "" || got.Bus != "" {
		t.Errorf("no keys give %+v", got)
	}
	if _, err := identity.ParsePublic((identity.NodeKeys{}).Public()); err == nil {
		t.Error("no keys were taken")
	}
}

// rawSeed gives the seed inside the bus key.
func rawSeed(t *testing.T, k identity.NodeKeys) []byte {
	private, err := k.Bus.PrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := nkeys.Decode(nkeys.PrefixBytePrivate, private)
	if err != nil {
		t.Fatal(err)
	}
	return raw[:32]
}

func TestTrust(t *testing.T) {
	dir := t.TempDir()
	if _, err := identity.ReadTrust(dir); err == nil || appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("none yet: %v", err)
	}
	want := identity.Trust{Mesh: appliance.NewMeshID(), MeshName: "home", Signing: node(t).Identity.Public().(ed25519.PublicKey),
		Authority: []byte{1}, Broker: []string{"hub:4222"}, Node: appliance.NewNodeID(), Name: "box"}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := identity.ReadTrust(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for name, spoil := range map[string]func(*identity.Trust){
		"no mesh": func(t *identity.Trust) { t.Mesh = "" }, "no node": func(t *identity.Trust) { t.Node = "" },
		"no key": func(t *identity.Trust) { t.Signing = nil }, "zero key": func(t *identity.Trust) { t.Signing = make([]byte, 32) },
		"no authority": func(t *identity.Trust) { t.Authority = nil }, "no broker": func(t *identity.Trust) { t.Broker = nil },
	} {
		bad := want
		spoil(&bad)
		if err := bad.Write(dir); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, identity.TrustFile), []byte(`{"mesh":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.ReadTrust(dir); err == nil {
		t.Error("half a file was read")
	}
}

// SAFE-4: keys that reach a log by accident say nothing.
func TestKeysShowNothing(t *testing.T) {
	mesh, err := identity.GenerateMesh()
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range []any{node(t), mesh} {
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "keys", keys)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "keys", keys)
		fmt.Fprintf(&log, "%v %+v %s\n", keys, keys, keys)
		if n := strings.Count(log.String(), "keys of a "); n != 5 || log.Len() > 400 {
			t.Errorf("shown as %s", log.String())
		}
	}
}
