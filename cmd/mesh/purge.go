package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

func newModulePurge(g *global) *cobra.Command {
	var sure bool
	var timeout time.Duration
	c := &cobra.Command{Use: "purge INSTANCE@NODE", Short: "Remove the data that a node keeps of an instance which left it", Args: exactly(1, "an instance and its node"),
		ValidArgsFunction: g.complete(false, keptNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, true, timeout); err != nil {
				return err
			}
			name, node, err := splitAt(c, args[0])
			if err != nil {
				return err
			}
			if node == "" {
				return usage(c, fmt.Sprintf("%s wants INSTANCE@NODE, got %s", c.CommandPath(), appliance.Quote(args[0])))
			}
			ask := operators.PurgeData{Instance: appliance.InstanceName(name), Node: node}
			var s operators.Status
			if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
				return err
			}
			if data := s.KeptOf(ask); len(data) > 0 { // else the answer says why there is nothing to remove
				if err := confirm(c, sure, whatGoes(ask, data)); err != nil {
					return err
				}
			}
			var done operators.Purged
			if err := g.call(c, operators.ModulePurge, ask, &done); err != nil {
				return err
			}
			if err := g.waitUntil(c, timeout, ask.Settled); err != nil {
				return err
			}
			return g.show(c, done, func(w io.Writer) {
				for _, k := range done.Data {
					fmt.Fprintf(w, "removed: %s on %s\n", k.Path, node)
				}
			})
		}}
	c.Flags().BoolVar(&sure, "yes", false, "ask nothing")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait for the node")
	return c
}

func whatGoes(ask operators.PurgeData, data []wire.Kept) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Data of %s on %s that is removed for good:", ask.Instance, ask.Node)
	for _, k := range data {
		fmt.Fprintf(&b, "\n  %s: %s", k.Path, keptText(k))
	}
	return b.String()
}

// keptText says how much is kept, and since when.
func keptText(k wire.Kept) string {
	size := "of unknown size"
	if k.Bytes >= 0 {
		size = disk.Size(k.Bytes).String()
	}
	if k.Since.IsZero() {
		return size
	}
	return fmt.Sprintf("%s, kept for %s", size, ago(k.Since))
}

// keptNames are the instances of which nodes keep data.
func keptNames(ctx context.Context, g *global) (out []string) {
	for _, n := range ask[operators.Status](ctx, g, operators.StatusShow).Nodes {
		for _, k := range n.Kept {
			out = append(out, fmt.Sprintf("%s@%s", k.Instance, n.Name))
		}
	}
	return out
}
