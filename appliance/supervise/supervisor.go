package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

const (
	firstDelay  = 100 * time.Millisecond
	longest     = 30 * time.Second
	stableAfter = time.Minute
)

// supervisor runs one folder's process. The loop alone changes anything.
type supervisor struct {
	dir      string
	home     home
	spec     Spec
	log      *logFile
	child    *child
	retry    *time.Timer
	requests chan request
	over     chan struct{} // closed when the loop has ended

	mu    sync.Mutex // for status
	state *state
}

// Run is the supervisor: it starts the process of dir's spec, or takes it over, and keeps it as the spec says until somebody asks it
// to terminate. The end of ctx lets go: the process lives on.
func Run(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	s := &supervisor{dir: dir, retry: time.NewTimer(0), requests: make(chan request), over: make(chan struct{})}
	s.retry.Stop()
	if err := s.home.take(dir); err != nil {
		return err
	}
	defer s.home.leave()
	unix.Umask(0o022)
	keepFiles() // of who started us by hand
	s.state = readState(dir)
	if s.spec, err = readSpec(dir); err != nil {
		return err
	}
	if s.log, err = openLog(dir); err != nil {
		return err
	}
	defer s.log.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var keeping sync.WaitGroup
	keeping.Go(func() { s.log.keep(ctx) })
	defer keeping.Wait()
	defer cancel()

	s.begin()
	if err := s.answer(); err != nil {
		return err
	}
	s.loop(ctx)
	return nil
}

func (s *supervisor) loop(ctx context.Context) {
	defer close(s.over)
	look := time.NewTicker(lookHome)
	defer look.Stop()
	for {
		var gone chan struct{}
		if s.child != nil {
			gone = s.child.gone
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if !s.hold() {
				return
			}
		case <-gone:
			if !s.hold() {
				return
			}
			s.ended()
		case <-s.retry.C:
			if !s.hold() {
				return
			}
			s.start()
		case r := <-s.requests:
			err := s.handle(r.verb)
			r.reply <- answer{s.status(), appliance.AsError(err)}
			if r.verb == verbTerminate && err == nil {
				return
			}
		}
	}
}

// begin takes over what runs, or starts.
func (s *supervisor) begin() {
	s.child = takeOver(s.state.Child)
	s.record(func(st *state) { st.Supervisor = self() })
	switch {
	case s.child != nil:
		s.log.note("took over process %d", s.child.PID)
		if s.state.Stopped { // our predecessor was killed meanwhile
			s.stop()
		} else if s.state.MadeOf != s.spec.madeOf() {
			s.restart()
		}
	case s.state.Child != identity{}: // it ended while nobody looked
		endGroup(s.dir, s.state.Group, s.state.Child, nil) // or start says what is in the way
		s.after("exit not seen: no supervisor was there", false)
	case !s.state.Stopped && !s.state.Ended:
		s.start()
	}
}

func (s *supervisor) handle(verb string) error {
	switch verb {
	case verbApply:
		spec, err := readSpec(s.dir)
		if err != nil {
			return err
		}
		s.spec = spec
		switch same := s.state.MadeOf == spec.madeOf(); {
		case s.child != nil && same, s.state.Ended && same && spec.Restart != Always:
			return nil
		case s.child == nil && same && !s.state.Stopped && !s.state.Ended:
			return nil // in backoff
		}
		return s.restart()
	case verbRestart:
		return s.restart()
	case verbReload:
		return s.signal("HUP")
	case verbStop, verbTerminate:
		return s.stop()
	}
	if name, ok := strings.CutPrefix(verb, verbSignal); ok {
		return s.signal(name)
	}
	return appliance.Errorf(appliance.Invalid, "ask supervisor of %s: unknown verb %s", s.dir, appliance.Quote(verb))
}

func (s *supervisor) signal(name string) error {
	number, known := Signals[name]
	switch {
	case !known:
		return appliance.Errorf(appliance.Invalid, "signal process in %s: %s is none that is sent", s.dir, appliance.Quote(name))
	case s.child == nil:
		return appliance.Errorf(appliance.NotReady, "signal process in %s: it does not run", s.dir)
	}
	s.child.signal(number)
	return nil
}

func (s *supervisor) restart() error {
	if err := s.end(); err != nil {
		return err
	}
	s.record(func(st *state) {
		if st.Stopped, st.Ended, st.Failures = false, false, 0; st.MadeOf != s.spec.madeOf() {
			st.Restarts = nil // another process answers for itself
		}
	})
	s.start()
	return nil
}

// start starts the child; where that fails it is as if it had exited at once. Nothing may be left of an earlier one.
func (s *supervisor) start() {
	group := makeGroup(groupName(s.dir))
	err := endGroup(s.dir, group, s.state.Child, nil)
	if err == nil && group != "" { // a group that was ever killed as a whole kills, on some kernels, all that are started into it
		removeGroup(group)
		group = makeGroup(groupName(s.dir))
	}
	if err == nil && os.Geteuid() == 0 { // for programs that open /dev/stderr
		err = s.log.Chown(int(s.spec.UID), int(s.spec.GID))
	}
	if err == nil {
		s.child, err = startChild(s.dir, s.spec, group, s.log.File)
	}
	if err != nil {
		s.record(func(st *state) { st.MadeOf, st.Group = s.spec.madeOf(), group })
		s.log.note("start %s: %v", s.spec.Command[0], err)
		s.after(fmt.Sprintf("start: %v", err), false)
		return
	}
	s.record(func(st *state) {
		st.Child, st.MadeOf, st.Group, st.Since = s.child.identity, s.spec.madeOf(), group, time.Now()
		st.Stopped, st.Ended = false, false
	})
}

// ended deals with a child that exited by itself. What it left behind goes with it, before its pid is free for others.
func (s *supervisor) ended() {
	err := endGroup(s.dir, s.state.Group, s.child.identity, nil)
	text, good := s.child.reap()
	s.child = nil
	if err != nil {
		text += "; " + err.Error()
	}
	s.log.note("process ended: %s", text)
	s.after(text, good)
}

// after decides what follows an exit.
func (s *supervisor) after(exit string, good bool) {
	again := s.spec.Restart == Always || s.spec.Restart == OnFailure && !good
	now := time.Now()
	s.record(func(st *state) {
		if now.Sub(st.Since) >= stableAfter {
			st.Failures = 0
		}
		if again {
			s.retry.Reset(delay(st.Failures))
			st.Failures++
			st.restarted(now)
		}
		st.Child, st.LastExit, st.Since, st.Ended = identity{}, exit, now, !again
	})
}

func delay(failures int) time.Duration {
	return min(firstDelay<<min(failures, 16), longest)
}

func (s *supervisor) stop() error {
	s.record(func(st *state) { st.Stopped = true })
	return s.end()
}

// end asks the child to end, and ends it and all it started when its time is over.
func (s *supervisor) end() error {
	s.retry.Stop()
	exit, err := stopChild(s.dir, s.state.Group, s.spec.stopAfter(), s.child, s.state.Child)
	if err != nil {
		return err
	}
	s.record(func(st *state) {
		if s.child != nil {
			st.LastExit, st.Since = exit, time.Now()
		}
		st.Child = identity{}
	})
	s.child = nil
	return nil
}

// stopChild is used with the folder's lock held; c is nil where no child runs.
func stopChild(dir, group string, within time.Duration, c *child, leader identity) (exit string, err error) {
	var seen []identity
	if c != nil {
		seen = members(dir, group, c.identity)
		c.signal(unix.SIGTERM)
		select {
		case <-c.gone:
		case <-time.After(within):
			c.signal(unix.SIGKILL)
		}
	}
	if err := endGroup(dir, group, leader, seen); err != nil {
		return "", appliance.Errorf(appliance.NotReady, "stop process in %s: %w", dir, err)
	}
	if group != "" {
		removeGroup(group)
	}
	if c != nil {
		<-c.gone
		exit, _ = c.reap()
	}
	return exit, nil
}

// record changes the state on disk, then for all to see. Where the disk refuses, memory goes on and the next change tries again.
func (s *supervisor) record(change func(*state)) {
	next := *s.state
	change(&next)
	if err := next.write(s.dir); err != nil {
		s.log.note("%v", err)
	}
	s.mu.Lock()
	s.state = &next
	s.mu.Unlock()
}

func (s *supervisor) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.state.status(time.Now())
	status.Supervised = true
	return status
}
