package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newStatus(g *global) *cobra.Command {
	var wait bool
	var timeout time.Duration
	c := &cobra.Command{Use: "status", Short: "What runs where, and whether it is what was approved", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkWait(c, wait, timeout); err != nil {
				return err
			}
			if wait {
				if err := g.wait(c, timeout, nil); err != nil {
					return err
				}
			}
			return newStatusAnswer(g, c)
		}}
	c.Flags().BoolVar(&wait, "wait", false, "wait until every node is current, clean and healthy; exit 1 when one has failed")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return c
}

func newStatusAnswer(g *global, c *cobra.Command) error {
	var s operators.Status
	if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
		return err
	}
	return g.show(c, s, func(w io.Writer) { printStatus(w, s) })
}

func printStatus(w io.Writer, s operators.Status) {
	row(w, "NODE", "CURRENT", "OUTCOME", "HEALTH", "SEEN", "NUMBER", "UNPUSHED", "INSTANCES")
	for _, n := range s.Nodes {
		seen := ago(n.LastSeen)
		if n.Lost {
			seen += " (lost)"
		}
		instances := ""
		for _, i := range n.Instances {
			if instances != "" {
				instances += " "
			}
			instances += fmt.Sprintf("%s=%s", i.Name, i.Health)
		}
		row(w, n.Name, yes(n.Current), n.Outcome+standing(n), n.Health, seen, n.Number, n.Unpushed, instances)
	}
	for _, n := range s.Nodes {
		if n.Held {
			until := "it is resumed"
			if !n.HeldUntil.IsZero() {
				until = n.HeldUntil.Local().Format(time.DateTime)
			}
			fmt.Fprintf(w, "\n%s: held until %s: it changes nothing\n", n.Name, until)
		}
		if n.Drained {
			fmt.Fprintf(w, "\n%s: drained until it is resumed: its modules do not run\n", n.Name)
		}
		for _, f := range n.Failures {
			fmt.Fprintf(w, "\n%s: %s %s at %s: %s\n", n.Name, f.ID, f.Status, f.Step, f.Error)
			for _, l := range f.Log {
				fmt.Fprintf(w, "    %s\n", l)
			}
		}
		for _, d := range n.Drift {
			fmt.Fprintf(w, "\n%s: %s had drifted: %s; %s\n", n.Name, d.ID, d.What, map[bool]string{true: "repaired", false: "not repaired"}[d.Repaired])
		}
		for _, i := range n.Instances {
			if i.Why != "" {
				fmt.Fprintf(w, "\n%s: %s is %s: %s\n", n.Name, i.Name, i.Health, i.Why)
				for _, l := range i.Log {
					fmt.Fprintf(w, "    %s\n", l)
				}
			}
		}
		for _, k := range n.Kept {
			fmt.Fprintf(w, "\n%s: data of %s is kept in %s: %s\n", n.Name, k.Instance, k.Path, keptText(k))
		}
		for _, x := range n.Warnings {
			fmt.Fprintf(w, "\n%s: %s: %s\n", n.Name, x.Severity, x.Text)
			if x.Remedy != "" {
				fmt.Fprintf(w, "    %s\n", x.Remedy)
			}
		}
	}
}

// printMachine says what a node's machine is.
func printMachine(w io.Writer, n operators.NodeStatus) {
	m := n.Machine
	for _, line := range [][2]string{{"node", string(n.ID) + ", " + n.Mode}, {"address", m.Address.String()}, {"machine", strings.Join([]string{m.Platform, m.Distribution, "init " + m.Init}, ", ")},
		{"containers", cmp.Or(m.Runtime, "none")}, {"agent", m.Version}} {
		fmt.Fprintf(w, "%s:\t%s\n", line[0], line[1])
	}
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		fmt.Fprintf(w, "label:\t%s=%s\n", name, m.Labels[name])
	}
	fmt.Fprintln(w)
}

// standing is what an operator wants of a node as a whole.
func standing(n operators.NodeStatus) string {
	switch {
	case n.Held && n.Drained:
		return " (held, drained)"
	case n.Held:
		return " (held)"
	case n.Drained:
		return " (drained)"
	}
	return ""
}

func newNode(g *global) *cobra.Command {
	c := &cobra.Command{Use: "node", Short: "The machines of the mesh"}
	c.AddCommand(
		newNodeRemove(g), newNodeReplace(g),
		&cobra.Command{Use: "list", Short: "List nodes", Args: noArgs, RunE: func(c *cobra.Command, _ []string) error {
			var s operators.Status
			if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
				return err
			}
			return g.show(c, s.Nodes, func(w io.Writer) {
				row(w, "NAME", "ID", "MODE", "SEEN", "CURRENT", "HEALTH")
				for _, n := range s.Nodes {
					row(w, n.Name, n.ID, n.Mode+standing(n), ago(n.LastSeen), yes(n.Current), n.Health)
				}
			})
		}},
		&cobra.Command{Use: "show NODE", Short: "Show one node", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames), RunE: func(c *cobra.Command, args []string) error {
			var s operators.Status
			if err := g.call(c, operators.StatusShow, struct{}{}, &s); err != nil {
				return err
			}
			for _, n := range s.Nodes {
				if string(n.Name) == args[0] {
					s.Nodes = []operators.NodeStatus{n}
					return g.show(c, n, func(w io.Writer) {
						printMachine(w, n)
						printStatus(w, s)
					})
				}
			}
			return appliance.Errorf(appliance.NotFound, "there is no node %s", appliance.Quote(args[0])).WithNext("mesh node list")
		}},
		newNodeHold(g), newNodeDrain(g), newNodeResume(g), newNodeConverge(g),
	)
	return c
}

func newOverlay(g *global) *cobra.Command {
	c := &cobra.Command{Use: "overlay", Short: "The network between the machines"}
	c.AddCommand(&cobra.Command{Use: "show", Short: "Show addresses, endpoints and handshakes", Args: noArgs, RunE: func(c *cobra.Command, _ []string) error {
		var o operators.Overlay
		if err := g.call(c, operators.OverlayShow, struct{}{}, &o); err != nil {
			return err
		}
		return g.show(c, o, func(w io.Writer) {
			row(w, "NODE", "ADDRESS", "HUB", "PATH", "HANDSHAKE", "ENDPOINT")
			for _, n := range o.Nodes {
				row(w, n.Name, n.Address, yes(n.Hub), n.Path, ago(n.Handshake), n.Endpoint)
			}
		})
	}})
	return c
}

func newAudit(g *global) *cobra.Command {
	var limit int
	c := &cobra.Command{Use: "audit", Short: "Who changed what", Args: noArgs, RunE: func(c *cobra.Command, _ []string) error {
		if limit < 1 {
			return usage(c, fmt.Sprintf("--limit %d shows nothing; 1 or more", limit))
		}
		var entries []operators.AuditEntry
		if err := g.call(c, operators.AuditList, operators.ListAudit{Limit: limit}, &entries); err != nil {
			return err
		}
		return g.show(c, entries, func(w io.Writer) {
			row(w, "WHEN", "WHO", "WHAT", "SUBJECT")
			for _, e := range entries {
				row(w, e.At.Local().Format(time.DateTime), e.Who, e.What, e.Subject)
			}
		})
	}}
	c.Flags().IntVar(&limit, "limit", 100, "how many, newest first; at most 1000")
	return c
}
