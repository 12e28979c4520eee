// Package natsd runs nats-server inside this process: one TLS listener and an
// in-process pipe, two accounts, nkeys only, every acknowledged write on disk.
// Begin with Start; rights change through SetUsers and nothing else.
//
// What does not belong here: who may do what (the users file is composed
// elsewhere), streams, consumers and messages, and anything that connects as a
// client. Options are never reloaded: with authentication of our own a reload
// would disconnect everybody.
package natsd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// The two accounts. Nothing is imported or exported between them (BUS-2).
const (
	Control = "CONTROL"
	Modules = "MODULES"
)

const (
	maxConnections = 16 << 10
	ownFiles       = 1 << 10 // open files kept for streams, store and the rest of the process
	shares         = 16      // of all connections one user may have the sixteenth part
	maxSubs        = 1 << 10 // of one connection; a controller has some dozens
	maxConsumers   = 20_000  // per stream: one for each of 5000 nodes, with room
	maxMemoryStore = 64 << 20
	maxMaxPayload  = 8 << 20 // above it the server advises against
	tlsTimeout     = 10      // seconds; a whole mesh may reconnect at once
	authTimeout    = 15      // seconds; has to outlast the handshake
	readyWithin    = 30 * time.Second
)

// Config is what a broker needs to start.
type Config struct {
	Name     string // required: server name shown to clients
	Host     string // required with a listener: address to bind
	Port     int    // 0: no listener, in-process connections only; -1: any free port
	StoreDir string // required: folder of the streams, made with mode 0700
	Users    string // required: path of the last accepted users file; absent: nobody is admitted until SetUsers

	// TLS is required with a listener. Its GetCertificate is asked at every
	// handshake, so that a renewed certificate needs no reload.
	TLS *tls.Config

	MaxStore   int64        // bytes of all streams together; 0: 8 GiB
	MaxPayload int64        // bytes of one message; 0: 1 MiB
	Logger     *slog.Logger // nil: discard

	// Wrong is called when the server logs an error, maybe many times a second: a moment to ask for StoreErr. It must not
	// block. nil: nobody.
	Wrong func()
}

// Server is a running broker.
type Server struct {
	cfg   Config
	auth  *auth
	log   *logger
	files files

	set    sync.Mutex // one change of users, or one restart, at a time
	closed bool       // under set

	mu sync.Mutex
	ns *server.Server // replaced by Restart
}

// Start runs the broker and returns once clients can connect.
func Start(cfg Config) (*Server, error) {
	if _, err := options(cfg); err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: newLogger(cfg.Logger, cfg.Wrong), files: files{path: cfg.Users}}
	users, err := s.files.load()
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.log.log.Warn("no users file yet: nobody is admitted", "path", cfg.Users)
	case err != nil:
		// A damaged file must not keep the hub down, and admits nobody: the
		// records can compose it again, Restore can bring the previous one.
		s.log.fail(fmt.Errorf("users file %s admits nobody: %w", cfg.Users, err))
	}

	s.auth = &auth{users: users}
	if err := s.run(); err != nil {
		return nil, err
	}
	return s, nil
}

// run starts a server, in place of one that was shut down.
func (s *Server) run() error {
	opts, err := options(s.cfg)
	if err != nil {
		return err
	}
	opts.CustomClientAuthentication = s.auth
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("configure broker %q: %w", s.cfg.Name, err)
	}
	s.log.begin()
	ns.SetLoggerV2(s.log, false, false, false)
	s.auth.serve(ns, max(opts.MaxConn/shares, 1))
	s.mu.Lock()
	s.ns = ns
	s.mu.Unlock()
	ns.Start()
	if err := s.started(); err != nil {
		end(ns)
		return fmt.Errorf("start broker %q: %w", s.cfg.Name, err)
	}
	if addr, ok := ns.Addr().(*net.TCPAddr); ok {
		s.cfg.Port = addr.Port // a restart listens where clients look
	}
	return nil
}

// options are the server's, complete: nothing is left to a default that
// listens, forgets or is unbounded.
func options(cfg Config) (*server.Options, error) {
	if cfg.Name == "" || cfg.StoreDir == "" || cfg.Users == "" {
		return nil, errors.New("start broker: Name, StoreDir and Users are required")
	}
	if cfg.Port != 0 && (cfg.Host == "" || cfg.TLS == nil) {
		return nil, fmt.Errorf("start broker %q: a listener needs Host and TLS; use port 0 for none", cfg.Name)
	}
	if cfg.MaxPayload < 0 || cfg.MaxPayload > maxMaxPayload || cfg.MaxStore < 0 {
		return nil, fmt.Errorf("start broker %q: MaxPayload %d is not within 0 and %d, or MaxStore %d is negative", cfg.Name, cfg.MaxPayload, maxMaxPayload, cfg.MaxStore)
	}
	if err := os.MkdirAll(cfg.StoreDir, 0o700); err != nil {
		return nil, fmt.Errorf("make broker store: %w", err)
	}
	opts := &server.Options{}
	// Account limits can only be said in the server's configuration language.
	if err := opts.ProcessConfigString(fmt.Sprintf(
		"accounts { %s { jetstream: enabled }, %s { jetstream: enabled } }", Control, Modules)); err != nil {
		return nil, fmt.Errorf("configure broker accounts: %w", err)
	}
	opts.ServerName = cfg.Name
	opts.NoSigs = true
	most, err := connections()
	if err != nil {
		return nil, err
	}
	opts.MaxConn = most
	opts.MaxSubs = maxSubs
	opts.MaxPayload = int32(or(cfg.MaxPayload, 1<<20))
	opts.AlwaysEnableNonce = true
	opts.AuthTimeout = authTimeout

	opts.JetStream = true
	opts.DisableJetStreamBanner = true
	opts.StoreDir = cfg.StoreDir
	opts.SyncAlways = true
	opts.JetStreamMaxMemory = maxMemoryStore
	opts.JetStreamMaxStore = or(cfg.MaxStore, 8<<30)
	opts.JetStreamLimits.DefaultMaxConsumers = maxConsumers

	if cfg.Port == 0 {
		opts.DontListen = true
		return opts, nil
	}
	opts.Host, opts.Port = cfg.Host, cfg.Port
	opts.TLS = true
	opts.TLSConfig = cfg.TLS.Clone()
	opts.TLSConfig.MinVersion = tls.VersionTLS13
	opts.TLSTimeout = tlsTimeout
	return opts, nil
}

// connections is how many there may be: fewer than the process may open files,
// or a stranger who only connects would keep streams and store from theirs.
func connections() (int, error) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("look up how many files may be open: %w", err)
	}
	return within(files.Cur), nil
}

func within(files uint64) int {
	own := min(files/2, ownFiles)
	return int(max(min(files-own, maxConnections), 1))
}

func or(value, zero int64) int64 {
	if value == 0 {
		return zero
	}
	return value
}

// started looks at the running server, not at what was asked of it.
func (s *Server) started() error {
	if err := s.log.fatal(); err != nil {
		return err
	}
	ns := s.server()
	if !ns.ReadyForConnections(readyWithin) {
		if err := s.log.fatal(); err != nil {
			return err
		}
		return fmt.Errorf("not ready within %s", readyWithin)
	}
	js := ns.JetStreamConfig()
	if js == nil {
		return errors.New("streams are off (GEN-9): look for the store's error in the log")
	}
	if !js.SyncAlways {
		return errors.New("acknowledged writes would not be on disk (GEN-9): the broker runs without SyncAlways")
	}
	for _, name := range []string{Control, Modules} {
		acc, err := ns.LookupAccount(name)
		if err != nil {
			return fmt.Errorf("account %s: %w", name, err)
		}
		if !acc.JetStreamEnabled() {
			return fmt.Errorf("account %s has no streams", name)
		}
	}
	return nil
}

// Ready says whether clients can connect now, and else why not.
func (s *Server) Ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.log.fatal(); err != nil {
		return err
	}
	if !s.server().Running() {
		return errors.New("broker is stopped")
	}
	return nil
}

// Err is the last error that stands, nil while all is well.
func (s *Server) Err() error { return s.log.last() }

// Addr is the listener's address, nil without one.
func (s *Server) Addr() net.Addr { return s.server().Addr() }

// InProcess gives connections over a pipe. They authenticate like all others,
// only TLS is spared them. The pipe has no buffer: a refusal meets the client's
// own write and shows as a time-out or a closed pipe, so set a short one there.
func (s *Server) InProcess() interface{ InProcessConn() (net.Conn, error) } { return pipe{s} }

// pipe leads to the server of the moment, so that clients find their way back after a restart.
type pipe struct{ s *Server }

func (p pipe) InProcessConn() (net.Conn, error) { return p.s.server().InProcessConn() }

func (s *Server) server() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ns
}

// Restart closes the streams and opens them again; clients are cut and come back to the same address. After an error nothing
// runs, and it may be called again.
func (s *Server) Restart() error {
	s.set.Lock()
	defer s.set.Unlock()
	if s.closed {
		return errors.New("restart broker: it is closed")
	}
	end(s.server())
	return s.run()
}

// Close disconnects everybody, closes the streams and waits for it. Further
// calls do nothing.
func (s *Server) Close() {
	s.set.Lock()
	defer s.set.Unlock()
	s.closed = true
	end(s.server())
}

// end does nothing to a server that has ended.
func end(ns *server.Server) {
	ns.Shutdown()
	ns.WaitForShutdown()
}
