package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/leave"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/services"
)

// leaveFlags are what leave and uninstall have in common.
type leaveFlags struct{ purge, yes bool }

func (f *leaveFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.purge, "purge", false, "also remove data, for good")
	c.Flags().BoolVar(&f.yes, "yes", false, "ask nothing")
}

func newLeave(g *global) *cobra.Command {
	var f leaveFlags
	c := &cobra.Command{Use: "leave", Short: "Take this machine out of its mesh, and undo everything that was made on it", Args: noArgs,
		Long: `Take this machine out of its mesh, and undo everything that was made on it. What will go is shown before it is asked for. Data stay, with
the folders and users they need, unless --purge removes them. Killed in between, the same command goes on; where the hub is not reached it
goes on too, and names what to do on the hub.`,
		RunE: func(c *cobra.Command, _ []string) error {
			i, mark, err := g.leaver("leave")
			if err != nil {
				return g.nothingLeft(c, err)
			}
			if mark.Hub {
				return appliance.Errorf(appliance.Conflict, "leave: this machine is the hub of mesh %s, and the mesh ends with it", mark.MeshName).
					WithHint("taking the hub away has a command of its own").WithNext("mesh uninstall")
			}
			return f.run(g, c, i, mark)
		}}
	f.add(c)
	return c
}

func newUninstall(g *global) *cobra.Command {
	var f leaveFlags
	c := &cobra.Command{Use: "uninstall", Short: "Take the mesh off this machine: on the hub with everything genesis raised, elsewhere as leave", Args: noArgs,
		Long: `Take the mesh off this machine: on the hub with everything genesis raised, elsewhere as leave. What will go is shown before it is asked
for. Data, the keys of the mesh and its records stay, so that genesis of the same name takes them up, unless --purge removes them. Nodes
that are still in the mesh go on as they are: have them leave first.`,
		RunE: func(c *cobra.Command, _ []string) error {
			i, mark, err := g.leaver("uninstall")
			if err != nil {
				return g.nothingLeft(c, err)
			}
			return f.run(g, c, i, mark)
		}}
	f.add(c)
	return c
}

// leaver finds what there is to leave, as root.
func (g *global) leaver(command string) (i installation.Installation, mark leave.Mark, err error) {
	if i, err = g.install(); err != nil {
		return i, mark, err
	}
	if err := probe.Root(command); err != nil {
		return i, mark, err
	}
	mark, err = leave.Find(i)
	return i, mark, err
}

// nothingLeft ends a command well that finds nothing to do.
func (g *global) nothingLeft(c *cobra.Command, err error) error {
	if appliance.KindOf(err) != appliance.NotFound {
		return err
	}
	return g.show(c, leave.Result{Kept: []host.Left{}}, func(w io.Writer) { fmt.Fprintln(w, "This machine is in no mesh; there is nothing to undo.") })
}

func (f leaveFlags) run(g *global, c *cobra.Command, i installation.Installation, mark leave.Mark) error {
	if err := f.confirm(c, i, mark); err != nil {
		return err
	}
	o := leave.Options{Install: i, Purge: f.purge}
	if !mark.Hub && !mark.Left {
		o.Tell = func(ctx context.Context) error { return sayLeaving(ctx, i) }
	}
	begun := time.Now()
	done, err := leave.Run(c.Context(), o, mark, machine(i), services.For(i), func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) })
	if err != nil {
		return err
	}
	return g.show(c, done, func(w io.Writer) {
		fmt.Fprintf(w, "left: this machine is node %s of mesh %s no more, after %.1f s\n", mark.Name, mark.MeshName, time.Since(begun).Seconds())
		if done.Untold != "" {
			fmt.Fprintf(w, "the mesh could not be told, and still counts it: %s\nnext: mesh node remove %s   (on the hub)\n", done.Untold, mark.Name)
		}
		for _, k := range done.Kept {
			fmt.Fprintf(w, "kept: %s: %s\n", k.What, k.Why)
		}
		if len(done.Kept) > 0 && !f.purge {
			fmt.Fprintf(w, "%s --purge removes data for good, now or later\n", c.CommandPath())
		}
	})
}

// confirm shows what will go. Where other nodes would be left without their hub, the mesh's name has to be given.
func (f leaveFlags) confirm(c *cobra.Command, i installation.Installation, mark leave.Mark) error {
	what := fmt.Sprintf("This machine is node %s of mesh %s (%s), and will be none.", mark.Name, mark.MeshName, i.Dir)
	if mark.Left {
		what = fmt.Sprintf("This machine was node %s of mesh %s (%s); what was kept is still here.", mark.Name, mark.MeshName, i.Dir)
	}
	records, _, _, err := agent.Records(i.Node())
	if err != nil {
		return err
	}
	isData := func(r wire.Resource) bool {
		return r.Kind == wire.Directory && strings.Contains(string(r.Spec), `"class":"data"`)
	}
	keeps := map[appliance.InstanceName]bool{}
	for _, rec := range records {
		keeps[rec.Resource.Instance] = keeps[rec.Resource.Instance] || !f.purge && isData(rec.Resource)
	}
	var goes, data []string
	for _, rec := range slices.Backward(records) {
		switch r := rec.Resource; {
		case isData(r):
			data = append(data, r.ID)
		case keeps[r.Instance] && (r.Kind == wire.Directory || r.Kind == wire.User): // what data lie in, and whose they are
		default:
			goes = append(goes, r.ID)
		}
	}
	if len(goes) > 0 {
		what += "\nUndone: " + strings.Join(goes, ", ")
	}
	switch {
	case f.purge && mark.Hub:
		what += "\nRemoved for good: the keys and the records of the mesh, and all data: " + strings.Join(data, ", ")
	case f.purge && len(data) > 0:
		what += "\nRemoved for good: the data of " + strings.Join(data, ", ")
	case len(data) > 0:
		what += "\nKept, with the folders and users they need: the data of " + strings.Join(data, ", ")
	}
	others := members(i, mark)
	if !mark.Hub || len(others) == 0 {
		return confirm(c, f.yes, what)
	}
	what += fmt.Sprintf("\nThis is the hub. Without it these nodes are on their own, and go on as they are: %s.\nTo have them end well, give `mesh leave` on each first.", strings.Join(others, ", "))
	return confirmBy(c, f.yes, what, "Give the name of the mesh to go on:", mark.MeshName)
}

// members are the other nodes by the last membership this machine has heard; none where it has none.
func members(i installation.Installation, mark leave.Mark) (names []string) {
	s, err := readSelf(i)
	if err != nil {
		return nil
	}
	for _, n := range s.Members(i.Node()) {
		if n.ID != mark.Node {
			names = append(names, string(n.Name))
		}
	}
	return names
}

// sayLeaving tells the mesh, under this node's own name. A mesh that has removed the node already denies it everything, and knows.
func sayLeaving(ctx context.Context, i installation.Installation) error {
	s, err := readSelf(i)
	if err != nil {
		return err
	}
	if s, err = s.reach(ctx); err != nil {
		return err
	}
	connected := make(chan struct{}, 1)
	link, err := s.connect(ctx, slog.New(slog.DiscardHandler), func() {
		select {
		case connected <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return err
	}
	defer link.Close()
	select {
	case <-connected:
	case <-ctx.Done():
		return appliance.Errorf(appliance.Unavailable, "reach the hub at %s: %s", strings.Join(s.trust.Broker, ", "), link.Status().LastError)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := make(chan error, 1)
	go func() { said <- agent.SayLeaving(ctx, s.Believes, s.keys.Identity, i.Node(), link.PublishStored) }()
	for {
		select {
		case err := <-said:
			return err
		case <-time.After(50 * time.Millisecond):
			if link.Status().Denied > 0 {
				return nil
			}
		}
	}
}

// reach keeps the endpoints at which somebody is there now: one that is not would take all the time there is.
func (s self) reach(ctx context.Context) (self, error) {
	var there []string
	var failed []error
	for _, e := range s.trust.Broker {
		hostPort, err := bus.Endpoint(e)
		if err != nil {
			return s, err
		}
		conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", hostPort)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		conn.Close()
		there = append(there, e)
	}
	if s.trust.Broker = there; len(there) == 0 {
		return s, appliance.Errorf(appliance.Unavailable, "reach the hub: %w", errors.Join(failed...))
	}
	return s, nil
}
