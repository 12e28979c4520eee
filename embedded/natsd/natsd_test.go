package natsd

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// BUS-2, BUS-3, SAFE-4: only a listed nkey that signs its nonce gets in.
func TestAdmission(t *testing.T) {
	s := start(t, config(t.TempDir()))
	a := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	stranger := newPerson(t, Control, nil, nil)
	refused(t, s, a.login()) // no users file yet: nobody
	setUsers(t, s, a)

	c := connect(t, s, a)
	exchange(t, c, c, "a.b")
	refused(t, s)
	refused(t, s, stranger.login())
	refused(t, s, nats.UserInfo(a.nkey, ""))
	refused(t, s, nats.UserInfo(a.nkey, "x"))
	refused(t, s, nats.Token(a.nkey))
	refused(t, s, nats.Nkey(a.nkey, func([]byte) ([]byte, error) { return stranger.key.Sign([]byte("nonce")) }))
	refused(t, s, nats.Nkey(a.nkey, func(nonce []byte) ([]byte, error) { return stranger.key.Sign(nonce) }))
	refused(t, s, nats.Nkey(a.nkey, func(nonce []byte) ([]byte, error) { return a.key.Sign(append(nonce, 'x')) }))
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// BUS-2: the listener speaks TLS 1.3 or nothing; the pipe authenticates too.
func TestListenerAndPipe(t *testing.T) {
	s := start(t, config(t.TempDir()))
	a := newPerson(t, Control, []string{"a"}, []string{"a"})
	setUsers(t, s, a)

	if c, err := nats.Connect("nats://"+s.Addr().String(), a.login()); err == nil {
		c.Close()
		t.Error("connected without trusting the broker's certificate")
	}
	_, pool := identity()
	if c, err := nats.Connect("nats://"+s.Addr().String(), a.login(), nats.Secure(&tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS12})); err == nil {
		c.Close()
		t.Error("connected with TLS 1.2")
	}
	pipe, err := nats.Connect("", nats.InProcessServer(s.InProcess()), a.login())
	if err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	conn, err := s.InProcess().InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil { // INFO
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("CONNECT {}\r\n")); err != nil {
		t.Fatal(err)
	}
	if got, err := lines.ReadString('\n'); err != nil || !strings.Contains(got, "Authorization Violation") {
		t.Errorf("pipe without a key: %q, %v", got, err)
	}
}

// With port 0 nothing listens.
func TestPipeOnly(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.Port, cfg.Host, cfg.TLS = 0, "", nil
	s := start(t, cfg)
	if s.Addr() != nil {
		t.Errorf("listens on %s", s.Addr())
	}
	a := newPerson(t, Modules, []string{"a"}, []string{"a"})
	setUsers(t, s, a)
	c, err := nats.Connect("", nats.InProcessServer(s.InProcess()), a.login())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// BUS-1: a removed user is cut at once, one with other rights too, and nobody
// else notices.
func TestChangeCutsExactly(t *testing.T) {
	s := start(t, config(t.TempDir()))
	controller := newPerson(t, Control, []string{"a.>", "b.>"}, []string{"a.>", "b.>"})
	node := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	module := newPerson(t, Modules, []string{"m"}, []string{"m"})
	moved := newPerson(t, Control, []string{"m"}, []string{"m"})
	setUsers(t, s, controller, node, module, moved)
	ctl, nod, mod, mov := connect(t, s, controller), connect(t, s, node), connect(t, s, module), connect(t, s, moved)

	sub, err := ctl.SubscribeSync("a.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := ctl.Flush(); err != nil {
		t.Fatal(err)
	}

	// The node gets more, the moved one another account, the module goes, the
	// controller's lists are only ordered differently.
	node = node.with([]string{"a.>", "b.>"}, []string{"a.>", "b.>"})
	moved = moved.with(moved.pub, moved.sub)
	moved.account = Modules
	setUsers(t, s, controller.with([]string{"b.>", "a.>"}, []string{"b.>", "a.>"}), node, moved)

	select {
	case <-mod.closed: // refused at its reconnects, nats.go gives up
	case <-time.After(5 * time.Second):
		t.Error("removed module is still there")
	}
	waitReconnected(t, nod)
	waitReconnected(t, mov)
	exchange(t, nod, nod, "b.x")
	// In MODULES now: what CONTROL says is not heard there.
	heard, err := mov.SubscribeSync("m")
	if err != nil {
		t.Fatal(err)
	}
	if err := mov.Flush(); err != nil {
		t.Fatal(err)
	}
	setUsers(t, s, controller, node, moved, module.with([]string{"m"}, []string{"m"}))
	exchange(t, connect(t, s, module), mov, "m")
	if _, err := heard.NextMsg(5 * time.Second); err != nil {
		t.Errorf("moved user hears nothing in its account: %v", err)
	}

	if err := nod.Publish("a.1", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(5 * time.Second); err != nil {
		t.Errorf("controller's subscription: %v", err)
	}
	if n := ctl.drops.Load(); n != 0 || ctl.Stats().Reconnects != 0 {
		t.Errorf("controller, whose rights did not change, was dropped %d times", n)
	}
	if ctl.IsClosed() || len(ctl.denied) > 0 {
		t.Error("controller noticed the change")
	}

	// And less again.
	setUsers(t, s, controller, node.with([]string{"a.>"}, []string{"a.>"}))
	if err := poll(t.Context(), func() error {
		if n := nod.Stats().Reconnects; n < 2 {
			return fmt.Errorf("node reconnected %d times", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := nod.Publish("b.x", nil); err != nil {
		t.Fatal(err)
	}
	nod.waitDenied(t, "b.x")
}

// BUS-1: a cut connection is gone when SetUsers returns.
func TestRemovedIsCutOnReturn(t *testing.T) {
	s := start(t, config(t.TempDir()))
	a := newPerson(t, Control, []string{"a"}, []string{"a"})
	b := newPerson(t, Control, []string{"a"}, []string{"a"})
	setUsers(t, s, a, b)
	connect(t, s, a)
	connect(t, s, b)
	if n := s.ns.NumClients(); n != 2 {
		t.Fatalf("%d clients, want 2", n)
	}
	setUsers(t, s, a)
	if n := s.ns.NumClients(); n != 1 {
		t.Errorf("%d clients after the removal, want 1", n)
	}
	if err := s.auth.users[b.nkey]; err.account != "" {
		t.Error("removed user is still known")
	}
}

// BUS-2: the two accounts do not hear each other, and rights hold.
func TestRights(t *testing.T) {
	s := start(t, config(t.TempDir()))
	a := newPerson(t, Control, []string{"x"}, []string{"x"})
	b := newPerson(t, Modules, []string{"x", "y"}, []string{"x"})
	setUsers(t, s, a, b)
	ca, cb := connect(t, s, a), connect(t, s, b)
	sub, err := ca.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Flush(); err != nil {
		t.Fatal(err)
	}
	exchange(t, cb, cb, "x")
	if m, err := sub.NextMsg(50 * time.Millisecond); err == nil {
		t.Errorf("heard %q across the accounts", m.Subject)
	}
	if err := ca.Publish("y", nil); err != nil {
		t.Fatal(err)
	}
	ca.waitDenied(t, `"y"`)
	if _, err := cb.SubscribeSync("y"); err != nil {
		t.Fatal(err)
	}
	cb.waitDenied(t, `"y"`)
}

// GEN-8, GEN-9, BUS-1: users and streams are there again after a restart.
func TestRestart(t *testing.T) {
	cfg := config(t.TempDir())
	s := start(t, cfg)
	ctl := newPerson(t, Control, []string{"$JS.API.>", "work"}, []string{"_INBOX.>"})
	setUsers(t, s, ctl)
	js, err := jetstream.New(connect(t, s, ctl).Conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "work", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := s.Ready(t.Context()); err == nil {
		t.Error("a closed broker says it is ready")
	}

	s = start(t, cfg)
	js, err = jetstream.New(connect(t, s, ctl).Conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "WORK")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(msg.Data); got != "kept" {
		t.Errorf("after the restart: %q", got)
	}
}

// GEN-9: SyncAlways is looked up in the running server.
func TestSyncAlwaysIsAsserted(t *testing.T) {
	s := start(t, config(t.TempDir()))
	if err := s.started(); err != nil {
		t.Fatal(err)
	}
	opts, err := options(config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	opts.SyncAlways = false
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.WaitForShutdown()
	defer ns.Shutdown()
	forgetful := &Server{ns: ns, log: newLogger(nil, nil)}
	if err := forgetful.started(); err == nil || !strings.Contains(err.Error(), "SyncAlways") {
		t.Errorf("without SyncAlways: %v", err)
	}
}

// Streams take more than the 1000 consumers that are the server's own default.
func TestManyConsumers(t *testing.T) {
	cfg := config(t.TempDir())
	s := start(t, cfg)
	ctl := newPerson(t, Control, []string{"$JS.API.>"}, []string{"_INBOX.>"})
	setUsers(t, s, ctl)
	js, err := jetstream.New(connect(t, s, ctl).Conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.*"}, Storage: jetstream.MemoryStorage})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1001 {
		if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{InactiveThreshold: time.Minute, FilterSubject: fmt.Sprintf("s.%d", i)}); err != nil {
			t.Fatalf("consumer %d: %v", i, err)
		}
	}
}

// SAFE-1: a configuration that cannot work is refused before anything is made.
func TestRefusedConfigs(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no name":        func(c *Config) { c.Name = "" },
		"no store":       func(c *Config) { c.StoreDir = "" },
		"no users":       func(c *Config) { c.Users = "" },
		"no host":        func(c *Config) { c.Host = "" },
		"no certificate": func(c *Config) { c.TLS = nil },
		"huge payload":   func(c *Config) { c.MaxPayload = 1 << 32 },
		"negative store": func(c *Config) { c.MaxStore = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cfg := config(dir)
			spoil(&cfg)
			if s, err := Start(cfg); err == nil {
				s.Close()
				t.Error("started")
			}
			if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
				t.Errorf("made %v, %v", made, err)
			}
		})
	}
}

// A taken port is an error that says so, at once.
func TestPortTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := config(t.TempDir())
	cfg.Port = l.Addr().(*net.TCPAddr).Port
	begin := time.Now()
	s, err := Start(cfg)
	if err == nil {
		s.Close()
		t.Fatal("started on a taken port")
	}
	if !strings.Contains(err.Error(), "in use") || time.Since(begin) > 5*time.Second {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
}

// BUS-1: the previous users come back, once.
func TestRestore(t *testing.T) {
	cfg := config(t.TempDir())
	s := start(t, cfg)
	if err := s.Restore(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("restore with nothing to restore: %v", err)
	}
	a := newPerson(t, Control, []string{"a"}, []string{"a"})
	b := newPerson(t, Control, []string{"a"}, []string{"a"})
	first, second := compose(a), compose(b)
	for _, file := range [][]byte{first, second, second} { // the same again is no step
		if err := s.SetUsers(file); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, s, a.login())
	if err := s.Restore(); err != nil {
		t.Fatal(err)
	}
	connect(t, s, a)
	refused(t, s, b.login())
	if got, err := os.ReadFile(cfg.Users); err != nil || string(got) != string(first) {
		t.Errorf("users file after the restore: %v, %s", err, got)
	}
	if err := s.Restore(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second restore: %v", err)
	}
}

// SAFE-5: a half-written users file starts a broker that admits nobody and says so.
func TestDamagedUsersFile(t *testing.T) {
	cfg := config(t.TempDir())
	a := newPerson(t, Control, []string{"a"}, []string{"a"})
	whole := compose(a)
	if err := os.WriteFile(cfg.Users, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, cfg)
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "admits nobody") {
		t.Errorf("last error: %v", err)
	}
	refused(t, s, a.login())
	setUsers(t, s, a)
	connect(t, s, a)
	if err := s.Err(); err != nil {
		t.Errorf("last error after new users: %v", err)
	}
	if _, err := os.Stat(cfg.Users + ".previous"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("damaged file was kept as the previous one: %v", err)
	}
}

// Closed connections do not heap up in the map of who is who.
func TestClosedConnectionsAreForgotten(t *testing.T) {
	s := start(t, config(t.TempDir()))
	a := newPerson(t, Control, []string{"a"}, []string{"a"})
	setUsers(t, s, a)
	for range 150 {
		c, err := nats.Connect("", nats.InProcessServer(s.InProcess()), a.login())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	s.auth.mu.Lock()
	defer s.auth.mu.Unlock()
	if n := len(s.auth.clients[a.nkey]); n > 10 { // the last ones may not be closed through
		t.Errorf("%d connections remembered with none open", n)
	}
}

// SAFE-2: one credential takes neither all connections nor memory without bound; others come in meanwhile.
func TestShares(t *testing.T) {
	s := start(t, config(t.TempDir()))
	s.auth.share = 3
	a := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	b := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	setUsers(t, s, a, b)
	var first *client
	for range 3 {
		first = connect(t, s, a)
	}
	refused(t, s, a.login())
	connect(t, s, b)
	first.Close()
	if err := poll(t.Context(), func() error {
		c, err := dial(s.Addr(), a.login())
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		t.Errorf("a connection was closed, and the next is still refused: %v", err)
	}

	c := connect(t, s, b)
	for i := range maxSubs + 1 {
		if _, err := c.SubscribeSync(fmt.Sprintf("a.%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-c.denied:
		if !errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			t.Errorf("denied with %v, want too many subscriptions", err)
		}
	case <-c.closed:
	case <-time.After(5 * time.Second):
		t.Errorf("%d subscriptions of one connection are taken", maxSubs+1)
	}
}

// SAFE-2: whoever only connects cannot take the files that streams and store need.
func TestConnectionsLeaveFiles(t *testing.T) {
	for files, want := range map[uint64]int{0: 1, 2: 1, 1024: 512, 4096: 3072, 20_000: maxConnections, 1 << 63: maxConnections} {
		if got := within(files); got != want {
			t.Errorf("of %d files %d connections, want %d", files, got, want)
		}
	}
}
