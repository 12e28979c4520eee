package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/genesis/join"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/services"
)

func newJoin(g *global) *cobra.Command {
	var o join.Options
	var name, file string
	var foreground bool
	c := &cobra.Command{Use: "join TOKEN|-", Short: "Make this machine a node of the mesh that made the token", Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) (err error) {
			if o.Install, err = g.install(); err != nil {
				return err
			}
			if o.Token, err = readToken(c, args, file); err != nil {
				return err
			}
			if name != "" {
				if o.Name, err = appliance.ParseName[appliance.NodeName]("node", name); err != nil {
					return err
				}
			}
			if err := probe.Root("join"); err != nil {
				return err
			}
			o.Now = clock
			o.Log = slog.New(slog.DiscardHandler)
			s := services.For(o.Install)
			begun := time.Now()
			result, err := join.Run(c.Context(), o, machine(o.Install), s, func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) })
			if err != nil {
				return err
			}
			if err := g.show(c, result.Record, func(w io.Writer) {
				if result.Already {
					fmt.Fprintf(w, "This machine is node %s of mesh %s already; its agent runs.\n", result.Record.Name, result.Record.MeshName)
					return
				}
				fmt.Fprintf(w, "This machine is node %s of mesh %s after %.1f s. Others reach it as %s.internal.\n", result.Record.Name, result.Record.MeshName, time.Since(begun).Seconds(), result.Record.Name)
				if s.Kind() == "detached" {
					fmt.Fprint(w, "There is no systemd or OpenRC here: a reboot starts nothing. After one, run `mesh start`.\n")
				}
			}); err != nil {
				return err
			}
			if foreground {
				return stayInForeground(c.Context(), o.Install, s)
			}
			return nil
		}}
	f := c.Flags()
	f.StringVar(&name, "name", "", "name in the mesh (default: this machine's host name)")
	f.StringVar(&file, "token-file", "", "file that holds the token")
	labelVar(f, &o.Labels, "a label of the node, `KEY=VALUE`; may be given several times")
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "how long to try")
	sizeVar(f, &o.LeastFree, "least-free", leastFreeUsage)
	f.BoolVar(&o.Adopt, "adopt", false, "leave what is on this machine as it is and report it, until mesh node converge")
	f.BoolVar(&foreground, "foreground", false, "stay, and stop the mesh's processes at the end (for containers)")
	return c
}

// maxToken bounds what is read as a token, in bytes.
const maxToken = 8 << 10

// readToken takes the token from the argument, standard input or a file; exactly one of them.
func readToken(c *cobra.Command, args []string, file string) (string, error) {
	if len(args) > 1 || (len(args) == 1) == (file != "") {
		return "", usage(c, "mesh join wants the token: as its argument, - for standard input, or --token-file FILE")
	}
	var in io.Reader
	switch {
	case file != "":
		f, err := openToken(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	case args[0] == "-":
		in = c.InOrStdin()
	default:
		return args[0], nil
	}
	data, err := io.ReadAll(io.LimitReader(in, maxToken+1))
	if err != nil {
		return "", appliance.Errorf(appliance.Invalid, "read token: %w", err)
	}
	if len(data) > maxToken {
		return "", appliance.Errorf(appliance.Invalid, "read token: more than %d bytes", maxToken)
	}
	return string(data), nil
}

// openToken opens a file that only its owner may read: whoever has the token before it is spent may join in this machine's place. A pipe
// or a terminal keeps nothing.
func openToken(file string) (*os.File, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read token: %w", err).WithHint("--token-file names a file with the token in it")
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
		err = appliance.Errorf(appliance.Denied, "read token: others may read %s (mode %04o)", file, info.Mode().Perm()).
			WithHint("a token lets whoever has it into the mesh; if nobody else can have read it").WithNext("chmod 600 " + file)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
