package downloads

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/pki"
)

// own is the download server's side of TLS.
type own struct {
	key    *ecdsa.PrivateKey
	server *tls.Config
}

// identities are the TLS sides of a download server and of a node of its mesh.
func identities(t *testing.T) (server own, client *tls.Config) {
	t.Helper()
	mesh, now := appliance.NewMeshID(), time.Now()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	serverKey, authorityKey := key(), key()
	der, err := pki.NewAuthority(mesh, authorityKey, now)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(mesh, der, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(pki.Request{Public: &serverKey.PublicKey, Names: []string{pki.DownloadsName(mesh)}, Usage: pki.Server, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pki.Chain(leaf, der, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	give := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }
	return own{serverKey, pki.ServerTLS(give, authority.Certificate, nil, time.Now)}, pki.ClientTLS(authority.Certificate, pki.DownloadsName(mesh), nil, time.Now)
}

// counting is a listener that knows how many of its connections were open at once.
type counting struct {
	net.Listener
	open, most atomic.Int32
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if n := l.open.Add(1); n > l.most.Load() {
		l.most.Store(n)
	}
	return &counted{Conn: c, of: l}, nil
}

type counted struct {
	net.Conn
	of     *counting
	closed atomic.Bool
}

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.of.open.Add(-1)
	}
	return c.Conn.Close()
}

// SAFE-2: strangers who only connect take a bounded part of the process, however many they are, and whoever comes after them is served once
// they are cut off.
func TestConnectionsAreBounded(t *testing.T) {
	server, client := identities(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(1, &server.key.PublicKey, map[string]string{runtime.GOARCH: self})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Replace("")
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &counting{Listener: inner}
	go s.Serve(t.Context(), counted, server.server)
	from := func(host int) *net.Dialer {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(host))}}
	}
	for i := range maxConnections + 20 {
		c, err := from(2+i/maxEach).Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	h := http.Client{Transport: &http.Transport{TLSClientConfig: client, DialContext: from(100).DialContext}, Timeout: 30 * time.Second}
	defer h.CloseIdleConnections()
	res, err := h.Head("https://" + inner.Addr().String() + r.Agent.Path)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", res, err)
	}
	if n := counted.most.Load(); n > maxConnections {
		t.Errorf("%d connections open at once, at most %d", n, maxConnections)
	}
}

// UPG-3: an agent is told the binary made for its machine, the hub's own where it does not say; as the file now is.
func TestReplace(t *testing.T) {
	server, _ := identities(t)
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	dir := t.TempDir()
	files := map[string]string{runtime.GOARCH: filepath.Join(dir, "mesh"), other: filepath.Join(dir, "other")}
	write := func(architecture, content string) {
		t.Helper()
		if err := os.WriteFile(files[architecture]+".new", []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(files[architecture]+".new", files[architecture]); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(4280, &server.key.PublicKey, files)
	if err != nil {
		t.Fatal(err)
	}
	wants := func(architecture, content string) {
		t.Helper()
		r, err := s.Replace(architecture)
		if digest := appliance.DigestOf([]byte(content)); err != nil || r.Agent.Digest != digest || r.Agent.Size != int64(len(content)) || r.Agent.Path != "/binary/"+string(digest) || r.Agent.Port != 4280 {
			t.Errorf("%q: %+v, %v; want %q", architecture, r, err, content)
		}
	}
	write(runtime.GOARCH, "own")
	wants("", "own")
	wants(runtime.GOARCH, "own")
	for _, architecture := range []string{other, "riscv64"} {
		if _, err := s.Replace(architecture); appliance.KindOf(err) != appliance.NotFound || appliance.AsError(err).Hint == "" {
			t.Errorf("%s: %v", architecture, err)
		}
	}
	if got := s.Architectures(); len(got) != 1 || got[0] != runtime.GOARCH {
		t.Errorf("has %v", got)
	}
	write(other, "other")
	wants(other, "other")
	write(runtime.GOARCH, "new")
	wants("", "new")
	if got := s.Architectures(); len(got) != 2 {
		t.Errorf("has %v", got)
	}
}
