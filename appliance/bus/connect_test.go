package bus_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/wire"
)

func connected(l *bus.Link, want bool) func() error {
	return func() error {
		if s := l.Status(); s.Connected != want {
			return fmt.Errorf("connected %v, want %v: %s", s.Connected, want, s.LastError)
		}
		return nil
	}
}

// BUS-4: a user minted but not composed yet is refused, tries on whatever the broker says, and is in soon after the next composition.
func TestRefusedUserComesIn(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	node := c.AddNode(t)
	o := s.Options(t, c, wire.NodeUser(node))
	o.Wait = false
	l := s.Open(t, o)
	// More refusals than the client library takes by itself.
	eventually(t, func() error {
		if st := l.Status(); st.Retries < 5 || !strings.Contains(st.LastError, "Authorization") {
			return fmt.Errorf("tried again %d times: %s", st.Retries, st.LastError)
		}
		return nil
	})
	if s := l.Status(); s.Connected {
		t.Fatalf("a user that is not composed is in: %+v", s)
	}
	began := time.Now()
	s.Users(t, c.Records)
	composed := time.Since(began)
	eventually(t, connected(l, true))
	t.Logf("users in force after %s, client in after %s", composed, time.Since(began))
}

// BUS-1, BUS-4: a removed user is cut at once and comes back once composed again; nobody else notices either.
func TestRemovedUserIsCut(t *testing.T) {
	c := bustest.NewCast(t)
	node := c.AddNode(t)
	s := bustest.Start(t, c.Records)
	var lost atomic.Int32
	var others []*bus.Link
	for _, user := range []string{wire.ControllerUser, wire.NodeUser(c.Hub)} {
		o := s.Options(t, c, user)
		o.OnDisconnect = func() { lost.Add(1) }
		others = append(others, s.Open(t, o))
	}
	var h heard
	if _, err := others[0].Subscribe(wire.SubjectAlives, func(m bus.Message) { h.add(m) }); err != nil {
		t.Fatal(err)
	}
	l := s.Connect(t, c, wire.NodeUser(node))
	without := c.Records
	without.Nodes = without.Nodes[:1]
	began := time.Now()
	s.Users(t, without)
	eventually(t, connected(l, false))
	t.Logf("cut after %s", time.Since(began))
	if err := l.Publish(wire.AliveSubject(node), nil); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("publish of a removed user: %v", err)
	}
	s.Users(t, c.Records)
	eventually(t, connected(l, true))
	if err := others[1].Publish(wire.AliveSubject(c.Hub), envelope(t, wire.KindAlive, string(c.Hub), "{}")); err != nil {
		t.Fatal(err)
	}
	eventually(t, h.want(1))
	if n := lost.Load(); n != 0 {
		t.Errorf("others lost their connection %d times", n)
	}
}

// BUS-4, BUS-10: a broker that goes and comes back finds its clients again, with what they hear; meanwhile nothing is kept for later.
func TestBrokerRestart(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	var gone atomic.Int32
	o := s.Options(t, c, wire.NodeUser(c.Hub))
	o.OnDisconnect = func() { gone.Add(1) }
	node := s.Open(t, o)
	var h heard
	if _, err := node.Subscribe(wire.DeclarationSubject(c.Hub), func(m bus.Message) { h.add(m) }); err != nil {
		t.Fatal(err)
	}
	s.Server.Close()
	eventually(t, connected(node, false))
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), []byte("lost")); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("publish without a broker: %v", err)
	}
	s.Restart(t)
	eventually(t, connected(node, true))
	if gone.Load() != 1 {
		t.Errorf("disconnected %d times", gone.Load())
	}
	// The controller was in this process with the old broker; it opens a link anew.
	controller.Close()
	controller = s.Controller(t, c)
	if err := controller.Publish(wire.DeclarationSubject(c.Hub), []byte("again")); err != nil {
		t.Fatal(err)
	}
	eventually(t, h.want(1))
	if got := string(h.list()[0].Data); got != "again" {
		t.Errorf("heard %q", got)
	}
}

// spoiled is a way into the broker through which the test says things of its own to the client.
type spoiled struct {
	broker interface{ InProcessConn() (net.Conn, error) }
	mu     sync.Mutex
	conns  []*spoiledConn
}

type spoiledConn struct {
	net.Conn
	read chan []byte
	rest []byte
}

func (s *spoiled) InProcessConn() (net.Conn, error) {
	c, err := s.broker.InProcessConn()
	if err != nil {
		return nil, err
	}
	sc := &spoiledConn{Conn: c, read: make(chan []byte)}
	go func() {
		defer close(sc.read)
		for {
			b := make([]byte, 32<<10)
			n, err := c.Read(b)
			if err != nil {
				return
			}
			sc.read <- b[:n]
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, sc)
	return sc, nil
}

func (c *spoiledConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		var ok bool
		if c.rest, ok = <-c.read; !ok {
			return 0, net.ErrClosed
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// BUS-4: after an error that makes the client library give up for good the link is there again, with what it hears.
func TestLinkOutlivesTheLibrary(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	way := &spoiled{broker: s.InProcess()}
	o := s.Options(t, c, wire.NodeUser(c.Hub))
	o.Endpoints, o.TLS, o.InProcess = nil, nil, way
	node := s.Open(t, o)
	var h heard
	stop, err := node.Subscribe(wire.NoticeSubject(c.Hub), func(m bus.Message) { h.add(m) })
	if err != nil {
		t.Fatal(err)
	}
	way.conns[0].read <- []byte("-ERR 'Something Nobody Has Heard Of'\r\n")
	eventually(t, connected(node, false))
	eventually(t, connected(node, true))
	controller := s.Controller(t, c)
	if err := controller.Publish(wire.NoticeSubject(c.Hub), []byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, h.want(1))
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), []byte("x")); err != nil {
		t.Errorf("publish on the link opened anew: %v", err)
	}
	stop()
	if err := controller.Publish(wire.NoticeSubject(c.Hub), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := controller.PublishStored(t.Context(), wire.SubjectDeadletter, nil); err != nil { // comes after the notice
		t.Fatal(err)
	}
	if n := len(h.list()); n != 1 {
		t.Errorf("heard %d notices after stop", n)
	}
}

// BUS-10, BUS-14: a configuration that names two brokers, or none, is refused; an endpoint that cannot prove to be the broker is
// never spoken to.
func TestOneBroker(t *testing.T) {
	c := bustest.NewCast(t)
	s, foreign := bustest.Start(t, c.Records), bustest.Start(t, c.Records)
	good := s.Options(t, c, wire.NodeUser(c.Hub))
	for name, spoil := range map[string]func(*bus.Options){
		"no broker":        func(o *bus.Options) { o.Endpoints = nil },
		"two brokers":      func(o *bus.Options) { o.InProcess = s.InProcess() },
		"no TLS":           func(o *bus.Options) { o.TLS = nil },
		"no server name":   func(o *bus.Options) { o.TLS.ServerName = "" },
		"no verification":  func(o *bus.Options) { o.TLS.InsecureSkipVerify = true },
		"no user":          func(o *bus.Options) { o.User = "" },
		"a pattern of one": func(o *bus.Options) { o.User = "node-*" },
		"no key":           func(o *bus.Options) { o.Key = nil },
		"half a key":       func(o *bus.Options) { o.Key = publicHalf(t, o.Key) },
		"not an endpoint":  func(o *bus.Options) { o.Endpoints = []string{"nats://user:secret@host"} },
	} {
		o := good
		o.TLS = good.TLS.Clone()
		spoil(&o)
		if l, err := bus.Connect(t.Context(), o); appliance.KindOf(err) != appliance.Invalid || l != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The foreign broker has the same users and another authority.
	good.Endpoints = []string{foreign.Addr().String(), s.Addr().String()}
	l := s.Open(t, good)
	if got := l.Status().Endpoint; got != s.Addr().String() {
		t.Errorf("connected to %s", got)
	}
	good.Endpoints = good.Endpoints[:1]
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := bus.Connect(ctx, good); appliance.KindOf(err) != appliance.Unavailable || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("foreign broker only: %v", err)
	}
}

func publicHalf(t *testing.T, key nkeys.KeyPair) nkeys.KeyPair {
	t.Helper()
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	half, err := nkeys.FromPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return half
}

// BUS-6: an endpoint without a port gets the default.
func TestEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"hub.example.org": "hub.example.org:4222", "hub.example.org:443": "hub.example.org:443", "192.0.2.1": "192.0.2.1:4222",
		"192.0.2.1:1": "192.0.2.1:1", "2001:db8::1": "[2001:db8::1]:4222", "[2001:db8::1]": "[2001:db8::1]:4222",
		"[2001:db8::1]:443": "[2001:db8::1]:443", "": "", ":443": "", "hub:": "", "hub:0": "", "hub:65536": "", "hub:-1": "", "a:b:c": "",
		"tls://hub": "", "user@hub": "", "hub/x": "", "hub?x": "", "h ub": "", "[::1": "", "hub:https": "",
	} {
		got, err := bus.Endpoint(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Endpoint(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	f.Add("[2001:db8::1]:443")
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := bus.Endpoint(s); err == nil {
			if again, err := bus.Endpoint(e); err != nil || again != e {
				t.Errorf("%q gives %q, which gives %q, %v", s, e, again, err)
			}
		}
	})
}

// BUS-9, BUS-14: request and answer over core and over the stream; every reply subject is fresh and the asker's own.
func TestRequest(t *testing.T) {
	c := bustest.NewCast(t)
	operator, token := c.AddOperator(t), c.AddToken(t)
	s := bustest.Start(t, c.Records)
	asker := s.Connect(t, c, wire.OperatorUser(operator))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	subject := wire.RequestSubject(operator, "node.list")
	request := func(reply string) ([]byte, error) { return asking(t, wire.KindRequest, string(operator), reply), nil }
	if _, err := asker.Request(ctx, subject, request); appliance.KindOf(err) != appliance.Unavailable || time.Since(began) > time.Second {
		t.Errorf("nobody listens: %v after %s", err, time.Since(began))
	}
	controller := s.Controller(t, c)
	if _, err := controller.Subscribe(wire.SubjectRequests, func(m bus.Message) {
		if err := controller.Answer(wire.OperatorUser(operator), m.Header.Reply, []byte("to "+m.Subject)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range 3 {
		answer, err := asker.Request(ctx, subject, func(reply string) ([]byte, error) {
			if seen[reply] || !wire.OwnsInbox(wire.OperatorUser(operator), reply) {
				t.Errorf("reply %s", reply)
			}
			seen[reply] = true
			return request(reply)
		})
		if diff := cmp.Diff("to "+subject, string(answer)); diff != "" || err != nil {
			t.Errorf("answer: %s %v", diff, err)
		}
	}
	follow(t, controller, "enrolments", func(_ context.Context, m bus.Message) bus.Verdict {
		if err := controller.Answer(wire.TokenUser(token), m.Header.Reply, []byte("welcome")); err != nil {
			t.Error(err)
		}
		return bus.Done()
	})
	joiner := s.Connect(t, c, wire.TokenUser(token))
	answer, err := joiner.Request(ctx, wire.EnrolSubject(token), func(reply string) ([]byte, error) {
		return asking(t, wire.KindHello, string(token), reply), nil
	})
	if err != nil || string(answer) != "welcome" {
		t.Errorf("answer over the stream: %q, %v", answer, err)
	}
	// A subject that is not the asker's looks like a time-out, and is counted.
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if _, err := joiner.Request(short, wire.ReportSubject(c.Hub), request); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("a subject of another's: %v", err)
	}
	eventually(t, func() error {
		if st := joiner.Status(); st.Denied != 1 || !strings.Contains(st.LastError, wire.ReportSubject(c.Hub)) {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
}

// GEN-9: how long a stored publish takes with every write on disk; a figure, and a bound against something gone wrong.
func TestStoredPublishLatency(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	follow(t, controller, "reports", func(context.Context, bus.Message) bus.Verdict { return bus.Done() })
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	data := envelope(t, wire.KindReport, string(c.Hub), strings.Repeat("x", 8<<10))
	const n = 100
	began := time.Now()
	for range n {
		if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), data); err != nil {
			t.Fatal(err)
		}
	}
	each := time.Since(began) / n
	err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), make([]byte, wire.MaxEnvelope+1))
	if appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), "at most 1048576") {
		t.Errorf("more than a message holds: %v", err)
	}
	t.Logf("8 KiB stored and acknowledged in %s", each)
	if each > 500*time.Millisecond {
		t.Errorf("a stored publish takes %s", each)
	}
}

// BUS-8: what goes over the bus are the envelope's bytes and no headers, on exactly the subject, however it is sent.
func TestBareEnvelopes(t *testing.T) {
	c := bustest.NewCast(t)
	operator := c.AddOperator(t)
	s := bustest.Start(t, c.Records)
	s.Controller(t, c)
	raw := s.Raw(t, c, wire.ControllerUser)
	sub, err := raw.SubscribeSync(wire.SubjectRequests)
	if err != nil {
		t.Fatal(err)
	}
	alives, err := raw.SubscribeSync(wire.SubjectAlives)
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Flush(); err != nil {
		t.Fatal(err)
	}
	data := envelope(t, wire.KindAlive, string(c.Hub), "{}")
	if err := s.Connect(t, c, wire.NodeUser(c.Hub)).Publish(wire.AliveSubject(c.Hub), data); err != nil {
		t.Fatal(err)
	}
	m, err := alives.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != wire.AliveSubject(c.Hub) || m.Reply != "" || len(m.Header) != 0 || !bytes.Equal(m.Data, data) {
		t.Errorf("on the wire: %+v", m)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = s.Connect(t, c, wire.OperatorUser(operator)).Request(ctx, wire.RequestSubject(operator, "node.list"), func(string) ([]byte, error) { return data, nil })
	if appliance.KindOf(err) != appliance.Unavailable {
		t.Error(err)
	}
	if m, err = sub.NextMsg(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if m.Subject != wire.RequestSubject(operator, "node.list") || len(m.Header) != 0 || !bytes.Equal(m.Data, data) {
		t.Errorf("on the wire: %+v", m)
	}
}

// Close lets a handler that is running finish, with what it still has to say.
func TestCloseLetsHandlersFinish(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	var h heard
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	if _, err := node.Subscribe(wire.NoticeSubject(c.Hub), func(m bus.Message) { h.add(m) }); err != nil {
		t.Fatal(err)
	}
	running, finish := make(chan struct{}), make(chan struct{})
	if _, err := controller.Subscribe(wire.SubjectAlives, func(bus.Message) {
		close(running)
		<-finish
		if err := controller.Publish(wire.NoticeSubject(c.Hub), []byte("the last word")); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := node.Publish(wire.AliveSubject(c.Hub), envelope(t, wire.KindAlive, string(c.Hub), "{}")); err != nil {
		t.Fatal(err)
	}
	<-running
	time.AfterFunc(50*time.Millisecond, func() { close(finish) }) // Close is waiting by then
	controller.Close()
	eventually(t, h.want(1))
	if _, err := controller.Subscribe(wire.SubjectAlives, func(bus.Message) {}); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("subscribe on a closed link: %v", err)
	}
	if err := controller.Publish(wire.SubjectMembership, nil); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("publish on a closed link: %v", err)
	}
}
