package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

const flushWithin = 5 * time.Second

var errClosed = appliance.Errorf(appliance.Unavailable, "the link to the bus is closed")

// Link is one user's connection, kept up until Close.
type Link struct {
	user    string
	log     *slog.Logger
	options nats.Options
	since   time.Time // of Connect
	count   counters
	now     func() time.Time // the window's clock
	dead    *rate.Limiter    // of messages from core set aside
	onFlood atomic.Pointer[func(subject string)]

	joined     chan struct{} // closed at the first connection
	joinedOnce sync.Once
	gone       chan struct{} // closed when the connection is, after Close
	goneOnce   sync.Once
	lastError  atomic.Value // string
	tries      atomic.Int64 // pauses since the last connection, the quick ones of a new link aside

	dialing       sync.Mutex // held while a connection is made and taken over
	mu            sync.Mutex
	nc            *nats.Conn
	ended         bool
	subscriptions []*subscription
	replies       map[string]*Reply // by subject
}

// User is the name the link is connected as.
func (l *Link) User() string { return l.user }

func (l *Link) conn() *nats.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nc
}

// connected gives the connection while there is one.
func (l *Link) connected() (*nats.Conn, error) {
	nc := l.conn()
	if !nc.IsConnected() {
		return nil, appliance.Errorf(appliance.Unavailable, "the bus is not connected (last: %s)", l.Status().LastError)
	}
	return nc, nil
}

// Status is how the link is.
type Status struct {
	Connected bool
	Endpoint  string // of the broker connected to
	LastError string // the last one there was, also when it is over

	Retries        uint64 // pauses before another try of all endpoints
	Denied         uint64 // publishes and subscriptions refused by the broker
	Undecodable    uint64 // messages set aside: unknown subject, no envelope, a kind that does not belong there
	LetGo          uint64 // messages of the stream set aside, for whatever reason
	Panics         uint64 // of handlers
	ForeignReplies uint64 // answers refused since they would have gone to another user's inbox
	LateReplies    uint64 // replies nobody waits for
	Floods         uint64 // messages left unread: their sender said more than anybody needs to
}

func (l *Link) Status() Status {
	nc := l.conn()
	s := Status{
		Retries: l.count.retries.Load(), Denied: l.count.denied.Load(), Undecodable: l.count.undecodable.Load(), LetGo: l.count.letGo.Load(),
		Panics: l.count.panics.Load(), ForeignReplies: l.count.foreignReplies.Load(), LateReplies: l.count.lateReplies.Load(),
		Floods: l.count.floods.Load(),
	}
	s.LastError, _ = l.lastError.Load().(string)
	if nc.IsConnected() {
		s.Connected, s.Endpoint = true, nc.ConnectedAddr()
	}
	return s
}

// Close lets running handlers finish, then ends the link. Further calls do nothing.
func (l *Link) Close() {
	l.mu.Lock()
	ended, nc := l.ended, l.nc
	l.ended = true
	l.mu.Unlock()
	if ended || nc == nil {
		return
	}
	if nc.Drain() == nil {
		select {
		case <-l.gone:
		case <-time.After(2 * drainWithin):
		}
	}
	nc.Close()
}

// Publish sends and forgets: nobody may be listening.
func (l *Link) Publish(subject string, data []byte) error {
	return l.publish(&nats.Msg{Subject: subject, Data: data})
}

func (l *Link) publish(m *nats.Msg) error {
	nc, err := l.connected()
	if err == nil {
		err = nc.PublishMsg(m)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		err = appliance.Errorf(appliance.Invalid, "%d bytes, at most %d", len(m.Data), nc.MaxPayload())
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionClosed):
		err = appliance.Errorf(appliance.Unavailable, "the bus is not connected: %w", err)
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", m.Subject, err)
	}
	return nil
}

// PublishStored returns once a stream has the message on disk.
func (l *Link) PublishStored(ctx context.Context, subject string, data []byte) error {
	return l.publishStored(ctx, &nats.Msg{Subject: subject, Data: data})
}

func (l *Link) publishStored(ctx context.Context, m *nats.Msg) error {
	fail := func(err error) error { return fmt.Errorf("publish %s: %w", m.Subject, err) }
	reply := l.NewReply()
	defer reply.Close()
	m.Reply = reply.Subject
	if err := l.publish(m); err != nil {
		return err
	}
	data, err := reply.Wait(ctx)
	if err != nil {
		return fail(err)
	}
	var ack struct {
		Stream   string `json:"stream"`
		Sequence uint64 `json:"seq"`
		Error    *struct {
			Code        int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(data, &ack); {
	case err != nil:
		return fail(fmt.Errorf("acknowledgement: %w", err))
	case ack.Error != nil:
		return fail(appliance.Errorf(appliance.Unavailable, "the stream refused it: %s (%d)", ack.Error.Description, ack.Error.Code))
	case ack.Stream == "" || ack.Sequence == 0:
		return fail(errors.New("acknowledgement names no stream"))
	}
	return nil
}

type subscription struct {
	subject string
	handle  nats.MsgHandler
	sub     *nats.Subscription
}

func (s *subscription) open(nc *nats.Conn) (err error) {
	s.sub, err = nc.Subscribe(s.subject, s.handle)
	return err
}

// Subscribe hears a subject until stop is called or the link closes; it outlives reconnections. One message is handled at a time. On
// a subject that the controller follows, only envelopes of the kinds that belong there reach the handler. The controller hears of each
// sender no more than a share. A handler that panics is logged and counted, and the message set aside.
func (l *Link) Subscribe(subject string, handle func(Message)) (stop func(), err error) {
	var senders shares
	s := &subscription{subject: subject, handle: func(m *nats.Msg) {
		if l.user == wire.ControllerUser && !senders.allow(wire.Token(m.Subject, 2)) { // whose that is, the broker holds senders to
			l.count.floods.Add(1)
			if told := l.onFlood.Load(); told != nil {
				(*told)(m.Subject)
			}
			return
		}
		msg := Message{Subject: m.Subject, Data: m.Data, Time: time.Now(), Delivered: 1}
		if _, ok := followed(m.Subject); ok {
			if reason := recognise(&msg); reason != "" {
				l.count.undecodable.Add(1)
				l.setAside(msg, reason)
				return
			}
		}
		if reason := l.guard(msg, func() { handle(msg) }); reason != "" {
			l.setAside(msg, reason)
		}
	}}
	return l.subscribe(s)
}

// OnFlood has f told the subject of every message that is left unheard because its sender says too much. F must not wait.
func (l *Link) OnFlood(f func(subject string)) { l.onFlood.Store(&f) }

func (l *Link) subscribe(s *subscription) (stop func(), err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil, errClosed
	}
	nc := l.nc
	if err = s.open(nc); err == nil {
		l.subscriptions = append(l.subscriptions, s)
	}
	l.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("subscribe %s: %w", s.subject, err)
	}
	if nc.IsConnected() {
		_ = nc.FlushTimeout(flushWithin) // heard from now on; else from the next connection on
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.subscriptions = slices.DeleteFunc(l.subscriptions, func(x *subscription) bool { return x == s })
		_ = s.sub.Unsubscribe() // an error says that it is gone already
	}, nil
}

// Message is what a subject brought.
type Message struct {
	Subject   string
	Data      []byte
	Header    wire.Header // on followed subjects: peeked, unproven; it serves to find the key
	Time      time.Time   // of arrival: in the stream, or here
	Delivered int         // how often it has been handed out
}
