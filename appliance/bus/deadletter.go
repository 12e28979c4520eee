package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance/wire"
)

const (
	headerSubject = "Mesh-Subject"
	headerReason  = "Mesh-Reason"
	headerTime    = "Mesh-Time"
	headerSize    = "Mesh-Size"

	maxReason   = 512
	headerRoom  = 4096 // of a message, for the headers above
	buryWithin  = 10 * time.Second
	deadPerSec  = 10 // messages heard from core that are set aside; further ones are counted
	deadAtOnce  = 50
	maxDeadRead = 1000
)

// DeadLetter is a message set aside.
type DeadLetter struct {
	Subject string
	Reason  string
	Time    time.Time // of its arrival
	Size    int       // of the whole body; Data may be cut
	Data    []byte
}

// bury stores a message in DEADLETTER, and says so.
func (l *Link) bury(ctx context.Context, m Message, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, buryWithin)
	defer cancel()
	l.log.Error("bus message set aside", "subject", m.Subject, "reason", reason, "bytes", len(m.Data), "delivered", m.Delivered)
	nc, err := l.connected()
	if err != nil {
		return fmt.Errorf("set aside a message of %s: %w", m.Subject, err)
	}
	dead := nats.NewMsg(wire.SubjectDeadletter)
	dead.Header.Set(headerSubject, m.Subject)
	dead.Header.Set(headerReason, reason[:min(len(reason), maxReason)])
	dead.Header.Set(headerTime, m.Time.UTC().Format(time.RFC3339Nano))
	dead.Header.Set(headerSize, strconv.Itoa(len(m.Data)))
	dead.Data = m.Data[:min(len(m.Data), int(nc.MaxPayload())-headerRoom)]
	if err := l.publishStored(ctx, dead); err != nil {
		return fmt.Errorf("set aside a message of %s: %w", m.Subject, err)
	}
	return nil
}

// setAside is for messages heard from core: nothing waits for it, and only the controller has where to put them. Least of all do the
// messages behind it wait, which the stream's acknowledgement stands in line with. What is under way is bounded by the rate.
func (l *Link) setAside(m Message, reason string) {
	if l.user != wire.ControllerUser {
		l.log.Error("bus message dropped", "subject", m.Subject, "reason", reason, "bytes", len(m.Data))
		return
	}
	if !l.dead.Allow() {
		return
	}
	go func() {
		if err := l.bury(context.Background(), m, reason); err != nil {
			l.failed("bus message lost", err, "subject", m.Subject)
		}
	}()
}

// DeadLetters are the newest n messages set aside, newest first.
func DeadLetters(ctx context.Context, l *Link, n int) ([]DeadLetter, error) {
	nc, err := l.connected()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", wire.StreamDeadletter, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", wire.StreamDeadletter, err)
	}
	stream, err := js.Stream(ctx, wire.StreamDeadletter)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", wire.StreamDeadletter, err)
	}
	var list []DeadLetter
	state := stream.CachedInfo().State
	for seq := state.LastSeq; state.Msgs > 0 && seq >= state.FirstSeq && len(list) < min(n, maxDeadRead); seq-- {
		m, err := stream.GetMsg(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", wire.StreamDeadletter, err)
		}
		d := DeadLetter{Subject: m.Header.Get(headerSubject), Reason: m.Header.Get(headerReason), Data: m.Data}
		d.Time, _ = time.Parse(time.RFC3339Nano, m.Header.Get(headerTime))
		d.Size, _ = strconv.Atoi(m.Header.Get(headerSize))
		list = append(list, d)
	}
	return list, nil
}
