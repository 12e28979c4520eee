package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

// waitFlags are --wait and --timeout of a command that takes effect at once.
type waitFlags struct {
	wait    bool
	timeout time.Duration
}

func (f *waitFlags) add(c *cobra.Command, what string) {
	c.Flags().BoolVar(&f.wait, "wait", false, what)
	c.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait")
}

// newModuleSwitch is stop or start.
func newModuleSwitch(g *global, use, short string, verb operators.Verb) *cobra.Command {
	var f waitFlags
	c := &cobra.Command{Use: use + " INSTANCE[@NODE]", Short: short, Args: exactly(1, "an instance"), ValidArgsFunction: g.complete(false, scopedNames),
		RunE: func(c *cobra.Command, args []string) error {
			ask, err := readInstance(c, args[0], f)
			if err != nil {
				return err
			}
			return g.switchNow(c, verb, ask, f, fmt.Sprintf("%s was %s already", args[0], map[operators.Verb]string{operators.ModuleStop: "stopped", operators.ModuleStart: "started"}[verb]))
		}}
	f.add(c, "wait until the nodes are current, clean and healthy; exit 1 when one has failed")
	return c
}

func readInstance(c *cobra.Command, arg string, f waitFlags) (ask operators.SwitchModule, err error) {
	if err := checkWait(c, f.wait, f.timeout); err != nil {
		return ask, err
	}
	name, node, err := splitAt(c, arg)
	return operators.SwitchModule{Instance: appliance.InstanceName(name), Node: node}, err
}

// switchNow asks for a change that takes effect at once, waits for it where that is wanted, and says what came of it.
func (g *global) switchNow(c *cobra.Command, verb operators.Verb, ask any, f waitFlags, nothing string) error {
	var done operators.Switched
	if err := g.call(c, verb, ask, &done); err != nil {
		return err
	}
	if f.wait {
		if err := g.waitFor(c, f.timeout, done.Nodes); err != nil {
			return err
		}
	}
	return g.show(c, done, func(w io.Writer) {
		for _, i := range done.Instances {
			fmt.Fprintf(w, "%s: %s@%s\n", map[bool]string{true: "stopped", false: "started"}[i.Stopped], i.Name, i.Node)
		}
		switch {
		case len(done.Nodes) == 0:
			fmt.Fprintln(w, "recorded; it is not pushed yet\nnext: mesh push")
		case len(done.Instances) == 0 || verb == operators.NodeResume:
			fmt.Fprintln(w, nothing)
		}
		sayHeld(w, done.Nodes)
	})
}

// waitFor waits for the nodes that change something; those that are held do not.
func (g *global) waitFor(c *cobra.Command, timeout time.Duration, pushed []operators.PushedNode) error {
	var nodes []appliance.NodeName
	for _, n := range pushed {
		if !n.Held {
			nodes = append(nodes, n.Node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return g.wait(c, timeout, nodes)
}

// sayHeld says which nodes take up what they were sent only later.
func sayHeld(w io.Writer, pushed []operators.PushedNode) {
	for _, n := range pushed {
		if n.Held {
			fmt.Fprintf(w, "%s is held: it takes this up when it is resumed\nnext: mesh node resume %s\n", n.Node, n.Node)
		}
	}
}

func newModuleRestart(g *global) *cobra.Command {
	var f waitFlags
	c := &cobra.Command{Use: "restart INSTANCE[@NODE]", Short: "Start anew what runs of an instance", Args: exactly(1, "an instance"), ValidArgsFunction: g.complete(false, scopedNames),
		RunE: func(c *cobra.Command, args []string) error {
			ask, err := readInstance(c, args[0], f)
			if err != nil {
				return err
			}
			var asked operators.Restarted
			if err := g.call(c, operators.ModuleRestart, ask, &asked); err != nil {
				return err
			}
			if f.wait {
				if err := g.waitUntil(c, f.timeout, asked.Settled); err != nil {
					return err
				}
			}
			return g.show(c, asked, func(w io.Writer) {
				for _, i := range asked.Instances {
					fmt.Fprintf(w, "%s: %s@%s\n", map[bool]string{true: "restarted", false: "asked"}[f.wait], i.Name, i.Node)
				}
				if !f.wait {
					fmt.Fprintln(w, "next: mesh status")
				}
			})
		}}
	f.add(c, "wait until it was restarted and is healthy; exit 1 when it is not")
	return c
}
