package engine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

const (
	testMesh = appliance.MeshID("maaaaaaaaaaaaaaa")
	alone    = "MESH_TEST_ALONE" // the folder of the namespaces' machine
)

// TestMain runs the tests on a machine of their own: network, mounts and processes, all gone at the end. The first process there is its
// init, the second runs the tests.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir := os.Getenv(alone)
	_, err := exec.LookPath("dockerd")
	switch {
	case os.Getuid() != 0 || err != nil || dir != "" && os.Getpid() != 1:
		return m.Run()
	case dir != "":
		err = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
		if err == nil {
			return reap(again(0))
		}
	default:
		if dir, err = os.MkdirTemp("", "mesh-engine-test-"); err == nil {
			defer os.RemoveAll(dir)
			os.Setenv(alone, dir)
			err = again(syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID).Run()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// again is this program once more.
func again(flags uintptr) *exec.Cmd {
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// reap runs a program and buries the dead until it ends.
func reap(cmd *exec.Cmd) int {
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		if pid, err := unix.Wait4(-1, &status, 0, nil); pid == cmd.Process.Pid || err == unix.ECHILD {
			return status.ExitStatus()
		}
	}
}

// dockerd is a real engine on the tests' machine.
type dockerd struct {
	dir string
	cmd *exec.Cmd
}

var shared = sync.OnceValues(func() (*dockerd, error) {
	dir := os.Getenv(alone)
	if err := settle(dir); err != nil {
		return nil, err
	}
	d := &dockerd{dir: dir}
	return d, d.start()
})

// settle makes the namespaces a machine: no engine's settings, and hosts of its own.
func settle(dir string) error {
	hosts := filepath.Join(dir, "hosts")
	return errors.Join(
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
		os.MkdirAll("/etc/docker", 0o755),
		unix.Mount("tmpfs", "/etc/docker", "tmpfs", 0, ""),
		os.WriteFile(hosts, []byte("127.0.0.1 localhost\n10.64.0.1 hub.internal moved.internal\n"), 0o644),
		unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""),
		exec.Command("ip", "link", "set", "lo", "up").Run(),
		exec.Command("ip", "address", "add", "10.64.0.1/16", "dev", "lo").Run(),
	)
}

func (d *dockerd) start() error {
	log, err := os.OpenFile(filepath.Join(d.dir, "dockerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command("dockerd", "--data-root", filepath.Join(d.dir, "docker"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := (New(Config{})).open(context.Background()); err == nil {
			return c.Close()
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("dockerd does not answer:\n%s", text)
		}
	}
}

// end ends the engine as its machine would, or without a word.
func (d *dockerd) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	d.cmd.Process.Signal(signal)
	d.cmd.Wait()
}

// bench is one test's installation on the machine, and what lies in the artifact store.
type bench struct {
	*Engine
	t      *testing.T
	docker *dockerd
	api    *client.Client
	store  *store
	dir    string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	if os.Getenv(alone) == "" {
		t.Skip("needs a container engine: run the tests as root, with dockerd installed (make packages)")
	}
	d, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(client.WithHost("unix://" + Sockets[0]))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := newStore(t)
	b := &bench{t: t, docker: d, api: api, store: s, dir: dir, Engine: New(Config{Mesh: testMesh, Node: "n1", State: dir,
		Record: filepath.Join(dir, "engine.json"), Credentials: func() (Credentials, error) { return s.credentials, nil }})}
	t.Cleanup(func() {
		ctx := context.Background()
		all, _ := api.ContainerList(ctx, client.ContainerListOptions{All: true})
		for _, c := range all.Items {
			api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		}
		images, _ := api.ImageList(ctx, client.ImageListOptions{All: true})
		for _, i := range images.Items {
			api.ImageRemove(ctx, i.ID, client.ImageRemoveOptions{Force: true})
		}
		os.RemoveAll(b.config.Trust)
		api.Close()
	})
	return b
}

// web is the resource that most tests are about; change makes it another.
func (b *bench) web(image string, change func(*wire.ContainerSpec)) wire.Resource {
	s := wire.ContainerSpec{Name: "web", Reference: "artifact-store://web/" + image, Image: b.store.address + "/web/" + image,
		Store: wire.ArtifactStore{Address: b.store.address}, Command: []string{"/app", "serve", ":80", "one"}, User: "nobody",
		Environment: map[string]string{"A": "b"}, Ports: []wire.Published{{Inside: 80, Port: 8080, Protocol: "tcp", Address: "10.64.0.1"}},
		Memory: 256 << 20, CPU: 500, PIDs: 100, LogSize: 1 << 20, Run: wire.Run{Restart: "always", Stop: "5s"}}
	if change != nil {
		change(&s)
	}
	data, err := json.Marshal(s)
	if err != nil {
		b.t.Fatal(err)
	}
	return wire.Resource{ID: "web/container/" + s.Name, Instance: "web", Kind: wire.Container, Spec: data}
}

func (b *bench) observe(r wire.Resource) host.Observation {
	b.t.Helper()
	o, err := b.Observe(b.t.Context(), r)
	if err != nil {
		b.t.Fatalf("observe: %v", err)
	}
	return o
}

// do does it twice, DEC-4: after that it matches, and the second time nothing was done.
func (b *bench) do(r wire.Resource) container.InspectResponse {
	b.t.Helper()
	var was string
	for range 2 {
		if err := b.Do(b.t.Context(), r); err != nil {
			b.t.Fatalf("do: %v", err)
		}
		if o := b.observe(r); !o.Matches {
			b.t.Fatalf("after do: %+v", o)
		}
		have := b.inspect("web")
		is := have.ID + have.State.StartedAt
		if was != "" && was != is {
			b.t.Fatalf("done twice: %s, then %s", was, is)
		}
		was = is
	}
	return b.inspect("web")
}

func (b *bench) undo(r wire.Resource) {
	b.t.Helper()
	for range 2 {
		if kept, err := b.Undo(b.t.Context(), r, nil); err != nil || kept {
			b.t.Fatalf("undo: %v, kept %v", err, kept)
		}
	}
}

// name is the container's on the engine.
func (b *bench) name(of string) string {
	w, err := b.named(b.web("x", func(s *wire.ContainerSpec) { s.Name = of }))
	if err != nil {
		b.t.Fatal(err)
	}
	return w.name
}

func (b *bench) inspect(of string) container.InspectResponse {
	b.t.Helper()
	have, err := b.api.ContainerInspect(b.t.Context(), b.name(of), client.ContainerInspectOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return have.Container
}

// docker types a command as a person would.
func (b *bench) person(args ...string) string {
	b.t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("docker %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// ask asks the service inside, from the machine.
func ask(what, q string) string {
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://10.64.0.1:8080/" + what + "?q=" + url.QueryEscape(q))
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return string(text)
}

func await(t *testing.T, until func() (whyNot string)) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		why := until()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(why)
		}
	}
}

func (b *bench) answers(want string) {
	b.t.Helper()
	await(b.t, func() string {
		if got := ask("", ""); got != want {
			return fmt.Sprintf("it answers %q, want %q", got, want)
		}
		return ""
	})
}

// store is an artifact store as the engine sees it: it asks for a node's certificate and gives by digest.
type store struct {
	t           *testing.T
	address     string
	credentials Credentials
	mu          sync.Mutex
	content     map[string][]byte // by path
	kinds       map[string]string
	pulls       int // of manifests
	closed      bool
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{t: t, content: map[string][]byte{}, kinds: map[string]string{}}
	now := time.Now()
	key := newKey()
	der, err := pki.NewAuthority(testMesh, key, now)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(testMesh, der, key)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(usage pki.Usage, names ...string) (leaf []byte, key *ecdsa.PrivateKey) {
		key = newKey()
		leaf, err := authority.Issue(pki.Request{Public: &key.PublicKey, Names: names, Usage: usage, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return leaf, key
	}
	server, serverKey := issue(pki.Server, "hub.internal", "moved.internal")
	own, ownKey := issue(pki.Client, "n1.internal")
	pkcs8, _ := x509.MarshalPKCS8PrivateKey(ownKey)
	s.credentials = Credentials{Authority: pki.EncodePEM(der), Certificate: pki.EncodePEM(own), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})}
	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Certificate)
	listener, err := net.Listen("tcp", "10.64.0.1:0") // dockerd asks nothing of a loopback address, and shows it nothing
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewUnstartedServer(s)
	web.Listener = listener
	web.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{server}, PrivateKey: serverKey}}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted}
	web.StartTLS()
	t.Cleanup(web.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	s.address = "hub.internal:" + port
	return s
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		http.Error(w, "closed", http.StatusServiceUnavailable)
		return
	}
	content, ok := s.content[r.URL.Path]
	if r.URL.Path == "/v2/" {
		content, ok = []byte("{}"), true
	}
	if !ok {
		http.NotFound(w, r)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") && r.Method == http.MethodGet {
		s.pulls++
	}
	if kind := s.kinds[r.URL.Path]; kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.Header().Set("Docker-Content-Digest", digestOf(content))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

func digestOf(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// app is the program of all images, built once.
var app = sync.OnceValues(func() ([]byte, error) {
	out := filepath.Join(os.Getenv(alone), "app")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", out, "./testdata/app")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build app: %w\n%s", err, text)
	}
	return os.ReadFile(out)
})

// push makes an image FROM scratch with the program and says "artifact@digest". Config is the image's own.
func (s *store) push(artifact string, config map[string]any) string {
	s.t.Helper()
	program, err := app()
	if err != nil {
		s.t.Fatal(err)
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	archive.WriteHeader(&tar.Header{Name: "app", Mode: 0o755, Size: int64(len(program))})
	archive.Write(program)
	archive.Close()
	put := func(kind, mediaType string, data []byte) map[string]any {
		d := digestOf(data)
		path := "/v2/web/" + artifact + "/" + kind + "/" + d
		s.mu.Lock()
		defer s.mu.Unlock()
		s.content[path], s.kinds[path] = data, mediaType
		return map[string]any{"mediaType": mediaType, "digest": d, "size": len(data)}
	}
	text := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		return data
	}
	const oci = "application/vnd.oci.image."
	l := put("blobs", oci+"layer.v1.tar", layer.Bytes())
	c := put("blobs", oci+"config.v1+json", text(map[string]any{"os": "linux", "architecture": "amd64", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{l["digest"]}}}))
	m := put("manifests", oci+"manifest.v1+json", text(map[string]any{"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": c, "layers": []any{l}}))
	return artifact + "@" + m["digest"].(string)
}
