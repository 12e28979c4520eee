package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/resolve"
)

func newSetting(g *global) *cobra.Command {
	c := &cobra.Command{Use: "setting", Short: "Values that modules leave to their operators"}
	c.AddCommand(newSettingSet(g), newSettingUnset(g), newSettingList(g))
	return c
}

// splitAt takes NAME[@NODE] apart.
func splitAt(c *cobra.Command, arg string) (name string, node appliance.NodeName, err error) {
	name, at, is := strings.Cut(arg, "@")
	if name == "" || is && at == "" {
		return "", "", usage(c, fmt.Sprintf("%s wants NAME or NAME@NODE, got %s", c.CommandPath(), appliance.Quote(arg)))
	}
	return name, appliance.NodeName(at), nil
}

// settingScope is what a push of a changed setting is about: that module, on the node or everywhere.
func settingScope(module appliance.ModuleName, node appliance.NodeName) operators.Scope {
	s := operators.Scope{Only: module}
	if node != "" {
		s.Nodes = []appliance.NodeName{node}
	}
	return s
}

func newSettingSet(g *global) *cobra.Command {
	var p pushFlags
	c := &cobra.Command{Use: "set MODULE[@NODE] NAME VALUE|-", Short: "Choose a value for a module, everywhere or on one node", Args: exactly(3, "a module, a setting's name and a value"),
		Long:              "Choose a value for a module, everywhere or on one node. With - the value is read from standard input; a newline at its very end does not count.",
		ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			module, node, err := splitAt(c, args[0])
			if err != nil {
				return err
			}
			ask := operators.SetSetting{Module: appliance.ModuleName(module), Node: node, Name: args[1], Value: args[2]}
			if ask.Value == "-" {
				if ask.Value, err = readValue(c.InOrStdin()); err != nil {
					return err
				}
			}
			var done operators.Recorded
			if err := g.call(c, operators.SettingSet, ask, &done); err != nil {
				return err
			}
			return p.after(g, c, done, settingScope(ask.Module, node), fmt.Sprintf("recorded: %s of %s", ask.Name, args[0]))
		}}
	p.add(c)
	return c
}

// readValue reads what may be recorded and a byte more, so that what is too long is refused as such.
func readValue(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, resolve.MaxSetting+2))
	if err != nil {
		return "", appliance.Errorf(appliance.Invalid, "read value: %w", err)
	}
	return strings.TrimSuffix(string(data), "\n"), nil
}

func newSettingUnset(g *global) *cobra.Command {
	var p pushFlags
	c := &cobra.Command{Use: "unset MODULE[@NODE] NAME", Short: "Take a chosen value back", Args: exactly(2, "a module and a setting's name"), ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := p.check(c); err != nil {
				return err
			}
			module, node, err := splitAt(c, args[0])
			if err != nil {
				return err
			}
			ask := operators.UnsetSetting{Module: appliance.ModuleName(module), Node: node, Name: args[1]}
			var done operators.Recorded
			if err := g.call(c, operators.SettingUnset, ask, &done); err != nil {
				return err
			}
			return p.after(g, c, done, settingScope(ask.Module, node), fmt.Sprintf("recorded: %s of %s has no value of its own", ask.Name, args[0]))
		}}
	p.add(c)
	return c
}

func newSettingList(g *global) *cobra.Command {
	return &cobra.Command{Use: "list MODULE[@NODE]", Short: "List a module's settings, their values, and where each comes from", Args: exactly(1, "a module"), ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			module, node, err := splitAt(c, args[0])
			if err != nil {
				return err
			}
			var settings []operators.Setting
			if err := g.call(c, operators.SettingList, operators.ListSettings{Module: appliance.ModuleName(module), Node: node}, &settings); err != nil {
				return err
			}
			return g.show(c, settings, func(w io.Writer) {
				row(w, "NAME", "NODE", "FROM", "VALUE", "DESCRIPTION")
				for _, s := range settings {
					if s.Unused {
						s.Description = "no setting of the module any more"
					}
					row(w, s.Name, s.Node, s.From, oneLine(s.Value, s.Cut), s.Description)
				}
			})
		}}
}

// oneLine is a value in a table: what is long or has several lines is cut.
func oneLine(s string, cut bool) string {
	first, _, _ := strings.Cut(s, "\n")
	if r := []rune(first); len(r) > 60 {
		first = string(r[:60])
	}
	if cut || first != s {
		first += "…"
	}
	return first
}
