package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newNodeHold(g *global) *cobra.Command {
	var ask operators.HoldNode
	c := &cobra.Command{Use: "hold NODE", Short: "Have a node change nothing: it looks, reports, and hears who is revoked", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			ask.Node = appliance.NodeName(args[0])
			until := "until it is resumed"
			if c.Flags().Changed("for") {
				if ask.For < time.Second {
					return usage(c, fmt.Sprintf("--for %s is no time to hold; such as 30m or 2h", ask.For))
				}
				until = "for " + ask.For.String()
			}
			var done operators.Switched
			if err := g.call(c, operators.NodeHold, ask, &done); err != nil {
				return err
			}
			return g.show(c, done, func(w io.Writer) {
				fmt.Fprintf(w, "held: %s changes nothing %s\nnext: mesh node resume %s\n", ask.Node, until, ask.Node)
			})
		}}
	c.Flags().DurationVar(&ask.For, "for", 0, "how long (default: until it is resumed)")
	return c
}

func newNodeDrain(g *global) *cobra.Command {
	var f waitFlags
	c := &cobra.Command{Use: "drain NODE", Short: "Stop a node's modules, but for those the mesh stands on, until it is resumed", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, f.wait, f.timeout); err != nil {
				return err
			}
			return g.switchNow(c, operators.NodeDrain, operators.DrainNode{Node: appliance.NodeName(args[0])}, f, fmt.Sprintf("drained: nothing runs on %s that would stop", args[0]))
		}}
	f.add(c, "wait until they are stopped")
	return c
}

func newNodeResume(g *global) *cobra.Command {
	var f waitFlags
	c := &cobra.Command{Use: "resume NODE", Short: "End what hold and drain began", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, f.wait, f.timeout); err != nil {
				return err
			}
			return g.switchNow(c, operators.NodeResume, operators.ResumeNode{Node: appliance.NodeName(args[0])}, f, fmt.Sprintf("resumed: %s is neither held nor drained", args[0]))
		}}
	f.add(c, "wait until the node is current, clean and healthy; exit 1 when it has failed")
	return c
}

func newNodeConverge(g *global) *cobra.Command {
	var ask operators.ConvergeNode
	var f waitFlags
	var sure bool
	c := &cobra.Command{Use: "converge NODE", Short: "Have an adopted node made as declared where something was before the mesh, too", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, f.wait, f.timeout); err != nil {
				return err
			}
			ask.Node = appliance.NodeName(args[0])
			if ask.Force {
				var s operators.Status
				if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
					return err
				}
				if err := confirm(c, sure, whatIsCutOff(ask.Node, s)); err != nil {
					return err
				}
			}
			return g.switchNow(c, operators.NodeConverge, ask, f, fmt.Sprintf("converged: %s is made as declared", ask.Node))
		}}
	c.Flags().BoolVar(&ask.Force, "force", false, "overwrite what was there before")
	c.Flags().BoolVar(&sure, "yes", false, "with --force: ask nothing")
	f.add(c, "wait until the node is current, clean and healthy; exit 1 when it has failed")
	return c
}

// whatIsCutOff says what converging overwrites.
func whatIsCutOff(node appliance.NodeName, s operators.Status) string {
	text := fmt.Sprintf("%s is made as declared; what was there before is kept for when the module leaves.", node)
	for _, n := range s.Nodes {
		for _, o := range n.Found() {
			if n.Name == node {
				text += fmt.Sprintf("\n%s: %s", o.ID, o.Error)
			}
		}
	}
	return text
}
