package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/leave"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/services"
)

// claimWire makes a test build claim an older wire version; empty in every other.
var claimWire = ""

// clockOff makes a test build believe a clock that is off by a duration; empty in every other.
var clockOff = ""

// clock is the machine's.
func clock() time.Time {
	off, _ := time.ParseDuration(clockOff)
	return time.Now().Add(off)
}

// machine is the real machine, for an installation.
func machine(i installation.Installation) func(appliance.MeshID, appliance.NodeName) (host.Machine, error) {
	return func(mesh appliance.MeshID, node appliance.NodeName) (host.Machine, error) {
		m, err := linux.New(linux.Config{Installation: i, Mesh: mesh, Node: node, Version: version})
		if n, e := strconv.Atoi(claimWire); e == nil {
			states := m.Capabilities
			m.Capabilities = func() wire.Capabilities { c := states(); c.Wire = n; return c }
		}
		return m, err
	}
}

// here gives the installation of this machine, as root.
func (g *global) here(command string) (installation.Installation, installation.Record, error) {
	i, err := g.install()
	if err != nil {
		return i, installation.Record{}, err
	}
	if err := probe.Root(command); err != nil {
		return i, installation.Record{}, err
	}
	r, err := i.Read()
	return i, r, err
}

func newStart(g *global) *cobra.Command {
	return &cobra.Command{Use: "start", Short: "Start the mesh's processes on this machine", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, r, err := g.here("start")
			if err != nil {
				return err
			}
			if err := leave.Refuse(i, "start"); err != nil {
				return err
			}
			s := services.For(i)
			if err := s.Start(c.Context()); err != nil {
				return err
			}
			if err := startCarried(c.Context(), i); err != nil { // an agent that runs does not look at once
				return err
			}
			return g.show(c, r, func(w io.Writer) {
				fmt.Fprintf(w, "started: node %s of mesh %s (%s)\n", r.Name, r.MeshName, s.Kind())
			})
		}}
}

func newStop(g *global) *cobra.Command {
	return &cobra.Command{Use: "stop", Short: "Stop the mesh's processes on this machine; modules go on", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			i, r, err := g.here("stop")
			if err != nil {
				return err
			}
			if err := stopAll(c.Context(), i, services.For(i)); err != nil {
				return err
			}
			return g.show(c, r, func(w io.Writer) {
				fmt.Fprintf(w, "stopped: node %s of mesh %s; its modules go on, the overlay is down\n", r.Name, r.MeshName)
			})
		}}
}

// stopAll stops the agent, then on a hub the hub's own process.
func stopAll(ctx context.Context, i installation.Installation, s services.Services) error {
	if err := s.StopAgent(ctx); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	return stopCarried(ctx, i)
}

// stopCarried and startCarried stop and start the hub's own process, whatever the agent does; on other nodes there is none.
func stopCarried(ctx context.Context, i installation.Installation) error {
	return eachCarried(i, func(m host.Machine, rec agent.Record) error {
		if _, err := m.Processes.Undo(ctx, rec.Resource, rec.Undo); err != nil {
			return fmt.Errorf("stop %s: %w", rec.Resource.ID, err)
		}
		return nil
	})
}

func startCarried(ctx context.Context, i installation.Installation) error {
	return eachCarried(i, func(m host.Machine, rec agent.Record) error {
		if err := m.Processes.Do(ctx, rec.Resource); err != nil {
			return fmt.Errorf("start %s: %w", rec.Resource.ID, err)
		}
		return nil
	})
}

func eachCarried(i installation.Installation, f func(host.Machine, agent.Record) error) error {
	r, err := i.Read()
	if err != nil {
		return err
	}
	records, _, _, err := agent.Records(i.Node())
	if err != nil {
		return err
	}
	m, err := machine(i)(r.Mesh, r.Name)
	if err != nil {
		return err
	}
	for _, rec := range records {
		if rec.Resource.Kind == wire.Process && rec.Carried {
			if err := f(m, rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// stayInForeground keeps the command until it is told to end, then stops what it started.
func stayInForeground(ctx context.Context, i installation.Installation, s services.Services) error {
	fmt.Fprintln(os.Stderr, "in the foreground; end with Ctrl-C")
	<-ctx.Done()
	return stopAll(context.WithoutCancel(ctx), i, s)
}
