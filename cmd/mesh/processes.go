package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/serve"
)

func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func newServe(g *global) *cobra.Command {
	return &cobra.Command{Use: "serve", Short: "The hub's process: broker, store, controller", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, err := g.install()
			if err != nil {
				return err
			}
			return serve.Run(c.Context(), i, logger())
		}}
}

func newSupervise() *cobra.Command {
	return &cobra.Command{Use: "supervise FOLDER", Short: "Keep one process running", Hidden: true, Args: exactly(1, "a folder"),
		RunE: func(c *cobra.Command, args []string) error {
			stayLean()
			return supervise.Run(c.Context(), args[0])
		}}
}

// stayLean gives back what starting this large binary took; a process that idles for months should cost little.
func stayLean() {
	debug.SetGCPercent(50)
	debug.FreeOSMemory()
}

func newAgent(g *global) *cobra.Command {
	return &cobra.Command{Use: "agent", Short: "The node's process", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, r, err := g.here("agent")
			if err != nil {
				return err
			}
			release, err := installation.Hold(filepath.Join(i.Node(), "agent.lock"), "mesh agent")
			if err != nil {
				return err
			}
			defer release()
			cfg, err := agentConfig(i, r)
			if err != nil {
				return err
			}
			return agent.Run(c.Context(), cfg)
		}}
}

// agentReserve is more than the agent's own files take while they are written anew.
const agentReserve = 4 << 20

// self is what this node is, and whom it trusts.
type self struct {
	agent.Believes
	trust     identity.Trust
	keys      identity.NodeKeys
	authority *x509.Certificate
	clock     func() time.Time
}

func readSelf(i installation.Installation) (s self, err error) {
	if s.trust, err = identity.ReadTrust(i.Node()); err != nil {
		return s, err
	}
	if s.keys, err = identity.LoadNode(i.NodeKeys()); err != nil {
		return s, err
	}
	s.Believes = agent.Believes{Mesh: s.trust.Mesh, Node: s.trust.Node, Signing: s.trust.Signing}
	s.clock = pki.Clock(func() time.Time { return s.LastSigned(i.Node()) })
	s.authority, err = pki.ParseAuthority(s.trust.Authority)
	return s, err
}

// connect opens the bus under this node's name.
func (s self) connect(ctx context.Context, log *slog.Logger, connected func()) (*bus.Link, error) {
	return bus.Connect(ctx, bus.Options{Endpoints: s.trust.Broker, TLS: pki.ClientTLS(s.authority, pki.BrokerName(s.trust.Mesh), nil, s.clock),
		User: wire.NodeUser(s.trust.Node), Key: s.keys.Bus, Logger: log, OnConnect: connected})
}

// agentConfig is what the agent of this node needs.
func agentConfig(i installation.Installation, r installation.Record) (agent.Config, error) {
	s, err := readSelf(i)
	if err != nil {
		return agent.Config{}, err
	}
	trust, keys, authority, clock := s.trust, s.keys, s.authority, s.clock
	m, err := machine(i)(trust.Mesh, trust.Name)
	if err != nil {
		return agent.Config{}, err
	}
	cfg := agent.Config{
		Believes: s.Believes, Identity: keys.Identity, Dir: i.Node(), Machine: m, LeastFree: r.LeastFree, Reserve: agentReserve, Log: logger(),
		Secrets: sync.OnceValue(keys.Secrets),
		Connect: func(ctx context.Context, connected func()) (*bus.Link, error) {
			return s.connect(ctx, logger(), connected)
		},
		Become: func(ctx context.Context, to wire.Replace) error {
			return become(i, to, func(path string) error {
				return downloads.Fetch(ctx, trust.Broker, pki.ClientTLS(authority, pki.DownloadsName(trust.Mesh), nil, clock), to, path)
			})
		},
	}
	if s, err := serve.ReadSettings(i); err == nil {
		cfg.Carried = s.Carried()
	} else if !errors.Is(err, os.ErrNotExist) {
		return cfg, err
	}
	return cfg, nil
}

// become turns this agent into another binary: fetched whole, the present one kept beside it, then executed in this process's place. It
// returns nil where this process is that binary already, whatever it says it understands: so nothing is fetched for ever.
func become(i installation.Installation, to wire.Replace, fetch func(path string) error) error {
	if self, err := downloads.DigestOf("/proc/self/exe"); err != nil || self == to.Agent.Digest {
		return err
	}
	next, kept := i.Binary()+".next", i.Previous()+".tmp"
	if err := fetch(next); err != nil {
		return err
	}
	if err := os.Remove(kept); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := os.Link(i.Binary(), kept); err != nil {
		return fmt.Errorf("keep the present binary: %w", err)
	}
	if err := os.Rename(kept, i.Previous()); err != nil {
		return err
	}
	if err := os.Rename(next, i.Binary()); err != nil {
		return err
	}
	if err := durable.SyncFolder(filepath.Dir(i.Binary())); err != nil {
		return err
	}
	slog.Info("becoming another binary", "digest", to.Agent.Digest)
	err := syscall.Exec(i.Binary(), []string{i.Binary(), "agent", "--state", i.Dir}, os.Environ())
	return errors.Join(fmt.Errorf("execute %s: %w", to.Agent.Digest.Short(), err), os.Rename(i.Previous(), i.Binary())) // what runs is what lies there
}
