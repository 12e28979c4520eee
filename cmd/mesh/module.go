package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/bundles"
)

func newModule(g *global) *cobra.Command {
	c := &cobra.Command{Use: "module", Short: "Modules: register, assign, unassign, stop, start, restart, purge, remove, list, show"}
	c.AddCommand(newModuleRegister(g), newModuleAssign(g), newModuleUnassign(g),
		newModuleSwitch(g, "stop", "Have an instance not run, from now on", operators.ModuleStop), newModuleSwitch(g, "start", "Have a stopped instance run again", operators.ModuleStart),
		newModuleRestart(g), newModulePurge(g), newModuleRemove(g), newModuleList(g), newModuleShow(g),
		&cobra.Command{Use: "schema", Short: "Print the JSON Schema of module.json", Args: noArgs, RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(manifest.Schema())
			return err
		}})
	return c
}

func newModuleRegister(g *global) *cobra.Command {
	return &cobra.Command{Use: "register NAME|FOLDER", Short: "Make a module known: a bundle by its name, or a folder with a module.json",
		Long: "Make a module known: a bundle by its name, or a folder with a module.json. What its build makes of files in the folder is packed, pushed, and named in what is registered.",
		Args: exactly(1, "a bundle's name or a folder"), ValidArgsFunction: bundleOrFolder,
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readManifest(args[0])
			if err != nil {
				return err
			}
			m, err := manifest.Parse(data)
			if err != nil {
				return appliance.Errorf(appliance.KindOf(err), "register %s: its module.json breaks the schema:\n  %s", args[0], strings.ReplaceAll(err.Error(), "\n", "\n  ")).
					WithHint("names and rules of every field are in the schema").WithNext("mesh module schema")
			}
			if len(m.Files()) > 0 {
				if err := g.pushBuilt(c, args[0], m); err != nil {
					return err
				}
				data = m.Canonical()
			}
			var done operators.Registered
			if err := g.call(c, operators.ModuleRegister, operators.RegisterModule{Manifest: data}, &done); err != nil {
				return err
			}
			return g.show(c, done, func(w io.Writer) {
				word := "registered"
				if !done.Changed {
					word = "unchanged"
				}
				fmt.Fprintf(w, "%s: module %s, version %s\n", word, done.Module, done.Version.Short())
				printPrivileges(w, "", done.Privileged)
				if len(done.Nodes) > 0 {
					fmt.Fprintf(w, "next: mesh plan --only %[1]s\n      mesh push --only %[1]s\n", done.Module)
				} else {
					fmt.Fprintf(w, "next: mesh module assign %s NODE --push --wait\n", done.Module)
				}
			})
		}}
}

// maxManifest bounds a module.json, in bytes; the parser names the same bound.
const maxManifest = 256 << 10

// readManifest reads a bundle's manifest, or a folder's.
func readManifest(arg string) ([]byte, error) {
	if b, ok := bundles.Find(arg); ok {
		return b.Manifest, nil
	}
	if !strings.ContainsAny(arg, "/.") {
		if _, err := os.Stat(arg); err != nil {
			return nil, appliance.Errorf(appliance.NotFound, "there is no bundle %s, and no such folder", appliance.Quote(arg)).
				WithHint("bundles in this binary: " + strings.Join(bundles.Names(), ", "))
		}
	}
	f, err := os.Open(filepath.Join(arg, "module.json"))
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read module: %w", err).WithHint("a module is a folder with a module.json")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	return data, nil
}

// pushFlags are --push, --wait and --timeout of a recording command.
type pushFlags struct {
	push, wait bool
	timeout    time.Duration
}

func (p *pushFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&p.push, "push", false, "approve and send what is recorded for the nodes it concerns")
	c.Flags().BoolVar(&p.wait, "wait", false, "with --push: wait until the nodes are current, clean and healthy; exit 1 when one has failed")
	c.Flags().DurationVar(&p.timeout, "timeout", 2*time.Minute, "how long to wait")
}

// check comes before anything is recorded.
func (p pushFlags) check(c *cobra.Command) error {
	if p.wait && !p.push {
		return usage(c, "--wait goes with --push")
	}
	return checkWait(c, p.wait, p.timeout)
}

// after ends a recording command: with a push where asked for, else with the next command (DEC-2).
func (p pushFlags) after(g *global, c *cobra.Command, done operators.Recorded, s operators.Scope, what string) error {
	if p.push {
		err := push(g, c, s, p.wait, p.timeout)
		if len(done.Nodes) > 0 || appliance.KindOf(err) != appliance.NotFound { // else the module is assigned nowhere
			return err
		}
	}
	return g.show(c, done, func(w io.Writer) {
		if len(done.Nodes) == 0 {
			fmt.Fprintf(w, "%s; there is nothing to push\n", what)
			return
		}
		fmt.Fprintf(w, "%s; not pushed yet\nnext: mesh plan%s\n      mesh push%s\n", what, scopeWords(s), scopeWords(s))
	})
}

// scopeWords is a scope as arguments.
func scopeWords(s operators.Scope) (words string) {
	for _, n := range s.Nodes {
		words += " " + string(n)
	}
	if s.Only != "" {
		words += " --only " + string(s.Only)
	}
	return words
}

func newModuleAssign(g *global) *cobra.Command {
	var as string
	var p pushFlags
	c := &cobra.Command{Use: "assign MODULE NODE", Short: "Record that a module runs on a node", Args: exactly(2, "a module and a node"), ValidArgsFunction: g.complete(false, moduleNames, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			ask := operators.AssignModule{Module: appliance.ModuleName(args[0]), Node: appliance.NodeName(args[1]), As: appliance.InstanceName(as)}
			var done operators.Recorded
			if err := g.call(c, operators.ModuleAssign, ask, &done); err != nil {
				return err
			}
			return p.after(g, c, done, nodeScope(ask.Node), fmt.Sprintf("recorded: %s on %s", done.Instance, ask.Node))
		}}
	c.Flags().StringVar(&as, "as", "", "name of the instance (default: the module's)")
	_ = c.RegisterFlagCompletionFunc("as", cobra.NoFileCompletions)
	p.add(c)
	return c
}

func newModuleUnassign(g *global) *cobra.Command {
	var p pushFlags
	c := &cobra.Command{Use: "unassign INSTANCE NODE", Short: "Record that an instance leaves a node; its data stays", Args: exactly(2, "an instance and a node"), ValidArgsFunction: g.complete(false, instanceNames, nodeNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			ask := operators.UnassignModule{Instance: appliance.InstanceName(args[0]), Node: appliance.NodeName(args[1])}
			var done operators.Recorded
			if err := g.call(c, operators.ModuleUnassign, ask, &done); err != nil {
				return err
			}
			return p.after(g, c, done, nodeScope(ask.Node), fmt.Sprintf("recorded: %s leaves %s, its data stays", ask.Instance, ask.Node))
		}}
	p.add(c)
	return c
}

func newModuleList(g *global) *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List modules and where they run", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var modules []operators.Module
			if err := g.call(c, operators.ModuleList, struct{}{}, &modules); err != nil {
				return err
			}
			return g.show(c, modules, func(w io.Writer) {
				row(w, "MODULE", "VERSION", "INSTANCES", "PRIVILEGED", "DESCRIPTION")
				for _, m := range modules {
					where := make([]string, 0, len(m.Instances))
					for _, i := range m.Instances {
						where = append(where, fmt.Sprintf("%s@%s", i.Name, i.Node))
					}
					may := make([]string, 0, len(m.Privileged))
					for _, p := range m.Privileged {
						may = append(may, p.What)
					}
					row(w, m.Name, m.Version.Short(), strings.Join(where, " "), strings.Join(may, ", "), m.Description)
				}
			})
		}}
}

func newModuleShow(g *global) *cobra.Command {
	return &cobra.Command{Use: "show MODULE", Short: "Show one module and its instances", Args: exactly(1, "a module"), ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			var m operators.Module
			if err := g.call(c, operators.ModuleShow, operators.ShowModule{Module: appliance.ModuleName(args[0])}, &m); err != nil {
				return err
			}
			return g.show(c, m, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s\nversion %s\n", m.Name, m.Description, m.Version)
				printPrivileges(w, "", m.Privileged)
				fmt.Fprintln(w)
				row(w, "INSTANCE", "NODE", "HEALTH", "PORTS")
				for _, i := range m.Instances {
					row(w, i.Name, i.Node, i.Health, portList(i.Ports))
				}
			})
		}}
}
