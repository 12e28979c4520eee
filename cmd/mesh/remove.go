package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

func newModuleRemove(g *global) *cobra.Command {
	var p pushFlags
	var force, sure bool
	c := &cobra.Command{Use: "remove MODULE", Short: "Have the mesh forget a module that is assigned nowhere", Args: exactly(1, "a module"), ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			ask := operators.RemoveModule{Module: appliance.ModuleName(args[0]), Force: force}
			var shown, done operators.RemovedModule
			if err := g.call(c, operators.ModuleRemove, operators.RemoveModule{Module: ask.Module, Show: true}, &shown); err != nil {
				return err
			}
			if force || len(shown.Broken) == 0 { // else the answer says what is in the way
				if err := confirm(c, sure, whatBreaks(shown)); err != nil {
					return err
				}
			}
			if err := g.call(c, operators.ModuleRemove, ask, &done); err != nil {
				return err
			}
			if p.push && len(done.Broken) > 0 {
				return push(g, c, operators.Scope{Nodes: brokenNodes(done)}, p.wait, p.timeout)
			}
			return g.show(c, done, func(w io.Writer) {
				fmt.Fprintf(w, "removed: module %s\n", done.Module)
				for _, b := range done.Broken {
					fmt.Fprintf(w, "recorded: %s leaves %s, its data stays; not pushed yet\n", b.Instance, b.Node)
				}
				if len(done.Broken) > 0 {
					words := scopeWords(operators.Scope{Nodes: brokenNodes(done)})
					fmt.Fprintf(w, "next: mesh plan%s\n      mesh push%s\n", words, words)
				}
			})
		}}
	c.Flags().BoolVar(&force, "force", false, "also unassign its instances, and those of others that need it")
	c.Flags().BoolVar(&sure, "yes", false, "ask nothing")
	p.add(c)
	return c
}

// whatBreaks says what goes with a module.
func whatBreaks(r operators.RemovedModule) string {
	lines := []string{fmt.Sprintf("Module %s and the settings chosen for it are forgotten.", r.Module)}
	for _, b := range r.Broken {
		why := "its instance"
		if b.Seat != "" {
			why = "it holds seat " + string(b.Seat)
		}
		lines = append(lines, fmt.Sprintf("%s leaves %s (%s); its data stays.", b.Instance, b.Node, why))
	}
	return strings.Join(lines, "\n")
}

func brokenNodes(r operators.RemovedModule) (nodes []appliance.NodeName) {
	seen := map[appliance.NodeName]bool{}
	for _, b := range r.Broken {
		if !seen[b.Node] {
			nodes = append(nodes, b.Node)
		}
		seen[b.Node] = true
	}
	return nodes
}

// printPrivileges says what modules may do on their nodes, and why (MOD-14).
func printPrivileges(w io.Writer, node appliance.NodeName, all []operators.Privilege) {
	for _, p := range all {
		who := "privileged"
		if p.Instance != "" {
			who = fmt.Sprintf("%s: %s is privileged", node, p.Instance)
		}
		fmt.Fprintf(w, "%s: %s: %s\n", who, p.What, p.Reason)
	}
}
