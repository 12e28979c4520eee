package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/genesis"
	"github.com/novox/mesh/genesis/cluster"
	"github.com/novox/mesh/genesis/services"
)

func newStore(g *global) *cobra.Command {
	c := &cobra.Command{Use: "store", Short: "The hub's records"}
	c.AddCommand(newStoreUpgrade(g), newStoreWork(g))
	return c
}

func newStoreUpgrade(g *global) *cobra.Command {
	var o cluster.Options
	var yes bool
	c := &cobra.Command{Use: "upgrade", Short: "Move the hub's records to a newer PostgreSQL; the old cluster is kept", Args: noArgs,
		Long: `Move the hub's records to a newer PostgreSQL, on the hub, as root.

The hub's own process is stopped meanwhile; nodes and their modules go on. The records are dumped, loaded into a new cluster beside the
old one and compared; only then is the new one put in its place. The old one is kept. Killed at any point, the same command finishes.`,
		RunE: func(c *cobra.Command, _ []string) error {
			i, r, err := g.here("store upgrade")
			if err != nil {
				return err
			}
			if !r.Hub {
				return appliance.Errorf(appliance.Conflict, "upgrade the store: this machine is node %s of mesh %s", r.Name, r.MeshName).
					WithHint("the records are on the hub; the command is given there")
			}
			for _, dir := range []*string{&o.From, &o.To} {
				if *dir == "" {
					continue
				}
				if *dir, err = filepath.Abs(*dir); err != nil {
					return err
				}
			}
			return upgradeStore(c, g, i, r, o, yes)
		}}
	f := c.Flags()
	f.StringVar(&o.From, "from-bin", "", "folder with the programs of the PostgreSQL that made the cluster (default: found on this machine)")
	f.StringVar(&o.To, "to-bin", "", "folder with the programs of the PostgreSQL to go to (default: the newest on this machine)")
	f.BoolVar(&yes, "yes", false, "ask nothing")
	return c
}

func upgradeStore(c *cobra.Command, g *global, i installation.Installation, r installation.Record, o cluster.Options, yes bool) error {
	release, err := i.Lock("mesh store upgrade")
	if err != nil {
		return err
	}
	defer release()
	p, err := asHub(i, o).plan(c.Context())
	if err != nil {
		return err
	}
	if p.Stage != cluster.Done {
		if err := confirm(c, yes, fmt.Sprintf("The records of mesh %s move from PostgreSQL %d to PostgreSQL %d. The hub is stopped meanwhile; nodes and modules go on.\nThe old cluster, %s, stays in %s.",
			p.Mesh, p.From.Major, p.To.Major, mebibytes(p.Size), p.Kept)); err != nil {
			return err
		}
	}
	begun := time.Now()
	tell := g.stepPrinter(c.ErrOrStderr(), c.OutOrStdout())
	if err := atRest(c.Context(), i, r.Name, p.Stage != cluster.Done, tell, func(ctx context.Context) error {
		if err := asHub(i, o).move(ctx, tell); err != nil {
			return err
		}
		return cluster.Link(i)
	}); err != nil {
		return err
	}
	end := map[string]any{"step": "closing", "state": "done", "mesh": p.Mesh, "stage": p.Stage, "from": p.From.Major, "to": p.To.Major, "kept": p.Kept, "bytes": p.Size}
	return g.show(c, end, func(w io.Writer) {
		if p.Stage == cluster.Done {
			fmt.Fprintf(w, "The records of mesh %s are in a cluster of PostgreSQL %d, the newest here: there is nothing to upgrade.\n", p.Mesh, p.To.Major)
		} else {
			fmt.Fprintf(w, "\nThe records of mesh %s are in PostgreSQL %d after %.1f s.\n", p.Mesh, p.To.Major, time.Since(begun).Seconds())
		}
		if p.Kept != "" {
			fmt.Fprintf(w, "The cluster of PostgreSQL %d is kept, %s. When nobody needs it any more:\n\n  rm -r %s\n", p.From.Major, mebibytes(p.Size), p.Kept)
		}
	})
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

// atRest does work while the hub's own process is stopped, where it must be, and starts it again, also where the work fails. Agent,
// overlay and modules go on. A hub that somebody stopped before stays stopped.
func atRest(ctx context.Context, i installation.Installation, hub appliance.NodeName, stop bool, tell func(genesis.Event), work func(context.Context) error) error {
	up, err := services.For(i).Running(ctx)
	if err != nil {
		return err
	}
	if stop {
		if err := genesis.Take("stop the hub", tell, func() error { return stopCarried(ctx, i) }); err != nil {
			return err
		}
	}
	failed := work(ctx)
	if !up {
		return failed
	}
	err = genesis.Take("start the hub", tell, func() error { return startCarried(context.WithoutCancel(ctx), i) })
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return err
	}
	credential, err := operators.ReadCredential(i.Operator())
	if err != nil {
		return err
	}
	const wait = "wait until the hub is current"
	return genesis.Take(wait, tell, func() error {
		return settleHub(hub)(ctx, credential, func(text string) { tell(genesis.Event{Step: wait, State: genesis.Waiting, Text: text}) })
	})
}
