package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance/wire"
)

const (
	maxPerSubject = 64 // messages of one sender waiting; further ones are refused to it and nobody else
	maxControl    = 2 << 30
	maxDead       = 10_000
	maxDeadBytes  = 32 << 20
	deadFor       = 30 * 24 * time.Hour
	maxProbe      = 1 << 20
	maxAckPending = 1000
	ackWithin     = time.Minute // longer than handling takes, and than the rest of one pull waits for its turn
)

// streams are the controller's own, and consumers below; no manifest gives or takes them (BUS-10).
func streams() []jetstream.StreamConfig {
	control := jetstream.StreamConfig{
		Name:                 wire.StreamControl,
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    maxPerSubject,
		MaxBytes:             maxControl,
		// Message ids are the sender's word and could suppress another's message: what is remembered of them is next to nothing.
		Duplicates: 100 * time.Millisecond,
	}
	// Exactly what a consumer takes out again: anything else would stay in a work queue for ever.
	for _, f := range wire.FollowedSubjects {
		if f.Consumer != "" {
			control.Subjects = append(control.Subjects, f.Subject)
		}
	}
	return []jetstream.StreamConfig{
		control,
		{
			Name: wire.StreamDeadletter, Subjects: []string{wire.SubjectDeadletter}, Storage: jetstream.FileStorage,
			Discard: jetstream.DiscardOld, MaxMsgs: maxDead, MaxBytes: maxDeadBytes, MaxAge: deadFor,
		},
		{
			Name: wire.StreamWindows, Subjects: []string{wire.SubjectWindows}, Storage: jetstream.FileStorage,
			Discard: jetstream.DiscardOld, MaxMsgsPerSubject: 1, MaxMsgs: 64,
		},
		{
			Name: wire.StreamProbe, Subjects: []string{wire.SubjectProbe}, Storage: jetstream.FileStorage,
			Discard: jetstream.DiscardOld, MaxMsgs: 1, MaxBytes: maxProbe,
		},
	}
}

func consumers() []jetstream.ConsumerConfig {
	var list []jetstream.ConsumerConfig
	for _, f := range wire.FollowedSubjects {
		if f.Consumer != "" {
			list = append(list, jetstream.ConsumerConfig{
				Durable:       f.Consumer,
				FilterSubject: f.Subject,
				DeliverPolicy: jetstream.DeliverAllPolicy,
				AckPolicy:     jetstream.AckExplicitPolicy,
				AckWait:       ackWithin,
				MaxDeliver:    -1,
				MaxAckPending: maxAckPending,
			})
		}
	}
	return list
}

// Raise makes the streams and their consumers what they should be: a consumer with another filter, in no list, or older than its
// stream is removed, and what is missing is made. What lies in CONTROL on a subject nobody follows is set aside. Only the controller
// may; it may do so again at any time.
func Raise(ctx context.Context, l *Link) error {
	nc, err := l.connected()
	if err != nil {
		return fmt.Errorf("raise streams: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("raise streams: %w", err)
	}
	for _, cfg := range streams() {
		if _, err := js.CreateOrUpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("raise stream %s: %w", cfg.Name, err)
		}
	}
	stream, err := js.Stream(ctx, wire.StreamControl)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", wire.StreamControl, err)
	}
	if err := reconcile(ctx, stream); err != nil {
		return err
	}
	return l.sweep(ctx, stream)
}

// reconcile removes before it makes: two consumers of a work queue may not overlap.
func reconcile(ctx context.Context, stream jetstream.Stream) error {
	wanted := map[string]jetstream.ConsumerConfig{}
	for _, cfg := range consumers() {
		wanted[cfg.Durable] = cfg
	}
	at := stream.CachedInfo()
	list := stream.ListConsumers(ctx)
	var remove []string
	for c := range list.Info() {
		cfg, ok := wanted[c.Name]
		// Ahead of the stream, or older: it belongs to another that had the name.
		stale := c.Delivered.Stream > at.State.LastSeq || c.Created.Before(at.Created)
		if !ok || stale || c.Config.FilterSubject != cfg.FilterSubject || len(c.Config.FilterSubjects) > 0 ||
			c.Config.AckPolicy != cfg.AckPolicy || c.Config.DeliverPolicy != cfg.DeliverPolicy || c.Config.DeliverSubject != "" {
			remove = append(remove, c.Name)
		}
	}
	if err := list.Err(); err != nil {
		return fmt.Errorf("list consumers of %s: %w", at.Config.Name, err)
	}
	for _, name := range remove {
		if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("remove consumer %s: %w", name, err)
		}
	}
	for _, cfg := range consumers() {
		if _, err := stream.CreateOrUpdateConsumer(ctx, cfg); err != nil {
			return fmt.Errorf("assert consumer %s: %w", cfg.Durable, err)
		}
	}
	return nil
}

// sweep sets aside what an older or newer controller's stream took in and no consumer takes out.
func (l *Link) sweep(ctx context.Context, stream jetstream.Stream) error {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", wire.StreamControl, err)
	}
	for subject := range info.State.Subjects {
		if f, ok := followed(subject); ok && f.Consumer != "" {
			continue
		}
		for {
			m, err := stream.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(subject))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return fmt.Errorf("sweep %s: %w", subject, err)
			}
			l.count.undecodable.Add(1)
			if err := l.bury(ctx, Message{Subject: m.Subject, Data: m.Data, Time: m.Time}, "nobody follows this subject"); err != nil {
				return err
			}
			if err := stream.DeleteMsg(ctx, m.Sequence); err != nil {
				return fmt.Errorf("sweep %s: %w", subject, err)
			}
		}
	}
	return nil
}

// Empty drops what CONTROL holds. Its consumers are removed first and asserted anew: purging beneath one leaves it with an account of
// messages that are gone.
func Empty(ctx context.Context, l *Link) error {
	nc, err := l.connected()
	if err != nil {
		return fmt.Errorf("empty stream: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("empty stream: %w", err)
	}
	stream, err := js.Stream(ctx, wire.StreamControl)
	if err != nil {
		return fmt.Errorf("empty stream %s: %w", wire.StreamControl, err)
	}
	for _, cfg := range consumers() {
		if err := stream.DeleteConsumer(ctx, cfg.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return fmt.Errorf("remove consumer %s: %w", cfg.Durable, err)
		}
	}
	if err := stream.Purge(ctx); err != nil {
		return fmt.Errorf("empty stream %s: %w", wire.StreamControl, err)
	}
	return Raise(ctx, l)
}

// Backlog is how far one consumer is behind.
type Backlog struct {
	Consumer string
	Waiting  uint64 // not handed out yet
	Open     int    // handed out and not settled
	Full     bool   // so many are open that no more are handed out
}

// Backlogs looks at the controller's consumers.
func Backlogs(ctx context.Context, l *Link) ([]Backlog, error) {
	nc, err := l.connected()
	if err != nil {
		return nil, fmt.Errorf("look at consumers: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("look at consumers: %w", err)
	}
	var list []Backlog
	for _, cfg := range consumers() {
		c, err := js.Consumer(ctx, wire.StreamControl, cfg.Durable)
		if err != nil {
			return nil, fmt.Errorf("look at consumer %s: %w", cfg.Durable, err)
		}
		info := c.CachedInfo()
		list = append(list, Backlog{cfg.Durable, info.NumPending, info.NumAckPending, info.NumAckPending >= cfg.MaxAckPending})
	}
	return list, nil
}
