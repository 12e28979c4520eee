package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newNodeRemove(g *global) *cobra.Command {
	var yes bool
	c := &cobra.Command{Use: "remove NODE", Short: "Take a node out of the mesh, whether its machine is there or not", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := g.node(c, appliance.NodeName(args[0]))
			if err != nil {
				return err
			}
			if err := confirm(c, yes, whatRemoveDoes(n)); err != nil {
				return err
			}
			var done operators.RemovedNode
			if err := g.call(c, operators.NodeRemove, operators.RemoveNode{Node: n.Name}, &done); err != nil {
				return err
			}
			return g.show(c, done, func(w io.Writer) {
				fmt.Fprintf(w, "removed: node %s (%s); %d certificates are revoked\n", done.Node, done.ID, done.Revoked)
				fmt.Fprintf(w, "ran there: %s\n", listed(done.Instances))
				for _, secret := range done.Knows {
					fmt.Fprintf(w, "its machine goes on knowing: %s\n", secret)
				}
				fmt.Fprintf(w, "its machine stops its modules when it hears of it, within 30 days, and keeps their data\nnext: mesh leave   (there)\n")
			})
		}}
	c.Flags().BoolVar(&yes, "yes", false, "ask nothing")
	return c
}

// node is one node's status; one that is none is refused before anything is asked.
func (g *global) node(c *cobra.Command, name appliance.NodeName) (operators.NodeStatus, error) {
	var s operators.Status
	if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
		return operators.NodeStatus{}, err
	}
	i := slices.IndexFunc(s.Nodes, func(n operators.NodeStatus) bool { return n.Name == name })
	if i < 0 {
		return operators.NodeStatus{}, appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(string(name))).WithNext("mesh node list")
	}
	return s.Nodes[i], nil
}

// whatRemoveDoes says what a node is, before it is none.
func whatRemoveDoes(n operators.NodeStatus) string {
	var names []appliance.InstanceName
	for _, i := range n.Instances {
		names = append(names, i.Name)
	}
	text := fmt.Sprintf("Node %s, seen %s ago, will be none: its keys and certificates count no more, and its name is free.\nIt runs: %s.", n.Name, ago(n.LastSeen), listed(names))
	for _, k := range n.Kept {
		text += fmt.Sprintf("\nData of %s stay on its machine in %s.", k.Instance, k.Path)
	}
	return text
}

func listed(names []appliance.InstanceName) string {
	if len(names) == 0 {
		return "nothing"
	}
	words := make([]string, len(names))
	for i, n := range names {
		words[i] = string(n)
	}
	return strings.Join(words, ", ")
}

func newNodeReplace(g *global) *cobra.Command {
	var ask operators.ReplaceNode
	c := &cobra.Command{Use: "replace NODE", Short: "Print the line with which another machine takes a node's place", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if ask.TTL < time.Second { // zero would mean the default
				return usage(c, fmt.Sprintf("--ttl %s: one second to one year", ask.TTL))
			}
			ask.Node = appliance.NodeName(args[0])
			var made operators.CreatedToken
			if err := g.call(c, operators.NodeReplace, ask, &made); err != nil {
				return err
			}
			return g.show(c, made, func(w io.Writer) {
				fmt.Fprintf(w, "On the machine that takes the place of %s, as root (until %s):\n", ask.Node, made.Expires.Local().Format(time.DateTime))
				joinLines(w, made)
				fmt.Fprintf(w, "\nUntil then the present machine stays; then it is out, and stops its modules when it hears of it. Its data are not moved.\n")
			})
		}}
	c.Flags().DurationVar(&ask.TTL, "ttl", time.Hour, "how long the line is good")
	return c
}
