package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

func newToken(g *global) *cobra.Command {
	c := &cobra.Command{Use: "token", Short: "Join tokens: create, list, revoke"}
	c.AddCommand(newTokenCreate(g), newTokenList(g), newTokenRevoke(g))
	return c
}

func newTokenCreate(g *global) *cobra.Command {
	var ask operators.NewToken
	var name string
	c := &cobra.Command{Use: "create", Short: "Make a token and print the line that joins a machine", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			switch { // zero would mean the default
			case ask.TTL < time.Second:
				return usage(c, fmt.Sprintf("--ttl %s: one second to one year", ask.TTL))
			case ask.Uses < 1:
				return usage(c, fmt.Sprintf("--uses %d: 1 to 10000", ask.Uses))
			}
			if name != "" {
				if ask.Name, err = appliance.ParseName[appliance.NodeName]("node", name); err != nil {
					return err
				}
			}
			var made operators.CreatedToken
			if err := g.call(c, operators.TokenCreate, ask, &made); err != nil {
				return err
			}
			return g.show(c, made, func(w io.Writer) {
				fmt.Fprintf(w, "On the machine that shall join, as root (until %s):\n", made.Expires.Local().Format(time.DateTime))
				joinLines(w, made)
			})
		}}
	c.Flags().DurationVar(&ask.TTL, "ttl", time.Hour, "how long the token is good")
	c.Flags().IntVar(&ask.Uses, "uses", 1, "how many machines may join with it")
	c.Flags().StringVar(&name, "name", "", "the name the machine will have")
	labelVar(c.Flags(), &ask.Label, "a label the machine will have, `KEY=VALUE`; may be given several times")
	return c
}

// labelVar adds --label. Its default, no labels, needs no word in the help.
func labelVar(f *pflag.FlagSet, to *map[string]string, usage string) {
	f.StringToStringVar(to, "label", nil, usage)
	f.Lookup("label").DefValue = ""
}

// joinLines shows what to give on a machine that shall join: one line per address of the hub, each for a bare machine and for one that
// has the binary.
func joinLines(w io.Writer, made operators.CreatedToken) {
	show := func(lines []string) {
		for _, line := range lines {
			fmt.Fprintf(w, "\n  %s\n", line)
		}
	}
	fmt.Fprintf(w, "\nA bare one with curl (linux %s):\n", strings.Join(made.Serves, " or "))
	show(made.Curl)
	for _, architecture := range wire.Architectures {
		if !slices.Contains(made.Serves, architecture) {
			fmt.Fprintf(w, "\n  The hub has no binary for %[1]s: there curl ends with error 404. Make one with `make build`, and put it into\n"+
				"  bin/ of the hub's state folder as %[2]s; or take it to the machine by hand.\n", architecture, installation.OtherBinary(architecture))
		}
	}
	fmt.Fprint(w, "\nOne that has the binary:\n")
	show(made.Join)
}

func newTokenList(g *global) *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List tokens, never their secrets", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var tokens []operators.Token
			if err := g.call(c, operators.TokenList, struct{}{}, &tokens); err != nil {
				return err
			}
			return g.show(c, tokens, func(w io.Writer) {
				row(w, "ID", "STATE", "USED", "EXPIRES", "NAME")
				for _, t := range tokens {
					if t.Replaces {
						t.Name += " (in its place)"
					}
					row(w, t.ID, t.State, fmt.Sprintf("%d/%d", t.Used, t.Uses), t.Expires.Local().Format(time.DateTime), t.Name)
				}
			})
		}}
}

func newTokenRevoke(g *global) *cobra.Command {
	return &cobra.Command{Use: "revoke ID", Short: "Make a token good for nothing", Args: exactly(1, "the token's id"), ValidArgsFunction: g.complete(false, openTokens),
		RunE: func(c *cobra.Command, args []string) error {
			id := appliance.TokenID(args[0])
			if !id.Valid() {
				return usage(c, fmt.Sprintf("%s is no token id; `mesh token list` shows them", appliance.Quote(args[0])))
			}
			if err := g.call(c, operators.TokenRevoke, operators.RevokeToken{ID: id}, nil); err != nil {
				return err
			}
			return g.show(c, map[string]any{"id": id}, func(w io.Writer) { fmt.Fprintf(w, "revoked: %s; who has joined with it stays\n", id) })
		}}
}
