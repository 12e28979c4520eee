package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// sessions are the operators attached to what runs here. They end with the agent's run: an open is for one run only, and each id is
// taken once in it, so that nothing is run a second time by playing a message again.
type sessions struct {
	agent *Agent
	pace  *rate.Limiter // of frames, below what the controller hears of one node

	mu   sync.Mutex
	open map[string]*session
	had  map[string]time.Time // ids, for as long as an open of theirs could be played again
}

const (
	framesPerSec = 80 // the controller hears 100 a second of a node, and 1000 at once
	framesAtOnce = 300
	maxSessions  = 32
)

func newSessions(a *Agent) *sessions {
	return &sessions{agent: a, pace: rate.NewLimiter(framesPerSec, framesAtOnce), open: map[string]*session{}, had: map[string]time.Time{}}
}

// hear takes one frame. It waits for nothing.
func (s *sessions) hear(ctx context.Context) func([]byte) {
	return func(data []byte) {
		if err := s.take(ctx, data); err != nil {
			s.agent.cfg.Log.Warn("session", "err", err)
		}
	}
}

func (s *sessions) take(ctx context.Context, data []byte) error {
	doc, err := s.agent.cfg.open(data, wire.KindAsk, string(s.agent.cfg.Node))
	if err != nil {
		return err
	}
	ask, err := wire.ParseAsk(doc.body)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ask.Open == nil {
		if at := s.open[ask.Session]; at != nil {
			return at.put(ask)
		}
		return nil // it is over here
	}
	now := time.Now()
	for id, at := range s.had {
		if now.Sub(at) > 2*wire.NoticeWindow {
			delete(s.had, id)
		}
	}
	_, again := s.had[ask.Session]
	switch {
	case ask.Open.Run != s.agent.run || again || now.Sub(doc.signed).Abs() > wire.NoticeWindow:
		return appliance.Errorf(appliance.Denied, "open session: it was meant for another run of this agent, for another time, or came before")
	case len(s.open) >= maxSessions:
		return appliance.Errorf(appliance.NotReady, "open session: %d are open already", maxSessions)
	}
	s.had[ask.Session] = now
	ctx, end := context.WithCancel(ctx)
	at := &session{all: s, id: ask.Session, end: end, asks: 1, heard: now, in: make(chan wire.Ask, wire.MaxInput+1),
		resized: make(chan wire.TerminalSize, 1), credit: make(chan struct{}, wire.MaxCredit)}
	s.open[at.id] = at
	at.grant(ask.Credit)
	go at.live(ctx, *ask.Open)
	return nil
}

func (s *sessions) ended(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
}

// session is one operator attached.
type session struct {
	all     *sessions
	id      string
	end     context.CancelFunc
	in      chan wire.Ask // frames with input, or its end
	resized chan wire.TerminalSize
	credit  chan struct{} // one for each frame that may be sent

	// Under sessions.mu.
	asks  uint64    // the last frame's
	heard time.Time // when it came

	mu      sync.Mutex
	outputs uint64
	taken   uint64
}

// put takes the next frame. A gap, or more input than was allowed, ends the session.
func (s *session) put(ask wire.Ask) error {
	s.asks++
	s.heard = time.Now()
	if ask.Sequence != s.asks {
		s.end()
		return appliance.Errorf(appliance.Conflict, "session: frame %d came after %d", ask.Sequence, s.asks-1)
	}
	s.grant(ask.Credit)
	if ask.Size != nil {
		select {
		case <-s.resized: // the newest counts
		default:
		}
		s.resized <- *ask.Size
	}
	if ask.Close {
		s.end()
	}
	if len(ask.Input) == 0 && !ask.End {
		return nil
	}
	select {
	case s.in <- ask:
		return nil
	default:
		s.end()
		return appliance.Errorf(appliance.Conflict, "session: more input than was taken")
	}
}

func (s *session) grant(n int) {
	for range n {
		select {
		case s.credit <- struct{}{}:
		default:
			return
		}
	}
}

// live is the session from its opening to its last frame.
func (s *session) live(ctx context.Context, open wire.Opening) {
	defer s.all.ended(s.id)
	defer s.end()
	stdin, feed := io.Pipe()
	defer stdin.Close() // what is still fed then goes nowhere
	go s.feed(ctx, feed)
	go s.beat(ctx)
	s.send(ctx, wire.Output{}) // it is open
	a := host.Attachment{Command: open.Command, Stdout: sink{ctx, s, false}, Stderr: sink{ctx, s, true}, Terminal: open.Terminal, Resize: s.resized, Term: open.Term}
	if open.Input {
		a.Stdin = stdin
	}
	code, err := s.all.carryOut(ctx, s, open, a)
	last := wire.End{Code: code}
	if err != nil {
		last.Error = appliance.AsError(err)
	}
	s.send(context.WithoutCancel(ctx), wire.Output{End: &last})
}

// feed gives the program its input, and says what it has taken.
func (s *session) feed(ctx context.Context, to *io.PipeWriter) {
	defer to.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case ask := <-s.in:
			if _, err := to.Write(ask.Input); err != nil {
				return // the program is over
			}
			s.mu.Lock()
			s.taken++
			s.mu.Unlock()
			if ask.End {
				return
			}
			s.send(ctx, wire.Output{})
		}
	}
}

// beat says that this end is there, and ends the session where the other has not said so for long.
func (s *session) beat(ctx context.Context) {
	tick := time.NewTicker(wire.SessionBeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.all.mu.Lock()
		gone := time.Since(s.heard) > wire.SessionQuiet
		s.all.mu.Unlock()
		if gone {
			s.end()
			return
		}
		s.send(ctx, wire.Output{})
	}
}

// send numbers and publishes a frame.
func (s *session) send(ctx context.Context, frame wire.Output) error {
	if err := s.all.pace.Wait(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outputs++
	frame.Version, frame.Session, frame.Sequence, frame.Taken = wire.Version, s.id, s.outputs, s.taken
	return s.all.agent.publish(wire.KindOutput, wire.OutputSubject(s.all.agent.cfg.Node), s.outputs, frame)
}

// data sends output once there is credit for it: who reads slowly makes the program wait.
func (s *session) data(ctx context.Context, frame wire.Output) error {
	select {
	case <-s.credit:
		return s.send(ctx, frame)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// sink is a program's output.
type sink struct {
	ctx    context.Context
	s      *session
	stderr bool
}

func (w sink) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), wire.MaxFrame)]
		if err := w.s.data(w.ctx, wire.Output{Stderr: w.stderr, Data: part}); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

// RefuseExec is the file in the node folder whose presence refuses every command of operators on this machine (OPS-2).
const RefuseExec = "refuse-exec"

// carryOut finds what is meant, and does it.
func (s *sessions) carryOut(ctx context.Context, at *session, open wire.Opening, a host.Attachment) (int, error) {
	a.Command = open.Command
	resources := s.agent.watch.running(open.Instance, open.Part)
	if len(resources) == 0 {
		return 0, s.nothingOf(open)
	}
	if open.Logs != nil {
		return 0, s.logs(ctx, at, resources, *open.Logs)
	}
	if _, err := os.Lstat(filepath.Join(s.agent.cfg.Dir, RefuseExec)); !errors.Is(err, os.ErrNotExist) {
		return 0, appliance.Errorf(appliance.Denied, "run a command beside %s: this machine refuses commands of operators", open.Instance).
			WithHint("whoever owns it has said so, by the file " + RefuseExec + " in its node folder")
	}
	s.agent.cfg.Log.Info("an operator runs a command", "instance", open.Instance, "command", open.Command)
	attacher, ok := s.agent.cfg.Machine.Runner(resources[0].Kind).(host.Attacher)
	if !ok {
		return 0, appliance.Errorf(appliance.Invalid, "attach to %s: not possible on this node", resources[0].ID)
	}
	return attacher.Exec(ctx, resources[0], a)
}

// nothingOf says that what is asked for does not run here, and what does.
func (s *sessions) nothingOf(open wire.Opening) error {
	var there []string
	for _, r := range s.agent.watch.running(open.Instance, "") {
		there = append(there, part(r))
	}
	if len(there) == 0 {
		return appliance.Errorf(appliance.NotFound, "attach to %s: it has no process or container of its own on this node", open.Instance).
			WithHint("the hub's parts write to the log of mesh-controller").WithNext("mesh status")
	}
	return appliance.Errorf(appliance.NotFound, "attach to %s/%s: there is none of that name", open.Instance, open.Part).WithHint("there is: " + strings.Join(there, ", "))
}

// logs sends the lines of each resource, together as they come where they are followed.
func (s *sessions) logs(ctx context.Context, at *session, resources []wire.Resource, logs wire.Logs) error {
	one := func(ctx context.Context, r wire.Resource) error {
		attacher, ok := s.agent.cfg.Machine.Runner(r.Kind).(host.Attacher)
		if !ok {
			return appliance.Errorf(appliance.Invalid, "read the log of %s: not possible on this node", r.ID)
		}
		together := &gathered{ctx: ctx, s: at, part: part(r)}
		err := attacher.Follow(ctx, r, logs.Lines, logs.Follow, func(line []byte) error { return together.add(s.agent.strike(line)) })
		return errors.Join(together.flush(), err)
	}
	if !logs.Follow {
		for _, r := range resources {
			if err := one(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	failed := make(chan error, len(resources))
	for _, r := range resources {
		go func() { failed <- one(ctx, r) }()
	}
	var all []error
	for range resources {
		if err := <-failed; err != nil && ctx.Err() == nil {
			all = append(all, err)
			end()
		}
	}
	return errors.Join(all...)
}

// gathered puts whole lines into frames: those that are there at once go together.
type gathered struct {
	ctx  context.Context
	s    *session
	part string

	mu    sync.Mutex
	data  []byte
	timer *time.Timer
	err   error
}

const (
	maxLine = wire.MaxFrame - 1
	gather  = 20 * time.Millisecond
)

func (l *gathered) add(line []byte) error {
	line = append(line[:min(len(line), maxLine):min(len(line), maxLine)], '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.data)+len(line) > wire.MaxFrame {
		l.flushed()
	}
	l.data = append(l.data, line...)
	if l.timer == nil {
		l.timer = time.AfterFunc(gather, func() { l.flush() })
	}
	return l.err
}

func (l *gathered) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushed()
	return l.err
}

func (l *gathered) flushed() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if len(l.data) > 0 && l.err == nil {
		l.err = l.s.data(l.ctx, wire.Output{Part: l.part, Data: l.data})
	}
	l.data = nil
}
