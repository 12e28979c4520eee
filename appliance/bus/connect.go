// Package bus is the link to the broker: connecting for as long as it takes, publishing with acknowledgement, asking and answering,
// and following the controller's stream. It is the only package that imports nats.go. What a message means, whose signature it needs
// and what is recorded of it belong elsewhere.
package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"golang.org/x/time/rate"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// DefaultPort is a broker's where an endpoint names none.
const DefaultPort = "4222"

const (
	dialWithin  = 10 * time.Second // one try of one endpoint, handshakes included
	pingEvery   = 20 * time.Second
	drainWithin = 5 * time.Second
)

// Options say which broker, as whom. Exactly one of Endpoints and InProcess.
type Options struct {
	Endpoints []string // host[:port] of one broker, in the order to try: public first
	InProcess interface{ InProcessConn() (net.Conn, error) }
	TLS       *tls.Config   // required with Endpoints; ServerName is required, every endpoint has to prove it
	User      string        // required: wire.ControllerUser, wire.NodeUser(…), …; owns the inbox prefix
	Key       nkeys.KeyPair // required: the user's nkey with its private half
	Logger    *slog.Logger  // nil: discard

	// Told after each connection made and lost, in order, one at a time; nil: nobody. The link may be used in them, not closed.
	OnConnect, OnDisconnect func()

	Wait bool // return only once connected, or when the context ends; else Connect returns at once and the link connects when it can
}

// Connect opens the link, after one try of each endpoint at the latest. The context bounds only the wait; Close ends the link.
func Connect(ctx context.Context, o Options) (*Link, error) {
	urls, err := o.check()
	if err != nil {
		return nil, err
	}
	l := &Link{
		user:    o.User,
		log:     o.Logger,
		replies: map[string]*Reply{},
		since:   time.Now(),
		now:     time.Now,
		joined:  make(chan struct{}),
		gone:    make(chan struct{}),
		dead:    rate.NewLimiter(deadPerSec, deadAtOnce),
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	l.options = l.natsOptions(o, urls)
	l.subscriptions = []*subscription{{subject: wire.InboxPrefix(o.User) + ".r.*", handle: l.route}}
	if err := l.dial(); err != nil {
		l.Close()
		return nil, err
	}
	if !o.Wait {
		return l, nil
	}
	select {
	case <-l.joined:
		return l, nil
	case <-ctx.Done():
		s := l.Status()
		l.Close()
		return nil, appliance.Errorf(appliance.Unavailable, "connect to the bus as %s: %w (last: %s)", o.User, ctx.Err(), s.LastError)
	}
}

// check refuses options that name no broker or two (BUS-10), and gives the endpoints as URLs.
func (o Options) check() ([]string, error) {
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, appliance.Errorf(appliance.Invalid, "connect to the bus: "+format, args...)
	}
	switch {
	case o.User == "" || strings.ContainsAny(o.User, ".*> \t\r\n"):
		return refuse("user %s is not one subject token", appliance.Quote(o.User))
	case !usable(o.Key):
		return refuse("user %s has no user nkey of its own", o.User)
	case o.InProcess != nil && len(o.Endpoints) > 0:
		return refuse("two brokers are named: one in this process and %s", strings.Join(o.Endpoints, ", "))
	case o.InProcess != nil:
		return nil, nil
	case len(o.Endpoints) == 0:
		return refuse("no broker is named")
	case o.TLS == nil || o.TLS.ServerName == "":
		return refuse("no server name is given that every endpoint has to prove")
	case o.TLS.InsecureSkipVerify && o.TLS.VerifyConnection == nil && o.TLS.VerifyPeerCertificate == nil:
		return refuse("certificates would not be verified")
	}
	var urls []string
	for _, e := range o.Endpoints {
		hostPort, err := Endpoint(e)
		if err != nil {
			return nil, err
		}
		urls = append(urls, "tls://"+hostPort)
	}
	return urls, nil
}

// usable says whether the key can log in.
func usable(key nkeys.KeyPair) bool {
	if key == nil {
		return false
	}
	public, err := key.PublicKey()
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return false
	}
	_, err = key.PrivateKey()
	return err == nil
}

// Endpoint is s with a port: host, host:port, an IPv6 literal with or without brackets (BUS-6).
func Endpoint(s string) (string, error) {
	host, port := s, DefaultPort
	literal := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		literal = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(literal); err == nil && (literal == s || a.Is6()) {
		host = a.String()
	} else if strings.Contains(s, ":") {
		var err error
		if host, port, err = net.SplitHostPort(s); err != nil {
			host = ""
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@?#[] \t\r\n") {
		return "", appliance.Errorf(appliance.Invalid, "endpoint %s is not host:port", appliance.Quote(s))
	}
	return net.JoinHostPort(host, port), nil
}

const (
	fastWithin = 2 * time.Second // a fresh link tries quickly for this long: broker and client often start together
	fastDelay  = 50 * time.Millisecond
	minDelay   = time.Second
	maxDelay   = time.Minute
)

// delay is the pause before the nth try: 1 s up to 60 s, spread evenly by random in [0,1), so that a mesh does not return as one (BUS-4).
func delay(n int64, random float64) time.Duration {
	ceiling := maxDelay
	if n < 6 {
		ceiling = minDelay << n
	}
	return minDelay + time.Duration(random*float64(ceiling-minDelay))
}

// pause is the next delay; it begins at the bottom after each connection.
func (l *Link) pause() time.Duration {
	l.count.retries.Add(1)
	if time.Since(l.since) < fastWithin {
		return fastDelay
	}
	return delay(l.tries.Add(1), rand.Float64())
}

func (l *Link) natsOptions(o Options, urls []string) nats.Options {
	public, _ := o.Key.PublicKey()
	n := nats.GetDefaultOptions()
	n.Servers = urls
	n.Name = o.User
	n.Nkey = public
	n.SignatureCB = o.Key.Sign
	n.TLSConfig = o.TLS
	n.Secure = o.InProcess == nil
	if o.InProcess != nil {
		n.InProcessServer = o.InProcess
	}
	n.NoRandomize = true
	n.IgnoreDiscoveredServers = true
	n.Timeout = dialWithin
	n.PingInterval = pingEvery
	n.MaxPingsOut = 2
	n.DrainTimeout = drainWithin
	n.InboxPrefix = wire.InboxPrefix(o.User)
	n.ReconnectBufSize = -1 // what cannot be sent now is an error, not a surprise later

	n.MaxReconnect = -1
	n.RetryOnFailedConnect = true
	n.IgnoreAuthErrorAbort = true // a refused user may be composed in a moment
	n.CustomReconnectDelayCB = func(int) time.Duration {
		if nc := l.conn(); nc != nil { // nil: the first try is not over
			l.missed(nc.LastError()) // a refusal; ReconnectErrCB has only what happens before
		}
		return l.pause()
	}
	connected := func(nc *nats.Conn) {
		l.settle()
		l.log.Info("bus connected", "user", o.User, "endpoint", nc.ConnectedAddr())
		l.tries.Store(0)
		l.joinedOnce.Do(func() { close(l.joined) })
		if o.OnConnect != nil {
			o.OnConnect()
		}
	}
	n.ConnectedCB, n.ReconnectedCB = connected, connected
	n.DisconnectedErrCB = func(_ *nats.Conn, err error) {
		l.settle()
		l.failed("bus disconnected", err)
		if o.OnDisconnect != nil {
			o.OnDisconnect()
		}
	}
	n.ReconnectErrCB = func(_ *nats.Conn, err error) { l.missed(err) }
	slow := rate.Sometimes{Interval: time.Second}
	n.AsyncErrorCB = func(_ *nats.Conn, s *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			l.count.denied.Add(1)
		}
		subject := ""
		if s != nil {
			subject = s.Subject
		}
		tell := func() { l.failed("bus error", err, "subject", subject) }
		if errors.Is(err, nats.ErrSlowConsumer) { // it comes with every message dropped
			slow.Do(tell)
			return
		}
		tell()
	}
	n.ClosedCB = func(*nats.Conn) { l.closed() }
	return n
}

func (l *Link) failed(what string, err error, args ...any) {
	if err == nil {
		return
	}
	l.lastError.Store(err.Error())
	l.log.Warn(what, append([]any{"user", l.user, "error", err}, args...)...)
}

// missed notes an attempt to connect that failed; the same reason again is not logged again.
func (l *Link) missed(err error) {
	if last, _ := l.lastError.Load().(string); err != nil && err.Error() != last {
		l.failed("bus not reached", err)
	}
}

// dial makes the connection, and after it was closed from outside a new one with the same subscriptions: there are errors of the
// server after which nats.go gives up for good.
func (l *Link) dial() error {
	l.dialing.Lock()
	defer l.dialing.Unlock()
	nc, err := l.options.Connect()
	if err != nil {
		return fmt.Errorf("connect to the bus as %s: %w", l.user, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		nc.Close()
		return errClosed
	}
	l.nc = nc
	for _, s := range l.subscriptions {
		if err := s.open(nc); err != nil {
			return fmt.Errorf("subscribe %s: %w", s.subject, err)
		}
	}
	return nil
}

// settle waits until a connection that was just made is the link's own: the library tells before its Connect has returned.
func (l *Link) settle() {
	l.dialing.Lock()
	defer l.dialing.Unlock()
}

func (l *Link) closed() {
	l.mu.Lock()
	ended := l.ended
	l.mu.Unlock()
	if ended {
		l.goneOnce.Do(func() { close(l.gone) })
		return
	}
	l.log.Error("bus connection given up by the client library: opening another", "user", l.user)
	time.AfterFunc(minDelay, func() {
		if err := l.dial(); err != nil && !errors.Is(err, errClosed) {
			l.failed("bus not reopened", err)
			l.closed()
		}
	})
}

type counters struct {
	retries, denied, undecodable, letGo, panics, foreignReplies, lateReplies, floods atomic.Uint64
}
