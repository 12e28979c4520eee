package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newRollback(g *global) *cobra.Command {
	var ask operators.Rollback
	var f waitFlags
	var yes bool
	c := &cobra.Command{Use: "rollback NODE|MODULE", Short: "Approve an earlier plan again, with today's addresses, keys and certificates", Args: exactly(1, "a node or a module"),
		ValidArgsFunction: g.complete(false, func(ctx context.Context, g *global) []string {
			return append(nodeNames(ctx, g), moduleNames(ctx, g)...)
		}),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkWait(c, f.wait, f.timeout); err != nil {
				return err
			}
			if c.Flags().Changed("to") && ask.To == 0 {
				return usage(c, "--to 0 is no plan; `mesh plan history NODE` numbers them")
			}
			ask.Name = args[0]
			var shown, done operators.RolledBack
			if err := g.call(c, operators.PlanRollback, ask, &shown); err != nil {
				return err
			}
			if err := confirm(c, yes, wayBack(shown.Steps)); err != nil {
				return err
			}
			for _, s := range shown.Steps {
				ask.Steps = append(ask.Steps, operators.RollbackStep{Node: s.Node, From: s.From, To: s.To})
			}
			if err := g.call(c, operators.PlanRollback, ask, &done); err != nil {
				return err
			}
			if f.wait {
				if err := g.waitFor(c, f.timeout, done.Nodes); err != nil {
					return err
				}
			}
			return g.show(c, done, func(w io.Writer) {
				printPushed(w, done.Nodes)
				fmt.Fprintln(w, "What is recorded stays as it is; the next push would bring it back.\nnext: mesh plan")
			})
		}}
	c.Flags().Uint64Var(&ask.To, "to", 0, "number of the node's plan (default: the last before the present one with other instances)")
	_ = c.RegisterFlagCompletionFunc("to", cobra.NoFileCompletions)
	c.Flags().BoolVar(&yes, "yes", false, "ask nothing")
	f.add(c, "wait until the nodes are current, clean and healthy; exit 1 when one has failed")
	return c
}

// wayBack says what a rollback changes.
func wayBack(steps []operators.RollbackStep) string {
	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row(t, "NODE", "PLAN", "INSTANCE", "CHANGE", "RESOURCE", "DETAIL")
	for _, s := range steps {
		for _, ch := range s.Changes {
			row(t, s.Node, fmt.Sprintf("%d to %d", s.From, s.To), ch.Instance, ch.What, ch.Resource, ch.Detail)
		}
	}
	_ = t.Flush() // into memory
	return text.String()
}

func newPlanHistory(g *global) *cobra.Command {
	var limit int
	c := &cobra.Command{Use: "history NODE", Short: "What was approved for a node, the last first", Args: exactly(1, "a node's name"), ValidArgsFunction: g.complete(false, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if limit < 1 {
				return usage(c, fmt.Sprintf("--limit %d shows nothing; 1 or more", limit))
			}
			var history operators.PlanHistory
			if err := g.call(c, operators.PlanList, operators.ListPlans{Node: appliance.NodeName(args[0]), Limit: limit}, &history); err != nil {
				return err
			}
			return g.show(c, history, func(w io.Writer) {
				row(w, "PLAN", "WHEN", "BY", "INSTANCE", "CHANGE", "RESOURCE", "DETAIL")
				for _, p := range history.Plans {
					number := fmt.Sprint(p.Number)
					if p.Present {
						number += " (present)"
					}
					for i, ch := range p.Changes {
						if i == 0 {
							row(w, number, p.At.Local().Format(time.DateTime), p.By, ch.Instance, ch.What, ch.Resource, ch.Detail)
						} else {
							row(w, " ", " ", " ", ch.Instance, ch.What, ch.Resource, ch.Detail)
						}
					}
					if len(p.Changes) == 0 {
						row(w, number, p.At.Local().Format(time.DateTime), p.By, "", "", "", "")
					}
					if p.More > 0 {
						row(w, " ", " ", " ", fmt.Sprintf("and %d more", p.More), " ", " ", " ")
					}
				}
			})
		}}
	c.Flags().IntVar(&limit, "limit", 20, "how many; at most 100")
	return c
}
