package downloads

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/pki"
)

// identities are the TLS sides of a download server and of a node of its mesh.
func identities(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	mesh, now := appliance.NewMeshID(), time.Now()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	own, authorityKey := key(), key()
	der, err := pki.NewAuthority(mesh, authorityKey, now)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := pki.LoadAuthority(mesh, der, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(pki.Request{Public: &own.PublicKey, Names: []string{pki.DownloadsName(mesh)}, Usage: pki.Server, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pki.Chain(leaf, der, own)
	if err != nil {
		t.Fatal(err)
	}
	give := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }
	return pki.ServerTLS(give, authority.Certificate, nil, time.Now), pki.ClientTLS(authority.Certificate, pki.DownloadsName(mesh), nil, time.Now)
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

// SAFE-2: strangers who only connect take a bounded part of the process, and whoever comes after them is served once they are cut off.
func TestConnectionsAreBounded(t *testing.T) {
	server, client := identities(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := New(self)
	r, err := b.Replace(1)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &counting{Listener: inner}
	go b.Serve(t.Context(), counted, server)
	for range maxConnections + 20 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	h := http.Client{Transport: &http.Transport{TLSClientConfig: client}, Timeout: 30 * time.Second}
	defer h.CloseIdleConnections()
	res, err := h.Head("https://" + inner.Addr().String() + r.Agent.Path)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", res, err)
	}
	if n := counted.most.Load(); n > maxConnections {
		t.Errorf("%d connections open at once, at most %d", n, maxConnections)
	}
}
