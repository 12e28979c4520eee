package artifactstore

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/vishvananda/netlink"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// ownNamespaces runs the test once more in a network and a mount namespace of its own, where hub.internal is an address of the machine, and
// /etc/docker and /etc/hosts are the test's; there it gives true. (dockerd believes whatever a loopback address shows.)
func ownNamespaces(t *testing.T, etc string) bool {
	t.Helper()
	if os.Getenv("ARTIFACTSTORE_TEST") == "" {
		c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "5m")
		c.Env = append(os.Environ(), "ARTIFACTSTORE_TEST=1")
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return false
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err == nil {
		err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: hubAddress, Mask: net.CIDRMask(32, 32)}})
	}
	if err == nil {
		err = os.MkdirAll("/etc/docker", 0o755) // something to mount over
	}
	if err == nil {
		err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(etc, "docker"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost\n"+hubAddress.String()+" hub.internal\n"), 0o644)
	}
	for _, name := range []string{"docker", "hosts"} {
		if err == nil {
			err = syscall.Mount(filepath.Join(etc, name), "/etc/"+name, "", syscall.MS_BIND, "")
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}

var hubAddress = net.IPv4(192, 0, 2, 1)

// engine is a real dockerd of the test's own.
type engine struct {
	t    *testing.T
	http http.Client
	log  *os.File
}

// startEngine runs dockerd with a node's certificate for the store at hub.internal:port.
func startEngine(t *testing.T, port uint16, authority *x509.Certificate, own *tls.Certificate, key *ecdsa.PrivateKey) *engine {
	t.Helper()
	certs := fmt.Sprintf("/etc/docker/certs.d/hub.internal:%d", port)
	if err := os.MkdirAll(certs, 0o700); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"ca.crt": pki.EncodePEM(authority.Raw), "client.cert": pki.EncodePEM(own.Certificate[0]),
		"client.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(filepath.Join(certs, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	e := &engine{t: t}
	if e.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("/run", "artifactstore-test-*") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(run, "docker.sock")
	c := exec.Command("dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(run, "exec"), "--pidfile", filepath.Join(run, "pid"),
		"--host", "unix://"+socket, "--bridge", "none", "--iptables=false", "--ip6tables=false")
	c.Stdout, c.Stderr = e.log, e.log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
		os.RemoveAll(run)
	})
	e.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if status, _ := e.ask("GET", "/_ping", nil); status == http.StatusOK {
			return e
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(e.log.Name())
			t.Fatalf("dockerd does not answer:\n%s", text)
		}
	}
}

// ask sends a request to the engine.
func (e *engine) ask(method, path string, body any) (int, string) {
	var data bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&data).Encode(body); err != nil {
			e.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(e.t.Context(), method, "http://engine"+path, &data)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := e.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(text)
}

// run pulls and runs an image by digest, and gives what it writes.
func (e *engine) run(image string) string {
	e.t.Helper()
	if status, said := e.ask("POST", "/images/create?fromImage="+image, nil); status != 200 || !strings.Contains(said, "Digest: sha256:") {
		e.t.Fatalf("pull %s: %d %s", image, status, said)
	}
	status, said := e.ask("POST", "/containers/create", map[string]any{"Image": image, "HostConfig": map[string]any{"NetworkMode": "none"}, "NetworkDisabled": true})
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(said), &made); err != nil || status != 201 {
		e.t.Fatalf("create: %d %s", status, said)
	}
	if status, said := e.ask("POST", "/containers/"+made.ID+"/start", nil); status != 204 {
		e.t.Fatalf("start: %d %s", status, said)
	}
	if status, said := e.ask("POST", "/containers/"+made.ID+"/wait", nil); status != 200 || !strings.Contains(said, `"StatusCode":0`) {
		e.t.Fatalf("wait: %d %s", status, said)
	}
	_, out := e.ask("GET", "/containers/"+made.ID+"/logs?stdout=1&stderr=1", nil)
	return out
}

// program is a static one that says what it is given, in an image FROM scratch as docker save of today writes one.
func scratch(t *testing.T, says string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module hello\n", "main.go": "package main\n\nfunc main() { print(" + fmt.Sprintf("%q", says) + ") }\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", "hello", ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	binary, err := os.ReadFile(filepath.Join(dir, "hello"))
	if err != nil {
		t.Fatal(err)
	}
	pack := func(files ...any) []byte { // name, content in turn
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for i := 0; i < len(files); i += 2 {
			data := files[i+1].([]byte)
			if err := w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(data); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	of := func(mediaType string, data []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	}
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	blob := func(data []byte) string { return "blobs/sha256/" + digest.FromBytes(data).Encoded() }
	layer := pack("hello", binary)
	config := encode(ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Config: ocispec.ImageConfig{Entrypoint: []string{"/hello"}},
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}}})
	manifest := encode(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: of(ocispec.MediaTypeImageConfig, config), Layers: []ocispec.Descriptor{of(ocispec.MediaTypeImageLayer, layer)}})
	index := encode(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{of(ocispec.MediaTypeImageManifest, manifest)}})
	path := filepath.Join(dir, "image.tar")
	all := pack("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), "index.json", index, blob(layer), layer, blob(config), config, blob(manifest), manifest)
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// BLD-6, PKI-6: a real container engine with a node's certificate pulls by digest what the node's declaration names, verifying the store
// by name, and runs it; what is not declared it does not get, nor anything by tag. What it saves can be pushed and pulled again.
func TestDockerPullsAndRuns(t *testing.T) {
	if _, err := exec.LookPath("dockerd"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and dockerd (apt-get install docker.io): %v", err)
	}
	if !ownNamespaces(t, t.TempDir()) {
		return
	}
	mesh, node := appliance.NewMeshID(), appliance.NewNodeID()
	keys, err := identity.GenerateMesh()
	if err != nil {
		t.Fatal(err)
	}
	der, err := pki.NewAuthority(mesh, keys.Authority, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(mesh, der, keys.Authority)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(usage pki.Usage, names ...string) (*tls.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := authority.Issue(pki.Request{Public: &key.PublicKey, Names: names, Usage: usage, Now: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		chain, err := pki.Chain(leaf, der, key)
		if err != nil {
			t.Fatal(err)
		}
		return chain, key
	}
	server, _ := issue(pki.Server, pki.ArtifactsName(mesh), "hub.internal")
	own, key := issue(pki.Client|pki.Server, pki.NodeCertName(node), "n1.internal")
	l, err := net.Listen("tcp", net.JoinHostPort(hubAddress.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	s := New(Config{Dir: t.TempDir(), Port: port, Mesh: mesh, Signing: keys.Signing.Public().(ed25519.PublicKey), Log: slogOf(t)})
	var declared atomic.Pointer[[]appliance.Digest]
	declared.Store(&[]appliance.Digest{})
	s.Follow(func(id appliance.NodeID, k *ecdsa.PublicKey) ([]appliance.Digest, error) {
		if id != node || !key.PublicKey.Equal(k) {
			return nil, appliance.Errorf(appliance.Denied, "no such node")
		}
		return *declared.Load(), nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, l, pki.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return server, nil }, authority.Certificate, nil, time.Now), 0)
	}()
	push := func(path string) artifacts.Reference {
		t.Helper()
		image, err := artifacts.OpenImage(path)
		if err != nil {
			t.Fatal(err)
		}
		defer image.Close()
		grant, err := artifacts.IssueGrant(artifacts.Grant{Module: "web", MaxBytes: 1 << 30, Expires: time.Now().Add(time.Minute)},
			wire.Header{Version: wire.Version, Mesh: mesh, From: string(mesh), Time: time.Now()}, keys.Signing)
		if err != nil {
			t.Fatal(err)
		}
		c := artifacts.Client{Addresses: []string{l.Addr().String()}, TLS: pki.ClientTLS(authority.Certificate, pki.ArtifactsName(mesh), nil, time.Now), Grant: grant}
		ref, err := c.Push(ctx, "web", "image", image)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	good, bad := push(scratch(t, "hello from the mesh")), push(scratch(t, "never heard"))
	declared.Store(&[]appliance.Digest{good.Digest})

	e := startEngine(t, port, authority.Certificate, own, key)
	at := fmt.Sprintf("hub.internal:%d/web/image", port)
	if out := e.run(at + "@" + string(good.Digest)); !strings.Contains(out, "hello from the mesh") {
		t.Errorf("it says %q", out)
	}
	if status, said := e.ask("POST", "/images/create?fromImage="+at+"@"+string(bad.Digest), nil); status == 200 && !strings.Contains(said, "error") || !strings.Contains(said, "denied") {
		t.Errorf("what is not declared: %d %s", status, said)
	}
	if status, said := e.ask("POST", "/images/create?fromImage="+at+"&tag=latest", nil); status == 200 && !strings.Contains(said, "error") {
		t.Errorf("by tag: %d %s", status, said)
	}
	// As an older engine saves it.
	saved := filepath.Join(t.TempDir(), "saved.tar")
	status, archive := e.ask("GET", "/images/"+at+"@"+string(good.Digest)+"/get", nil)
	if err := os.WriteFile(saved, []byte(archive), 0o600); err != nil || status != 200 {
		t.Fatalf("save: %d, %v", status, err)
	}
	again := push(saved)
	declared.Store(&[]appliance.Digest{good.Digest, again.Digest})
	if out := e.run(at + "@" + string(again.Digest)); !strings.Contains(out, "hello from the mesh") {
		t.Errorf("saved and pushed again it says %q", out)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
