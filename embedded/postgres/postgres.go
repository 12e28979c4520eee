// Package postgres runs PostgreSQL as a supervised child: a private cluster on
// a unix socket, made if need be, durable or refused. Begin with Find or
// FindFor for the binaries, then Start.
//
// Dump and Load move a database between servers of two majors.
//
// What does not belong here: SQL, schemas, databases and connections, and the
// installation of the binaries.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	port        = "5432" // only names the socket
	maxSocket   = 107    // bytes of a unix socket's path
	stopWithin  = 60 * time.Second
	readyWithin = 10 * time.Minute // recovery after a crash may have much to do
	firstPause  = 100 * time.Millisecond
	longestWait = 30 * time.Second
)

// Config is what a server needs. All folders are absolute.
type Config struct {
	Bin       string            // required: folder with initdb and postgres, see Find
	Data      string            // required: data folder; its parent exists
	Socket    string            // required: socket folder, made with mode 0700
	Map       map[string]string // required: who may connect, system user to database role
	Superuser string            // required: role that a new cluster gets
	Log       io.Writer         // what the server says; nil: discard
	// Credential is required when the caller is root, whom PostgreSQL refuses:
	// the server and its files belong to that user.
	Credential *syscall.Credential
}

// Server is a supervised PostgreSQL.
type Server struct {
	cfg  Config
	log  *tail
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	ready   bool
	err     error         // last error
	end     error         // how it stopped
	changed chan struct{} // closed and replaced when one of the above changes
}

// name is what a user or role may be called here.
var name = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,62}$`)

func (c Config) validate() error {
	for what, path := range map[string]string{"Bin": c.Bin, "Data": c.Data, "Socket": c.Socket} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%s %q is not an absolute path", what, path)
		}
	}
	if n := len(filepath.Join(c.Socket, ".s.PGSQL."+port+".lock")); n > maxSocket {
		return fmt.Errorf("socket folder %s is too long by %d bytes: name a shorter one", c.Socket, n-maxSocket)
	}
	if len(c.Map) == 0 {
		return errors.New("nobody could connect: Map needs an entry")
	}
	for system, role := range c.Map {
		if !name.MatchString(system) || !name.MatchString(role) {
			return fmt.Errorf("map %q to %q: names are a-z, 0-9, _ and -, at most 63 (SAFE-3)", system, role)
		}
	}
	if !name.MatchString(c.Superuser) {
		return fmt.Errorf("superuser %q: names are a-z, 0-9, _ and -, at most 63 (SAFE-3)", c.Superuser)
	}
	if os.Geteuid() == 0 && c.Credential == nil {
		return errors.New("PostgreSQL refuses to run as root: give a Credential, or run as another user")
	}
	return nil
}

// Start makes the cluster if there is none, checks it, stops what is left of a
// former life, and returns when the server takes connections; ctx ends the
// attempt, not the server. From then on a server that dies is started again.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s := &Server{cfg: cfg, log: &tail{to: cfg.Log, max: 4 << 10}, done: make(chan struct{}), changed: make(chan struct{})}
	child, err := s.first(ctx)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	run, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.set(true, nil)
	go s.supervise(run, child)
	return s, nil
}

func (s *Server) first(ctx context.Context) (*child, error) {
	if err := s.folder(s.cfg.Socket); err != nil {
		return nil, err
	}
	if err := s.ensure(ctx); err != nil {
		return nil, err
	}
	if err := s.clear(ctx); err != nil {
		return nil, err
	}
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	return s.launch(ctx)
}

// child is one run of the server.
type child struct {
	pid    int
	signal func(os.Signal) error
	exited <-chan error
}

// launch starts a server and waits until it takes connections.
func (s *Server) launch(ctx context.Context) (*child, error) {
	if err := s.access(); err != nil {
		return nil, err
	}
	args := []string{"-D", s.cfg.Data, "-c", "unix_socket_directories=" + s.cfg.Socket}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	cmd := s.command(syscall.SIGINT, s.cfg.Bin, "postgres", args...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	exited, err := spawn(cmd)
	if err != nil {
		return nil, err
	}
	c := &child{cmd.Process.Pid, cmd.Process.Signal, exited}
	limit, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for !s.isReady(c.pid) {
		select {
		case err := <-exited:
			return nil, fmt.Errorf("server ended: %w: %s", ended(err), last(s.log.String()))
		case <-limit.Done():
			return nil, errors.Join(fmt.Errorf("server is not ready: %w: %s", limit.Err(), last(s.log.String())), c.end())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return c, nil
}

// isReady asks the lock file, since a ping to the socket may be answered by
// somebody else's server.
func (s *Server) isReady(pid int) bool {
	lines, err := lockLines(filepath.Join(s.cfg.Data, "postmaster.pid"))
	return err == nil && len(lines) >= 8 && lines[0] == fmt.Sprint(pid) && lines[7] == "ready"
}

// ended makes an error of an exit that should not have been.
func ended(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// end stops the child: fast, then at once, then by force.
func (c *child) end() error {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		_ = c.signal(sig)
		select {
		case err := <-c.exited:
			if err != nil {
				return fmt.Errorf("stop PostgreSQL: %w", err)
			}
			return nil
		case <-time.After(stopWithin):
		}
	}
	return fmt.Errorf("stop PostgreSQL: process %d does not end", c.pid)
}

// supervise keeps a server running until run ends.
func (s *Server) supervise(run context.Context, c *child) {
	defer close(s.done)
	wait := firstPause
	for {
		if c != nil {
			begin := time.Now()
			select {
			case <-run.Done():
				s.finish(c.end())
				return
			case err := <-c.exited:
				s.set(false, fmt.Errorf("server ended: %w: %s", ended(err), last(s.log.String())))
			}
			if time.Since(begin) > longestWait {
				wait = firstPause
			}
		}
		if pause(run, wait) != nil {
			s.finish(nil)
			return
		}
		wait = min(2*wait, longestWait)
		err := s.clear(run)
		if c = nil; err == nil {
			c, err = s.launch(run)
		}
		if err == nil {
			s.set(true, nil)
		} else if run.Err() == nil {
			s.set(false, err)
		}
	}
}

// set notes a change; a nil error leaves the last one.
func (s *Server) set(ready bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
	if err != nil {
		s.err = err
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) finish(err error) {
	s.set(false, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = err
}

// DSN connects as the superuser to the database postgres. It holds no secret:
// the socket's peer is who it says.
func (s *Server) DSN() string {
	host := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s.cfg.Socket)
	return fmt.Sprintf("host='%s' port=%s user=%s dbname=postgres sslmode=disable", host, port, s.cfg.Superuser)
}

// Ready waits until the server takes connections; if ctx ends before, the error
// says what keeps it.
func (s *Server) Ready(ctx context.Context) error {
	for {
		s.mu.Lock()
		ready, err, changed := s.ready, s.err, s.changed
		s.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("PostgreSQL is stopped")
		case <-changed:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Err is the last error, also after the server was started again.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Done is closed when the server has stopped for good.
func (s *Server) Done() <-chan struct{} { return s.done }

// Close stops the server, disconnecting its clients, and waits for it.
func (s *Server) Close() error {
	s.stop()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}
