package bus

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Reply is a place to be answered: fresh, under the user's own prefix, and drawn from crypto/rand (BUS-14). Close it.
type Reply struct {
	Subject string
	link    *Link
	got     chan *nats.Msg
}

// maxWaiting bounds the replies kept for a Reply between two Waits, where nothing else is said.
const maxWaiting = 8

const noResponders = "503"

// NewReply begins to hear the reply before it returns.
func (l *Link) NewReply() *Reply { return l.NewReplies(maxWaiting) }

// NewReplies is for several replies, of which as many as waiting may come between two Waits.
func (l *Link) NewReplies(waiting int) *Reply {
	r := &Reply{Subject: wire.InboxPrefix(l.user) + ".r." + rand.Text(), link: l, got: make(chan *nats.Msg, waiting)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replies[r.Subject] = r
	return r
}

// Wait gives the next reply. Nobody listening where the request went is an error of kind Unavailable, at once.
func (r *Reply) Wait(ctx context.Context) ([]byte, error) {
	select {
	case m := <-r.got:
		if m.Header.Get("Status") == noResponders {
			return nil, appliance.Errorf(appliance.Unavailable, "nobody listens there now")
		}
		return m.Data, nil
	case <-ctx.Done():
		return nil, appliance.Errorf(appliance.Unavailable, "no reply: %w", ctx.Err()).
			WithHint("a denied subject looks the same; the log names denials")
	}
}

func (r *Reply) Close() {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	delete(r.link.replies, r.Subject)
}

// route hands a reply to whom it is for.
func (l *Link) route(m *nats.Msg) {
	l.mu.Lock()
	r := l.replies[m.Subject]
	l.mu.Unlock()
	if r == nil {
		l.count.lateReplies.Add(1)
		return
	}
	select {
	case r.got <- m:
	default:
		l.count.lateReplies.Add(1)
	}
}

// Request sends what make returns for a fresh reply subject, which make puts into the signed header, and waits for the answer. Where
// the subject leads into a stream it first waits until the stream has it.
func (l *Link) Request(ctx context.Context, subject string, make func(reply string) ([]byte, error)) ([]byte, error) {
	reply := l.NewReply()
	defer reply.Close()
	data, err := make(reply.Subject)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", subject, err)
	}
	if f, ok := followed(subject); ok && f.Consumer != "" {
		err = l.PublishStored(ctx, subject, data)
	} else {
		// The transport's reply field carries no answer; it lets the broker say that nobody listens.
		err = l.publish(&nats.Msg{Subject: subject, Reply: reply.Subject, Data: data})
	}
	if err != nil {
		return nil, err
	}
	answer, err := reply.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", subject, err)
	}
	return answer, nil
}

// Answer replies to user. An address that is not beneath the user's own inbox prefix is refused and counted (BUS-9).
func (l *Link) Answer(user, reply string, data []byte) error {
	if !wire.OwnsInbox(user, reply) {
		l.count.foreignReplies.Add(1)
		l.log.Warn("answer refused: not beneath the asker's own inbox", "asker", user, "reply", appliance.Quote(reply))
		return appliance.Errorf(appliance.Denied, "answer %s: %s is not beneath its own inbox", user, appliance.Quote(reply)).
			WithHint("a reply subject begins with " + wire.InboxPrefix(user) + ".")
	}
	return l.Publish(reply, data)
}
