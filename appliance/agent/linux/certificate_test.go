package linux

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// certified is a certificate resource and the authority that signs for it.
type certified struct {
	t         *testing.T
	m         host.Machine
	authority *pki.Authority
	spec      wire.CertificateSpec
}

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := pki.NewAuthority(testMesh, key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a, err := pki.LoadAuthority(testMesh, der, key)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newCertified(t *testing.T) *certified {
	t.Helper()
	m, in := machine(t)
	a := newAuthority(t)
	os.MkdirAll(in.Module("hello"), 0o755)
	return &certified{t, m, a, wire.CertificateSpec{Name: "web", Names: []string{"hello.internal", "hello.n1.internal"}, Owner: person(t),
		Authority: a.Certificate.Raw, Folder: filepath.Join(in.Module("hello"), "certificates", "web")}}
}

func (c *certified) resource() wire.Resource { return resource(wire.Certificate, "web", c.spec) }

func (c *certified) file(name string) string { return filepath.Join(c.spec.Folder, name) }

func (c *certified) request() []byte {
	c.t.Helper()
	der, err := c.m.Request(c.t.Context(), c.resource())
	if err != nil {
		c.t.Fatal(err)
	}
	return der
}

// sign puts a certificate for what is asked into the spec.
func (c *certified) sign(names ...string) {
	c.t.Helper()
	key, err := pki.ParseRequest(c.request())
	if err != nil {
		c.t.Fatal(err)
	}
	if c.spec.Certificate, err = c.authority.Issue(pki.Request{Public: key, Names: names, Usage: pki.Server | pki.Client, Now: time.Now()}); err != nil {
		c.t.Fatal(err)
	}
}

// waits sees that the certificate is waited for, and that none lies there.
func (c *certified) waits(why string) {
	c.t.Helper()
	if err := effector(c.m, c.resource()).Do(c.t.Context(), c.resource()); appliance.KindOf(err) != appliance.NotReady {
		c.t.Fatalf("%s: %v", why, err)
	}
	if o := observe(c.t, c.m, c.resource()); !o.Present || o.Matches || o.Differs == "" {
		c.t.Errorf("%s: %+v", why, o)
	}
}

// PKI-3, PKI-1: the key is made here and only its user reads it; what the mesh signs for exactly this key and these names is laid beside
// it, and serves; everything goes with the resource.
func TestCertificate(t *testing.T) {
	c := newCertified(t)
	if o := observe(t, c.m, c.resource()); o.Present || c.request() != nil {
		t.Errorf("before: %+v", o)
	}
	c.waits("nothing signed yet")
	uid, _ := userID(c.spec.Owner)
	gid, _ := groupID(c.spec.Owner)
	for path, want := range map[string]string{c.spec.Folder: fmt.Sprintf("40750 0:%d ", gid), c.file("key.pem"): fmt.Sprintf("100600 %d:%d ", uid, gid), c.file("request.der"): "100600 0:0 "} {
		if got := state(path); !strings.HasPrefix(got, want) {
			t.Errorf("%s is %.20s, want %s", path, got, want)
		}
	}
	first := c.request()
	c.waits("still nothing")
	if !slices.Equal(first, c.request()) {
		t.Error("it asks anew for the same key")
	}
	others := slices.Clone(c.spec.Names)
	c.sign(others[0])
	c.waits("other names")
	stranger, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c.spec.Certificate, _ = c.authority.Issue(pki.Request{Public: &stranger.PublicKey, Names: others, Usage: pki.Server, Now: time.Now()})
	c.waits("another key")
	c.spec.Certificate = []byte("rubbish")
	c.waits("no certificate")
	if _, err := os.Lstat(c.file("cert.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a certificate lies there: %v", err)
	}
	c.sign(others...)
	do(t, c.m, c.resource())
	pair, err := tls.LoadX509KeyPair(c.file("cert.pem"), c.file("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(c.file("ca.pem"))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	leaf, _ := x509.ParseCertificate(pair.Certificate[0])
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "hello.internal", Roots: roots}); err != nil {
		t.Error(err)
	}
	as(t, c.spec.Owner, "cat", c.file("key.pem"), c.file("cert.pem"), c.file("ca.pem"))

	c.sign(others...) // renewed for the same key
	if o := observe(t, c.m, c.resource()); o.Matches || o.Differs != "cert.pem: content" {
		t.Errorf("renewed: %+v", o)
	}
	do(t, c.m, c.resource())
	if !slices.Equal(first, c.request()) {
		t.Error("the key was replaced with its certificate")
	}
	c.spec.Authority = nil
	do(t, c.m, c.resource())
	if _, err := os.Lstat(c.file("ca.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the authority, which is not asked for: %v", err)
	}
	undo(t, c.m, c.resource(), nil)
	if _, err := os.Lstat(filepath.Dir(c.spec.Folder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// DEC-6, PKI-3: a key that is not the certificate's, or that is gone, is replaced by a new one, and its certificate goes before that;
// everything else is put right as it was.
func TestCertificateDrift(t *testing.T) {
	c := newCertified(t)
	c.waits("first")
	c.sign(c.spec.Names...)
	do(t, c.m, c.resource())
	another, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, _ := x509.MarshalPKCS8PrivateKey(another)
	for name, d := range map[string]struct {
		change func() error
		newKey bool
	}{
		"key gone":          {func() error { return os.Remove(c.file("key.pem")) }, true},
		"key replaced":      {func() error { return os.WriteFile(c.file("key.pem"), pki.EncodePEM(der), 0o600) }, true},
		"key emptied":       {func() error { return os.Truncate(c.file("key.pem"), 0) }, true},
		"request gone":      {func() error { return os.Remove(c.file("request.der")) }, true},
		"request damaged":   {func() error { return os.WriteFile(c.file("request.der"), []byte("x"), 0o600) }, true},
		"all gone":          {func() error { return os.RemoveAll(c.spec.Folder) }, true},
		"key's mode":        {func() error { return os.Chmod(c.file("key.pem"), 0o644) }, false},
		"key's owner":       {func() error { return os.Chown(c.file("key.pem"), 0, 0) }, false},
		"folder's mode":     {func() error { return os.Chmod(c.spec.Folder, 0o755) }, false},
		"certificate gone":  {func() error { return os.Remove(c.file("cert.pem")) }, false},
		"certificate other": {func() error { return os.WriteFile(c.file("cert.pem"), c.pem(), 0o644) }, false},
		"authority other":   {func() error { return os.WriteFile(c.file("ca.pem"), c.pem(), 0o644) }, false},
	} {
		before := c.request()
		if err := d.change(); err != nil {
			t.Fatal(name, err)
		}
		if o := observe(t, c.m, c.resource()); o.Matches || o.Present && o.Differs == "" || strings.Contains(o.Differs, "PRIVATE") {
			t.Errorf("%s: %+v", name, o)
		}
		if d.newKey {
			c.waits(name)
			if _, err := os.Lstat(c.file("cert.pem")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: a certificate for another key lies there: %v", name, err)
			}
			c.sign(c.spec.Names...)
		}
		do(t, c.m, c.resource())
		if again := c.request(); slices.Equal(before, again) == d.newKey {
			t.Errorf("%s: new key: %v, want %v", name, !d.newKey, d.newKey)
		}
		if _, err := tls.LoadX509KeyPair(c.file("cert.pem"), c.file("key.pem")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// pem is a certificate of the same authority for another key.
func (c *certified) pem() []byte {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, _ := c.authority.Issue(pki.Request{Public: &key.PublicKey, Names: c.spec.Names, Usage: pki.Server, Now: time.Now()})
	return pki.EncodePEM(der)
}

// SAFE-3: a folder that a module's user has put a link in the place of is not followed.
func TestCertificateLinks(t *testing.T) {
	c := newCertified(t)
	c.spec.Authority = nil
	elsewhere := t.TempDir()
	theirs := filepath.Dir(filepath.Dir(c.spec.Folder))
	uid, _ := userID(c.spec.Owner)
	os.Chown(theirs, uid, uid)
	if err := os.Symlink(elsewhere, filepath.Dir(c.spec.Folder)); err != nil {
		t.Fatal(err)
	}
	if err := effector(c.m, c.resource()).Do(t.Context(), c.resource()); err == nil || appliance.KindOf(err) == appliance.NotReady {
		t.Errorf("followed: %v", err)
	}
	if made, _ := os.ReadDir(elsewhere); len(made) > 0 {
		t.Errorf("made %v", made)
	}
}
