// Package bustest runs a real broker for tests: natsd behind TLS with an authority that lives as long as the test, and users with
// keys. Nothing outside tests imports it.
package bustest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/natsd"
)

// ServerName is what the broker's certificate says.
const ServerName = "broker.test"

// Cast are users with their keys: the controller, the hub, and whoever is added.
type Cast struct {
	Records busauth.Records
	Hub     appliance.NodeID
	keys    map[string]nkeys.KeyPair // by user name
}

// NewCast makes a controller and a hub.
func NewCast(t testing.TB) *Cast {
	c := &Cast{keys: map[string]nkeys.KeyPair{}}
	c.Records.Controller = busauth.Controller{ControlKey: c.key(t, wire.ControllerUser), ModulesKey: c.key(t, ModulesController)}
	c.Hub = c.AddNode(t)
	c.Records.Holder = c.Hub
	return c
}

// ModulesController names the controller's user in MODULES for Key.
const ModulesController = "controller in MODULES"

func (c *Cast) key(t testing.TB, user string) string {
	t.Helper()
	k, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	c.keys[user] = k
	public, err := k.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

// Key is a user's, by its name on the bus.
func (c *Cast) Key(user string) nkeys.KeyPair { return c.keys[user] }

func (c *Cast) AddNode(t testing.TB) appliance.NodeID {
	id := appliance.NewNodeID()
	c.Records.Nodes = append(c.Records.Nodes, busauth.Node{ID: id, Bus: c.key(t, wire.NodeUser(id))})
	return id
}

// AddDeparted lets in the machine that a node replaced; its name for Key is "departed-" and the id.
func (c *Cast) AddDeparted(t testing.TB, node appliance.NodeID) {
	c.Records.Departed = append(c.Records.Departed, busauth.Departed{Node: node, Bus: c.key(t, "departed-"+string(node))})
}

func (c *Cast) AddToken(t testing.TB) appliance.TokenID {
	id := appliance.NewTokenID()
	c.Records.Tokens = append(c.Records.Tokens, busauth.Token{ID: id, Bus: c.key(t, wire.TokenUser(id))})
	return id
}

func (c *Cast) AddOperator(t testing.TB) appliance.OperatorID {
	id := appliance.NewOperatorID()
	c.Records.Operators = append(c.Records.Operators, busauth.Operator{ID: id, Bus: c.key(t, wire.OperatorUser(id))})
	return id
}

// Server is a running broker.
type Server struct {
	*natsd.Server
	Authority *x509.CertPool
	config    natsd.Config
}

// Start runs a broker on a free port of 127.0.0.1 with the users of the records, until the test ends.
func Start(t testing.TB, records busauth.Records) *Server {
	t.Helper()
	return StartOn(t, records, t.TempDir())
}

// StartOn is Start with the folder that the streams and the users file lie in.
func StartOn(t testing.TB, records busauth.Records, dir string) *Server {
	t.Helper()
	certificate, pool := authority(t)
	s := &Server{Authority: pool, config: natsd.Config{
		Name: ServerName, Host: "127.0.0.1", Port: -1,
		StoreDir: filepath.Join(dir, "data"), Users: filepath.Join(dir, "users.conf"),
		TLS:    &tls.Config{Certificates: []tls.Certificate{*certificate}},
		Logger: Logger(t),
	}}
	s.start(t)
	t.Cleanup(func() { s.Server.Close() })
	s.Users(t, records)
	return s
}

func (s *Server) start(t testing.TB) {
	t.Helper()
	server, err := natsd.Start(s.config)
	if err != nil {
		t.Fatal(err)
	}
	s.Server = server
	s.config.Port = server.Addr().(*net.TCPAddr).Port
}

// Restart stops the broker and starts it again on the same port, folder and users.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Server.Close()
	s.start(t)
}

// Lose stops the broker and starts it again with no stream left, as after a lost disk.
func (s *Server) Lose(t testing.TB) {
	t.Helper()
	s.Server.Close()
	if err := os.RemoveAll(s.config.StoreDir); err != nil {
		t.Fatal(err)
	}
	s.start(t)
}

// Users composes the records and puts them in force.
func (s *Server) Users(t testing.TB, records busauth.Records) {
	t.Helper()
	file, _, err := busauth.Compose(records)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetUsers(file); err != nil {
		t.Fatal(err)
	}
}

// TLS is what a client needs to verify the broker.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{RootCAs: s.Authority, ServerName: ServerName, MinVersion: tls.VersionTLS13}
}

// Options connect the user over TLS.
func (s *Server) Options(t testing.TB, c *Cast, user string) bus.Options {
	return bus.Options{Endpoints: []string{s.Addr().String()}, TLS: s.TLS(), User: user, Key: c.Key(user), Logger: Logger(t), Wait: true}
}

// Connect opens a link over TLS, until the test ends.
func (s *Server) Connect(t testing.TB, c *Cast, user string) *bus.Link {
	t.Helper()
	return s.Open(t, s.Options(t, c, user))
}

// Controller opens the controller's link within this process and raises the streams.
func (s *Server) Controller(t testing.TB, c *Cast) *bus.Link {
	t.Helper()
	o := s.Options(t, c, wire.ControllerUser)
	o.Endpoints, o.TLS, o.InProcess = nil, nil, s.InProcess()
	l := s.Open(t, o)
	if err := bus.Raise(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	return l
}

// Open connects with options of the caller's, until the test ends.
func (s *Server) Open(t testing.TB, o bus.Options) *bus.Link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := bus.Connect(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Raw is a plain client with the user's key, as an attacker would write one.
func (s *Server) Raw(t testing.TB, c *Cast, user string, options ...nats.Option) *nats.Conn {
	t.Helper()
	key := c.Key(user)
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("tls://"+s.Addr().String(), append([]nats.Option{
		nats.Secure(s.TLS()), nats.Nkey(public, key.Sign), nats.NoReconnect()}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Logger writes to the test's log.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func authority(t testing.TB) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	fail := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	fail(err)
	ca, err = x509.ParseCertificate(caDER)
	fail(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fail(err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{ServerName}, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	fail(err)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	return &tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: key}, pool
}
