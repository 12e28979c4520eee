package client

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// Session is this operator attached to an instance. Each gives what comes; Input, End and Resize go the other way.
type Session struct {
	client *Client
	name   string
	reply  *bus.Reply
	end    context.CancelFunc
	frames uint64 // heard

	sending sync.Mutex // one frame on its way; guards the following
	frame   uint64     // the last sent

	mu     sync.Mutex
	sent   uint64 // frames of input
	taken  uint64
	room   *sync.Cond
	closed bool
}

// openWithin is how long the node may take to say that the session is open.
const openWithin = 10 * time.Second

// Attach opens a session; ctx is its life.
func (c *Client) Attach(ctx context.Context, node appliance.NodeName, open wire.Opening) (*Session, error) {
	verb := operators.SessionLogs
	if len(open.Command) > 0 {
		verb = operators.SessionExec
	}
	ctx, end := context.WithCancel(ctx)
	s := &Session{client: c, name: rand.Text(), reply: c.link.NewReplies(2 * wire.MaxCredit), end: end}
	s.room = sync.NewCond(&s.mu)
	err := c.Call(ctx, verb, operators.OpenSession{Session: s.name, Node: node, Output: s.reply.Subject, Credit: wire.MaxCredit, Open: open}, nil)
	if err == nil {
		within, cancel := context.WithTimeout(ctx, openWithin)
		_, err = s.hear(within)
		cancel()
		if appliance.KindOf(err) == appliance.Unavailable {
			err = appliance.Errorf(appliance.Unavailable, "attach to %s on %s: the node does not answer", open.Instance, node).
				WithHint("it may have lost its connection just now, or run an older version").WithNext("mesh status")
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	go s.beat(ctx)
	return s, nil
}

// Close ends the session at both ends.
func (s *Session) Close() {
	s.end()
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = s.send(ctx, operators.SendSession{Close: true}) // over already, or the hub is away: then it ends by itself
	s.reply.Close()
}

func (s *Session) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.room.Broadcast()
}

// next gives the next output with data, or the last one.
func (s *Session) next(ctx context.Context) (wire.Output, error) {
	for {
		within, cancel := context.WithTimeout(ctx, wire.SessionQuiet)
		o, err := s.hear(within)
		cancel()
		if err != nil {
			s.stop()
			return o, err
		}
		s.mu.Lock()
		s.taken = max(s.taken, o.Taken)
		s.room.Broadcast()
		s.mu.Unlock()
		if o.End != nil {
			s.stop()
			return o, nil
		}
		if len(o.Data) > 0 {
			return o, nil
		}
	}
}

// Each hands every output with data to take, and grants more as they are dealt with: who is slow makes the program wait. It gives the
// code that the session ended with; an error of the node's comes as an error.
func (s *Session) Each(ctx context.Context, take func(wire.Output) error) (code int, err error) {
	for dealt := 0; ; {
		o, err := s.next(ctx)
		switch {
		case err != nil:
			return 0, err
		case o.End != nil && o.End.Error != nil:
			return 0, o.End.Error
		case o.End != nil:
			return o.End.Code, nil
		}
		if err := take(o); err != nil {
			return 0, err
		}
		if dealt++; dealt == wire.MaxCredit/4 {
			if err := s.send(ctx, operators.SendSession{Credit: dealt}); err != nil && appliance.KindOf(err) != appliance.NotFound { // its last words may be on their way
				return 0, err
			}
			dealt = 0
		}
	}
}

// hear verifies one frame.
func (s *Session) hear(ctx context.Context) (wire.Output, error) {
	data, err := s.reply.Wait(ctx)
	if err != nil {
		return wire.Output{}, appliance.Errorf(appliance.Unavailable, "attached: nothing is heard of the node any more: %w", err).WithNext("mesh status")
	}
	h, body, err := wire.Open(data, wire.KindOutput, s.client.credential.Signing)
	if err != nil {
		return wire.Output{}, err
	}
	if h.Mesh != s.client.credential.Mesh || h.To != string(s.client.credential.Operator) || h.Nonce != s.name {
		return wire.Output{}, appliance.Errorf(appliance.Denied, "attached: what came is of another session")
	}
	o, err := wire.ParseOutput(body)
	if err != nil {
		return o, err
	}
	if s.frames++; o.Sequence != s.frames || o.Session != s.name {
		return o, appliance.Errorf(appliance.Unavailable, "attached: output was lost on its way (frame %d after %d)", o.Sequence, s.frames-1).WithHint("begin anew")
	}
	return o, nil
}

func (s *Session) send(ctx context.Context, frame operators.SendSession) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.frame++
	frame.Session, frame.Sequence = s.name, s.frame
	return s.client.Call(ctx, operators.SessionSend, frame, nil)
}

// beat says that this end is there.
func (s *Session) beat(ctx context.Context) {
	tick := time.NewTicker(wire.SessionBeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if s.send(ctx, operators.SendSession{}) != nil {
				return // next notices
			}
		}
	}
}

// Input sends what p holds to the program, and waits while it does not read.
func (s *Session) Input(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		part := p[:min(len(p), wire.MaxFrame)]
		if err := s.input(ctx, operators.SendSession{Input: part}); err != nil {
			return err
		}
		p = p[len(part):]
	}
	return nil
}

// End says that there is no more input.
func (s *Session) End(ctx context.Context) error {
	return s.input(ctx, operators.SendSession{End: true})
}

func (s *Session) input(ctx context.Context, frame operators.SendSession) error {
	s.mu.Lock()
	for s.sent-s.taken >= wire.MaxInput && !s.closed {
		s.room.Wait()
	}
	closed := s.closed
	s.sent++
	s.mu.Unlock()
	if closed {
		return io.ErrClosedPipe
	}
	return s.send(ctx, frame)
}

// Resize says that the terminal has another size.
func (s *Session) Resize(ctx context.Context, size wire.TerminalSize) error {
	return s.send(ctx, operators.SendSession{Size: &size})
}
