package bus

import (
	"context"
	"time"
)

// Verdict is what a handler says of a message.
type Verdict struct {
	what   verdict
	delay  time.Duration
	reason string
}

type verdict int

const (
	done verdict = iota
	later
	storeAway
	dead
)

// Done: recorded, or settled without; the message is acknowledged.
func Done() Verdict { return Verdict{what: done} }

// Later: it failed while the store answers; again after the delay, and let go once that has gone on for the window.
func Later(delay time.Duration, reason string) Verdict { return Verdict{later, delay, reason} }

// StoreAway: the store does not answer; again after the delay, for as long as it takes.
func StoreAway(delay time.Duration) Verdict { return Verdict{what: storeAway, delay: delay} }

// Dead: it can never be handled; set aside with the reason.
func Dead(reason string) Verdict { return Verdict{what: dead, reason: reason} }

// Raise makes streams and consumers what they should be. Only the controller's link may.
func Raise(ctx context.Context, l *Link) error { return nil }

// Follow hands the consumer's messages to handle, one at a time, until the context ends.
func (l *Link) Follow(ctx context.Context, consumer string, handle func(context.Context, Message) Verdict) error {
	return nil
}
