package linux

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/registry"
)

// artifactStore is a real one, which gives what it has to one node only.
type artifactStore struct {
	t      *testing.T
	m      host.Machine
	in     installation.Installation
	client artifacts.Client
	at     wire.ArtifactStore
	server *http.Server
}

func newArtifactStore(t *testing.T) *artifactStore {
	t.Helper()
	m, in := machine(t)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	authority := newAuthority(t)
	der := authority.Certificate.Raw
	issue := func(key *ecdsa.PublicKey, name string, usage pki.Usage) []byte {
		der, err := authority.Issue(pki.Request{Public: key, Names: []string{name}, Usage: usage, Now: time.Now()})
		check(err)
		return der
	}
	keys, err := identity.GenerateNode()
	check(err)
	check(keys.Save(in.NodeKeys()))
	signing, _, _ := ed25519.GenerateKey(rand.Reader)
	node := appliance.NewNodeID()
	check(identity.Trust{Mesh: testMesh, MeshName: "test", Signing: signing, Authority: der, Broker: []string{"x:1"}, Node: node, Name: "n1"}.Write(in.Node()))
	check(os.WriteFile(in.Certificate(), pki.EncodePEM(issue(&keys.TLS.PublicKey, pki.NodeCertName(node), pki.Client)), 0o600))

	r, err := registry.Open(registry.Config{Dir: filepath.Join(t.TempDir(), "store"), MinFree: 1, Authorize: func(r *http.Request, a registry.Action, _ string, _ digest.Digest) (int64, error) {
		if a == registry.Pull && (len(r.TLS.PeerCertificates) == 0 || r.TLS.PeerCertificates[0].DNSNames[0] != pki.NodeCertName(node)) {
			return 0, registry.Refuse(http.StatusForbidden, "not the node")
		}
		return 0, nil
	}})
	check(err)
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	chain, err := pki.Chain(issue(&serverKey.PublicKey, pki.ArtifactsName(testMesh), pki.Server), der, serverKey)
	check(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	s := &artifactStore{t: t, m: m, in: in, at: wire.ArtifactStore{Address: l.Addr().String(), Name: pki.ArtifactsName(testMesh)}, server: &http.Server{Handler: r.Handler(),
		TLSConfig: pki.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return chain, nil }, authority.Certificate, nil, time.Now)}}
	go s.server.ServeTLS(l, "", "")
	t.Cleanup(func() { s.server.Close(); r.Close() })
	s.client = artifacts.Client{Addresses: []string{s.at.Address}, TLS: pki.ClientTLS(authority.Certificate, s.at.Name, nil, time.Now)}
	return s
}

// push makes an artifact of files, "*" before the content of a program and "-> " before a link's, and gives the resource for it.
func (s *artifactStore) push(files map[string]string) wire.Resource {
	s.t.Helper()
	dir := s.t.TempDir()
	for name, content := range files {
		at, mode := filepath.Join(dir, name), os.FileMode(0o600)
		os.MkdirAll(filepath.Dir(at), 0o700)
		var err error
		if target, link := strings.CutPrefix(content, "-> "); link {
			err = os.Symlink(target, at)
		} else {
			text, program := strings.CutPrefix(content, "*")
			if program {
				mode = 0o700
			}
			err = os.WriteFile(at, []byte(text), mode)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	packed, err := artifacts.PackFiles(dir, []string{"."})
	if err != nil {
		s.t.Fatal(err)
	}
	defer packed.Close()
	ref, err := s.client.Push(s.t.Context(), "hello", "tree", packed)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.resource(ref)
}

func (s *artifactStore) resource(ref artifacts.Reference) wire.Resource {
	return resource(wire.Artifact, ref.Artifact, wire.ArtifactSpec{Reference: ref.String(), Digest: ref.Digest, Store: s.at, Path: filepath.Join(s.in.Artifacts(), hexOf(ref.Digest))})
}

// there lists what is in the artifacts' folder.
func (s *artifactStore) there() (names []string) {
	entries, _ := os.ReadDir(s.in.Artifacts())
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func specOf(t *testing.T, r wire.Resource) wire.ArtifactSpec {
	t.Helper()
	s, err := read[wire.ArtifactSpec](r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var tool = map[string]string{"bin/tool": "*#!/bin/sh\necho tool\n", "data/words": "one two", "data/link": "-> words", "empty": ""}

// PORT-5, DEC-4: a tree comes from the store with the node's certificate, once for all that name its digest; root's, and read-only to who
// runs what is in it. Leaving removes nothing (DEC-14).
func TestArtifact(t *testing.T) {
	s := newArtifactStore(t)
	r := s.push(tool)
	tree := specOf(t, r).Path
	if o := observe(t, s.m, r); o.Present {
		t.Errorf("before: %+v", o)
	}
	do(t, s.m, r)
	user := person(t)
	as(t, user, filepath.Join(tree, "bin/tool"))
	as(t, user, "cat", filepath.Join(tree, "data/link"))
	for path, want := range map[string]string{"": "40755 0:0", "bin": "40755 0:0", "bin/tool": "100755 0:0", "data/words": "100644 0:0"} {
		if got := state(filepath.Join(tree, path)); !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	want := []string{filepath.Base(tree), filepath.Base(tree) + ".list"}
	if got := s.there(); !slices.Equal(got, want) {
		t.Errorf("there are %q", got)
	}
	second := r
	second.ID, second.Instance = "other/artifact/tree", "other"
	s.server.Close() // nothing is fetched for it
	do(t, s.m, second)
	undo(t, s.m, r, nil)
	undo(t, s.m, second, nil)
	if got := s.there(); !slices.Equal(got, want) {
		t.Errorf("after both left there are %q", got)
	}
}

// DEC-6: whatever is changed in a tree is seen and named, and the tree made anew; what was only touched is left alone.
func TestArtifactDrift(t *testing.T) {
	s := newArtifactStore(t)
	r := s.push(tool)
	tree := specOf(t, r).Path
	at := func(name string) string { return filepath.Join(tree, name) }
	do(t, s.m, r)
	var before unix.Stat_t
	for name, d := range map[string]struct {
		change func() error
		differ string
	}{
		"content": {func() error {
			info, _ := os.Stat(at("data/words"))
			return errors.Join(os.WriteFile(at("data/words"), []byte("two one"), 0o644), os.Chtimes(at("data/words"), info.ModTime(), info.ModTime()))
		}, `"data/words": content`},
		"longer": {func() error { return os.WriteFile(at("empty"), []byte("x"), 0o644) }, `"empty": content`},
		"mode":   {func() error { return os.Chmod(at("bin/tool"), 0o777) }, `"bin/tool": mode 0777, want 0755`},
		"owner":  {func() error { return os.Chown(at("bin"), 65534, 0) }, `"bin": owner nobody, want root`},
		"link": {func() error {
			return errors.Join(os.Remove(at("data/link")), os.Symlink("/etc/passwd", at("data/link")))
		}, `"data/link": content`},
		"replaced":    {func() error { return errors.Join(os.Remove(at("empty")), os.Mkdir(at("empty"), 0o755)) }, `"empty": something else`},
		"deleted":     {func() error { return os.Remove(at("bin/tool")) }, `"bin/tool" is gone`},
		"two deleted": {func() error { return os.RemoveAll(at("bin")) }, `"bin" and 1 more are gone`},
		"added":       {func() error { return os.WriteFile(at("bin/more"), nil, 0o644) }, `"bin/more" is not of it`},
		"tree":        {func() error { return os.RemoveAll(tree) }, ""},
		"no list":     {func() error { return os.Remove(tree + ".list") }, "it is not known to be whole"},
		"half a list": {func() error { return os.Truncate(tree+".list", 20) }, "it is not known to be whole"},
	} {
		if err := d.change(); err != nil {
			t.Fatal(name, err)
		}
		if o := observe(t, s.m, r); o.Matches || o.Present == (name == "tree") || !strings.Contains(o.Differs, d.differ) {
			t.Errorf("%s: %+v", name, o)
		}
		do(t, s.m, r)
		if out, err := exec.Command(at("bin/tool")).Output(); err != nil || string(out) != "tool\n" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
		if got := s.there(); len(got) != 2 {
			t.Errorf("%s: left behind %q", name, got)
		}
	}
	if err := errors.Join(os.Chtimes(at("data/words"), time.Unix(1, 0), time.Unix(1, 0)), unix.Stat(tree, &before)); err != nil {
		t.Fatal(err)
	}
	do(t, s.m, r)
	var after unix.Stat_t
	if unix.Stat(tree, &after); after.Ino != before.Ino {
		t.Error("a tree that is whole was made anew")
	}
}

// SAFE-5: whatever a kill left, the next try makes the tree of it.
func TestArtifactAfterAKill(t *testing.T) {
	s := newArtifactStore(t)
	r := s.push(tool)
	tree := specOf(t, r).Path
	do(t, s.m, r)
	for name, kill := range map[string]func() error{
		"before the list":       func() error { return errors.Join(os.Remove(tree+".list"), os.Rename(tree, tree+".new")) },
		"before the swap":       func() error { return os.Rename(tree, tree+".new") },
		"in the swap":           func() error { return errors.Join(os.Rename(tree, tree+".new"), os.Mkdir(tree+".old", 0o755)) },
		"after the swap":        func() error { return os.CopyFS(tree+".old", os.DirFS(tree)) },
		"while it was unpacked": func() error { return errors.Join(os.RemoveAll(tree), os.Mkdir(tree+".new.tmp", 0o755)) },
		"while it came": func() error {
			return errors.Join(os.RemoveAll(tree), os.WriteFile(tree+".new.layer", []byte("spoilt"), 0o600))
		},
		"a changed tree unlisted": func() error { return errors.Join(os.Remove(tree+".list"), os.Chmod(tree, 0o700)) },
	} {
		if err := kill(); err != nil {
			t.Fatal(name, err)
		}
		for range 3 { // what was spoilt is noticed once it is whole
			if err := effector(s.m, r).Do(t.Context(), r); err == nil {
				break
			}
		}
		do(t, s.m, r)
		if name != "after the swap" {
			if got := s.there(); len(got) != 2 {
				t.Errorf("%s: left behind %q", name, got)
			}
		}
		os.RemoveAll(tree + ".old")
	}
}

// DEC-14: what is kept stays, what is not goes with all that is left of it, and what a process still has stays until that is gone.
func TestCollect(t *testing.T) {
	s := newArtifactStore(t)
	first, second := s.push(tool), s.push(map[string]string{"bin/sleep": "*" + binary(t, "sleep")})
	do(t, s.m, first)
	do(t, s.m, second)
	keep := func(resources ...wire.Resource) (digests []appliance.Digest) {
		for _, r := range resources {
			digests = append(digests, specOf(t, r).Digest)
		}
		return digests
	}
	os.WriteFile(filepath.Join(s.in.Artifacts(), "theirs"), nil, 0o600)
	os.WriteFile(specOf(t, first).Path+".new.layer", nil, 0o600)
	collect := func(names int, keep []appliance.Digest) {
		t.Helper()
		if err := s.m.Collect(t.Context(), keep); err != nil {
			t.Fatal(err)
		}
		if got := s.there(); len(got) != names {
			t.Errorf("there are %q", got)
		}
	}
	collect(6, keep(first, second))
	running := exec.Command(filepath.Join(specOf(t, second).Path, "bin/sleep"), "1000")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { running.Process.Kill(); running.Wait() })
	collect(3, nil)
	if o := observe(t, s.m, second); !o.Matches {
		t.Errorf("of what runs: %+v", o)
	}
	running.Process.Kill()
	running.Wait()
	resting := exec.Command("sleep", "1000")
	resting.Dir = filepath.Join(specOf(t, second).Path, "bin")
	if err := resting.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resting.Process.Kill(); resting.Wait() })
	collect(3, nil)
	resting.Process.Kill()
	resting.Wait()
	collect(1, nil)
}

func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// SAFE-3, BLD-7, SAFE-1: a tree goes nowhere but where its digest says; what the store does not have, or not for this platform, and a store
// that is another, are refused; nothing is left of the try.
func TestArtifactRefusals(t *testing.T) {
	s := newArtifactStore(t)
	good := specOf(t, s.push(tool))
	other := appliance.DigestOf([]byte("x"))
	for name, c := range map[string]struct {
		change func(*wire.ArtifactSpec)
		kind   appliance.Kind
	}{
		"elsewhere":        {func(a *wire.ArtifactSpec) { a.Path = filepath.Join(s.in.Dir, "modules", "x") }, appliance.Invalid},
		"up":               {func(a *wire.ArtifactSpec) { a.Path = s.in.Artifacts() + "/../" + hexOf(a.Digest) }, appliance.Invalid},
		"another's folder": {func(a *wire.ArtifactSpec) { a.Path = filepath.Join(s.in.Artifacts(), hexOf(other)) }, appliance.Invalid},
		"another digest":   {func(a *wire.ArtifactSpec) { a.Digest = other }, appliance.Invalid},
		"no reference":     {func(a *wire.ArtifactSpec) { a.Reference = "hello" }, appliance.Invalid},
		"not there": {func(a *wire.ArtifactSpec) {
			a.Reference, a.Digest, a.Path = "artifact-store://hello/tree@"+string(other), other, filepath.Join(s.in.Artifacts(), hexOf(other))
		}, appliance.NotFound},
		"another store": {func(a *wire.ArtifactSpec) { a.Store.Name = pki.ArtifactsName("mbbbbbbbbbbbbbbb") }, appliance.Unavailable},
		"no store":      {func(a *wire.ArtifactSpec) { a.Store.Address = "127.0.0.1:1" }, appliance.Unavailable},
	} {
		spec := good
		c.change(&spec)
		r := resource(wire.Artifact, "tree", spec)
		if err := effector(s.m, r).Do(t.Context(), r); appliance.KindOf(err) != c.kind {
			t.Errorf("%s: %v", name, err)
		}
		if got := s.there(); len(got) > 0 {
			t.Errorf("%s: left %q", name, got)
		}
	}
}
