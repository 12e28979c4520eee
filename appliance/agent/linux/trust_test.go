package linux

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// apart runs the test in a process with a mount namespace of its own, in which these files and folders are empty; false for who calls.
func apart(t *testing.T, paths ...string) bool {
	t.Helper()
	if os.Getenv("MESH_TEST_APART") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), "MESH_TEST_APART=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return false
	}
	for _, path := range paths {
		empty := t.TempDir()
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() {
			empty = filepath.Join(empty, "file")
			if err := os.WriteFile(empty, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mount(empty, path, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	}
	return true
}

// trustApart is apart from what this machine trusts, where others are trusted already. Nobody is told of changes: Java's package would take
// them up in the machine's own list of packages.
func trustApart(t *testing.T, store trustStore) bool {
	t.Helper()
	if !apart(t, store.folder, filepath.Dir(store.bundle), "/etc/ca-certificates.conf", "/etc/ca-certificates/update.d") {
		return false
	}
	for _, other := range []appliance.MeshID{"mbbbbbbbbbbbbbbb", "mccccccccccccccc"} { // others are trusted already
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		der, err := pki.NewAuthority(other, key, time.Now())
		if err := errors.Join(err, os.WriteFile(trusted{other}.file(store), pki.EncodePEM(der), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	return true
}

// DEC-4, DEC-6, DEC-13: the machine's programs trust the mesh's authority while somebody needs that, what was taken out is put back, and
// afterwards everything is as it was, also when a kill came in between.
func TestTrust(t *testing.T) {
	m, _ := machine(t)
	store := trustStores[0]
	if _, err := run.Find(store.update[0]); err != nil {
		t.Skip("changes a copy of what this machine trusts: install ca-certificates")
	}
	if !trustApart(t, store) {
		return
	}
	a := newAuthority(t)
	r := resource(wire.Trust, "mesh", wire.TrustSpec{Name: "mesh", Authority: a.Certificate.Raw})
	before := listed(t, store)
	if o := observe(t, m, r); o.Present {
		t.Errorf("before: %+v", o)
	}
	do(t, m, r)
	own, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	leafDER, err := a.Issue(pki.Request{Public: &own.PublicKey, Names: []string{"x.internal"}, Usage: pki.Server, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(leafDER)
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "x.internal"}); err != nil { // with what the system trusts
		t.Error(err)
	}
	file := trusted{testMesh}.file(store)
	for name, change := range map[string]func() error{
		"file gone": func() error { return os.Remove(file) },
		"file other": func() error {
			return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}), 0o644)
		},
		"mode": func() error { return os.Chmod(file, 0o600) },
		"bundle made": func() error {
			return errors.Join(os.Rename(file, file+".x"), store.make(t.Context()), os.Rename(file+".x", file))
		},
		"bundle gone": func() error { return os.Remove(store.bundle) },
	} {
		if err := change(); err != nil {
			t.Fatal(name, err)
		}
		if o := observe(t, m, r); o.Matches || o.Present && o.Differs == "" {
			t.Errorf("%s: %+v", name, o)
		}
		do(t, m, r)
	}
	undo(t, m, r, nil)
	if d := cmp.Diff(before, listed(t, store)); d != "" {
		t.Error("afterwards:\n" + d)
	}
	do(t, m, r)
	if err := os.Remove(file); err != nil { // killed in between
		t.Fatal(err)
	}
	undo(t, m, r, nil)
	if d := cmp.Diff(before, listed(t, store)); d != "" {
		t.Error("afterwards, killed:\n" + d)
	}
	bad := resource(wire.Trust, "mesh", wire.TrustSpec{Name: "mesh", Authority: leafDER})
	if err := effector(m, bad).Do(t.Context(), bad); appliance.KindOf(err) != appliance.Invalid {
		t.Errorf("no authority: %v", err)
	}
}

// listed is everything that a machine trusts.
func listed(t *testing.T, s trustStore) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, dir := range []string{s.folder, filepath.Dir(s.bundle)} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			content, _ := os.ReadFile(filepath.Join(dir, e.Name()))
			target, _ := os.Readlink(filepath.Join(dir, e.Name()))
			all[filepath.Join(dir, e.Name())] = target + "\n" + string(content)
		}
	}
	return all
}
