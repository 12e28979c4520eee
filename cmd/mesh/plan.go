package main

import (
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

func scope(args []string, only string) operators.Scope {
	s := operators.Scope{Only: appliance.ModuleName(only)}
	for _, a := range args {
		s.Nodes = append(s.Nodes, appliance.NodeName(a))
	}
	return s
}

func nodeScope(node appliance.NodeName) operators.Scope {
	return operators.Scope{Nodes: []appliance.NodeName{node}}
}

func newPlan(g *global) *cobra.Command {
	var only string
	c := &cobra.Command{Use: "plan [NODE…]", Short: "Show what a push would change; exit 1 when it would change something", Args: cobra.ArbitraryArgs, ValidArgsFunction: g.complete(true, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			var plan operators.Plan
			if err := g.call(c, operators.PlanShow, scope(args, only), &plan); err != nil {
				return err
			}
			if err := g.show(c, plan, func(w io.Writer) { printPlan(w, plan) }); err != nil {
				return err
			}
			if len(plan.Nodes) > 0 {
				return errNo
			}
			return nil
		}}
	g.addOnly(c, &only)
	c.AddCommand(newPlanHistory(g))
	return c
}

func (g *global) addOnly(c *cobra.Command, only *string) {
	c.Flags().StringVar(only, "only", "", "only this module")
	_ = c.RegisterFlagCompletionFunc("only", g.complete(true, moduleNames))
}

func printPlan(w io.Writer, plan operators.Plan) {
	if len(plan.Nodes) == 0 {
		fmt.Fprintln(w, "nothing to push: what is recorded is approved")
		return
	}
	row(w, "NODE", "INSTANCE", "CHANGE", "RESOURCE", "DETAIL", "BY", "WHEN")
	for _, n := range plan.Nodes {
		for _, ch := range n.Changes {
			when := ""
			if !ch.At.IsZero() {
				when = ch.At.Local().Format(time.DateTime)
			}
			row(w, n.Node, ch.Instance, ch.What, ch.Resource, ch.Detail, ch.By, when)
		}
	}
	for _, n := range plan.Nodes {
		printPrivileges(w, n.Node, n.Privileged)
	}
	fmt.Fprintln(w, "next: mesh push")
}

func newPush(g *global) *cobra.Command {
	var only string
	var wait bool
	var timeout time.Duration
	c := &cobra.Command{Use: "push [NODE…]", Short: "Approve what is recorded and send it", ValidArgsFunction: g.complete(true, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, wait, timeout); err != nil {
				return err
			}
			return push(g, c, scope(args, only), wait, timeout)
		}}
	g.addOnly(c, &only)
	c.Flags().BoolVar(&wait, "wait", false, "wait until the nodes are current, clean and healthy; exit 1 when one has failed")
	c.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return c
}

func push(g *global, c *cobra.Command, s operators.Scope, wait bool, timeout time.Duration) error {
	var done operators.Pushed
	if err := g.call(c, operators.PlanPush, s, &done); err != nil {
		return err
	}
	if wait {
		if err := g.waitFor(c, timeout, done.Nodes); err != nil {
			return err
		}
	}
	return g.show(c, done, func(w io.Writer) { printPushed(w, done.Nodes) })
}

func printPushed(w io.Writer, nodes []operators.PushedNode) {
	row(w, "NODE", "NUMBER", "DIGEST", "SENT")
	for _, n := range nodes {
		sent := "unchanged"
		if n.Sent {
			sent = "yes"
		}
		row(w, n.Node, n.Number, n.Digest.Short(), sent)
	}
	sayHeld(w, nodes)
}

func portList(ports map[string]uint16) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		out = append(out, fmt.Sprintf("%s=%d", name, ports[name]))
	}
	return strings.Join(out, " ")
}
