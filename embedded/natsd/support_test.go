package natsd

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// person is a user with its key.
type person struct {
	account  string
	pub, sub []string
	key      nkeys.KeyPair
	nkey     string
}

func newPerson(t testing.TB, account string, pub, sub []string) *person {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	nkey, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return &person{account, pub, sub, key, nkey}
}

// with is the same person with other rights.
func (p *person) with(pub, sub []string) *person {
	q := *p
	q.pub, q.sub = pub, sub
	return &q
}

func quoted(list []string) string { return `["` + strings.Join(list, `", "`) + `"]` }

func compose(people ...*person) []byte {
	var b strings.Builder
	b.WriteString("# composed for a test\naccounts {\n")
	for _, account := range []string{Control, Modules} {
		fmt.Fprintf(&b, "  %s {\n    users: [\n", account)
		for _, p := range people {
			if p.account == account {
				fmt.Fprintf(&b, "      {nkey: %q, permissions: {publish: {allow: %s}, subscribe: {allow: %s}}}\n", p.nkey, quoted(p.pub), quoted(p.sub))
			}
		}
		b.WriteString("    ]\n  }\n")
	}
	b.WriteString("}\n")
	return []byte(b.String())
}

// identity is the certificate of the test broker and the pool that trusts it.
var identity = sync.OnceValues(func() (*tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
})

func config(dir string) Config {
	cert, _ := identity()
	return Config{Name: "test", Host: "127.0.0.1", Port: -1, StoreDir: filepath.Join(dir, "streams"), Users: filepath.Join(dir, "users.conf"),
		TLS: &tls.Config{Certificates: []tls.Certificate{*cert}}, MaxStore: 64 << 20}
}

func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func setUsers(t testing.TB, s *Server, people ...*person) {
	t.Helper()
	if err := s.SetUsers(compose(people...)); err != nil {
		t.Fatal(err)
	}
}

// client is a connection that counts what it notices.
type client struct {
	*nats.Conn
	drops  atomic.Int32
	closed chan struct{}
	denied chan error
}

func dial(addr net.Addr, opts ...nats.Option) (*client, error) {
	_, pool := identity()
	c := &client{closed: make(chan struct{}), denied: make(chan error, 16)}
	conn, err := nats.Connect("nats://"+addr.String(), append([]nats.Option{
		nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}),
		nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { c.drops.Add(1) }),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			select {
			case c.denied <- err:
			default:
			}
		}),
	}, opts...)...)
	c.Conn = conn
	return c, err
}

func (p *person) login() nats.Option { return nats.Nkey(p.nkey, p.key.Sign) }

func connect(t testing.TB, s *Server, p *person, opts ...nats.Option) *client {
	t.Helper()
	c, err := dial(s.Addr(), append(opts, p.login())...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

func refused(t *testing.T, s *Server, opts ...nats.Option) {
	t.Helper()
	c, err := dial(s.Addr(), opts...)
	if !errors.Is(err, nats.ErrAuthorization) {
		c.Close()
		t.Errorf("connect: got %v, want an authorization violation", err)
	}
}

// waitDenied waits for the asynchronous permissions violation.
func (c *client) waitDenied(t *testing.T, about string) {
	t.Helper()
	select {
	case err := <-c.denied:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), about) {
			t.Errorf("denied with %v, want a permissions violation about %q", err, about)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("use of %q was not denied", about)
	}
}

// exchange publishes from one to the other.
func exchange(t *testing.T, from, to *client, subject string) {
	t.Helper()
	sub, err := to.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := to.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := from.Publish(subject, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(5 * time.Second); err != nil {
		t.Errorf("message on %s: %v", subject, err)
	}
}

func waitReconnected(t *testing.T, c *client) {
	t.Helper()
	if err := poll(t.Context(), func() error {
		if c.Stats().Reconnects == 0 || !c.IsConnected() {
			return fmt.Errorf("not reconnected, %s", c.Status())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// poll tries until it holds, and says why it did not.
func poll(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(5 * time.Millisecond):
		}
	}
}
