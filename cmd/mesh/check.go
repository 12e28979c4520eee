package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newCheck(g *global) *cobra.Command {
	return &cobra.Command{Use: "check [NODE…]", Short: "Have nodes look now for what was changed by hand, and put it right", ValidArgsFunction: g.complete(true, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			var ask operators.CheckNodes
			for _, a := range args {
				ask.Nodes = append(ask.Nodes, appliance.NodeName(a))
			}
			var done operators.Checked
			if err := g.call(c, operators.NodeCheck, ask, &done); err != nil {
				return err
			}
			return g.show(c, done, func(w io.Writer) {
				for _, n := range done.Nodes {
					fmt.Fprintf(w, "asked: %s\n", n)
				}
				fmt.Fprintln(w, "next: mesh status")
			})
		}}
}
