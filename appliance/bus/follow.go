package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Verdict is what a handler says of a message; the zero Verdict is none, and counts as a failure.
type Verdict struct {
	what   verdict
	delay  time.Duration
	reason string
}

type verdict int

const (
	none verdict = iota
	done
	later
	storeAway
	dead
)

// Done: recorded and committed, or settled without; the message is acknowledged.
func Done() Verdict { return Verdict{what: done} }

// Later: it failed although the store answers; again after the delay, and let go once that has gone on for the window [Limit].
func Later(delay time.Duration, reason string) Verdict { return Verdict{later, delay, reason} }

// StoreAway: the store does not answer; again after the delay, for as long as it takes.
func StoreAway(delay time.Duration) Verdict { return Verdict{what: storeAway, delay: delay} }

// Dead: it can never be handled; set aside with the reason.
func Dead(reason string) Verdict { return Verdict{what: dead, reason: reason} }

const (
	pullBatch    = 16 // how many lie here waiting for their turn
	pullExpiry   = 30 * time.Second
	heartbeat    = 2 * time.Second
	handleWithin = ackWithin - 10*time.Second
	minAgain     = 20 * time.Millisecond
	reopenAfter  = time.Second
	saveEvery    = time.Second
	saveWithin   = 5 * time.Second
	buryAgain    = 30 * time.Second
)

// Follow hands the consumer's messages to handle, one at a time, until the context ends; only then does it return, and nil, unless
// the consumer is in no list. It opens anew whatever happens to connection, stream or consumer. One Follow for each consumer.
func (l *Link) Follow(ctx context.Context, consumer string, handle func(context.Context, Message) Verdict) error {
	if !slices.ContainsFunc(consumers(), func(c jetstream.ConsumerConfig) bool { return c.Durable == consumer }) {
		return appliance.Errorf(appliance.Invalid, "follow consumer %s: it is in no list", appliance.Quote(consumer))
	}
	f := &follower{link: l, consumer: consumer, handle: handle}
	defer f.save(context.WithoutCancel(ctx))
	for {
		err := f.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.failed("bus consumer reopened", err, "consumer", consumer)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reopenAfter):
		}
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerDeleted) {
			if err := Raise(ctx, l); err != nil && ctx.Err() == nil {
				l.failed("bus streams not raised", err)
			}
		}
	}
}

// follower is the one loop of one consumer; the window is its own.
type follower struct {
	link     *Link
	consumer string
	handle   func(context.Context, Message) Verdict

	window  *Window   // nil until loaded
	unsaved bool      // window has changed since
	saved   time.Time //
}

func (f *follower) run(ctx context.Context) error {
	nc, err := f.link.connected()
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if f.window == nil {
		if err := f.load(ctx, js); err != nil {
			return err
		}
	}
	c, err := js.Consumer(ctx, wire.StreamControl, f.consumer)
	if err != nil {
		return fmt.Errorf("open consumer %s: %w", f.consumer, err)
	}
	pull, err := c.Messages(jetstream.PullMaxMessages(pullBatch), jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(heartbeat),
		jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return fmt.Errorf("open consumer %s: %w", f.consumer, err)
	}
	defer pull.Stop()
	for {
		m, err := pull.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("next of consumer %s: %w", f.consumer, err)
		}
		f.one(ctx, m)
	}
}

// one judges one message. An acknowledgement that gets lost only brings it back.
func (f *follower) one(ctx context.Context, m jetstream.Msg) {
	l := f.link
	meta, err := m.Metadata()
	if err != nil {
		// It did not come from the stream, so somebody named our inbox; there is nothing to acknowledge.
		l.count.undecodable.Add(1)
		l.setAside(Message{Subject: m.Subject(), Data: m.Data(), Time: time.Now()}, "not from the stream")
		return
	}
	msg := Message{Subject: m.Subject(), Data: m.Data(), Time: meta.Timestamp, Delivered: int(meta.NumDelivered)}
	v := Dead("")
	if v.reason = recognise(&msg); v.reason != "" {
		l.count.undecodable.Add(1)
	} else {
		v = f.ask(ctx, msg)
	}
	if ctx.Err() != nil && v.what != done {
		f.again(m, v.delay) // cut short; says nothing of the message
		return
	}
	seq, stored := meta.Sequence.Stream, meta.Timestamp
	switch v.what {
	case done:
		l.failed("bus acknowledgement not sent", m.Ack(), "subject", msg.Subject)
		f.settled(ctx, seq, stored)
	case storeAway:
		f.window.Away()
		f.unsaved = true
		f.again(m, v.delay)
	case dead:
		f.letGo(ctx, m, msg, seq, stored, v.reason)
	case later, none:
		f.unsaved = true
		if f.window.Failed(seq, stored, l.now(), v.delay) {
			f.letGo(ctx, m, msg, seq, stored, fmt.Sprintf("kept failing for %s while the store answered: %s", Limit, v.reason))
			return
		}
		// What a crash loses of the account keeps a message longer, never less long.
		if time.Since(f.saved) > saveEvery {
			f.save(ctx)
		}
		f.again(m, v.delay)
	}
}

func (f *follower) ask(ctx context.Context, msg Message) (v Verdict) {
	ctx, cancel := context.WithTimeout(ctx, handleWithin)
	defer cancel()
	if reason := f.link.guard(msg, func() { v = f.handle(ctx, msg) }); reason != "" {
		return Dead(reason)
	}
	if v.what == none {
		v.reason = "the handler gave no verdict"
	}
	return v
}

func (f *follower) again(m jetstream.Msg, delay time.Duration) {
	f.link.failed("bus redelivery not asked for", m.NakWithDelay(max(delay, minAgain)), "subject", m.Subject())
}

// letGo sets a message aside and only then takes it out of the stream.
func (f *follower) letGo(ctx context.Context, m jetstream.Msg, msg Message, seq uint64, stored time.Time, reason string) {
	if err := f.link.bury(ctx, msg, reason); err != nil {
		f.link.failed("bus message kept", err, "subject", msg.Subject)
		f.again(m, buryAgain)
		return
	}
	f.link.count.letGo.Add(1)
	f.link.failed("bus acknowledgement not sent", m.Ack(), "subject", msg.Subject)
	f.settled(ctx, seq, stored)
}

func (f *follower) settled(ctx context.Context, seq uint64, stored time.Time) {
	if f.window.Settled(seq, stored) {
		f.unsaved = true
		f.save(ctx)
	}
}

func (f *follower) subject() string { return strings.Replace(wire.SubjectWindows, "*", f.consumer, 1) }

// load takes up the account of an earlier run. One that cannot be read begins anew: messages are only kept longer for it.
func (f *follower) load(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, wire.StreamWindows)
	if err != nil {
		return fmt.Errorf("read window of %s: %w", f.consumer, err)
	}
	f.window = &Window{}
	m, err := stream.GetLastMsgForSubject(ctx, f.subject())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		f.window = nil
		return fmt.Errorf("read window of %s: %w", f.consumer, err)
	}
	w, err := ParseWindow(m.Data)
	if err != nil {
		f.link.failed("bus window begun anew", err, "consumer", f.consumer)
		return nil
	}
	f.window = &w
	return nil
}

func (f *follower) save(ctx context.Context) {
	if !f.unsaved {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, saveWithin)
	defer cancel()
	data, err := f.window.Bytes()
	if err == nil {
		err = f.link.PublishStored(ctx, f.subject(), data)
	}
	f.saved, f.unsaved = time.Now(), err != nil
	f.link.failed("bus window not saved", err, "consumer", f.consumer)
}
