package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/wire"
)

func newExec(g *global) *cobra.Command {
	var part string
	var terminal, noInput bool
	c := &cobra.Command{Use: "exec INSTANCE@NODE [flags] -- COMMAND [ARGUMENT…]", Short: "Run a command where and as an instance runs",
		Long: `Run a command as the instance's user, in its folder and environment; in a container where it is one. The command is a list of
arguments that no shell reads. It ends with the command's own exit code. Every use is audited.`,
		ValidArgsFunction: g.complete(false, placedNames),
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); at != 1 || len(args) < 2 {
				return usage(c, "exec wants INSTANCE@NODE, then -- and the command")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := g.dial(c.Context(), dialWithin, c.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cl.Close()
			instance, nodes, err := placed(c.Context(), cl, args[0])
			if err != nil {
				return err
			}
			if len(nodes) != 1 {
				return usage(c, fmt.Sprintf("%s runs on %d nodes; name one: %s@%s", instance, len(nodes), instance, nodes[0]))
			}
			in, onTerminal := c.InOrStdin().(*os.File)
			if !c.Flags().Changed("tty") {
				terminal = onTerminal && !noInput && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
			}
			open := wire.Opening{Instance: instance, Part: part, Command: args[1:], Input: !noInput}
			a := attached{out: c.OutOrStdout(), err: c.ErrOrStderr(), in: c.InOrStdin()}
			if terminal {
				if !onTerminal || !term.IsTerminal(int(in.Fd())) {
					return usage(c, "--tty wants a terminal as standard input")
				}
				a.terminal = in
				open.Term = os.Getenv("TERM")
				if open.Terminal, err = terminalSize(in); err != nil {
					return err
				}
			}
			return a.run(c.Context(), cl, nodes[0], open)
		}}
	c.Flags().StringVar(&part, "in", "", "beside or in this process or container (default: the instance's first)")
	_ = c.RegisterFlagCompletionFunc("in", cobra.NoFileCompletions)
	c.Flags().BoolVarP(&terminal, "tty", "t", false, "with a terminal (default: where this is one)")
	c.Flags().BoolVar(&noInput, "no-stdin", false, "without input")
	return c
}

func terminalSize(f *os.File) (*wire.TerminalSize, error) {
	columns, rows, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	return &wire.TerminalSize{Rows: uint16(min(rows, 1000)), Columns: uint16(min(columns, 1000))}, nil
}

// attached is this terminal, or these files, at the end of a session.
type attached struct {
	in       io.Reader
	out, err io.Writer
	terminal *os.File // nil: none
}

func (a attached) run(ctx context.Context, cl *client.Client, node appliance.NodeName, open wire.Opening) error {
	s, err := attach(ctx, cl, node, open, a.err)
	if err != nil {
		return err
	}
	defer s.Close()
	if a.terminal != nil {
		before, err := term.MakeRaw(int(a.terminal.Fd()))
		if err != nil {
			return err
		}
		defer term.Restore(int(a.terminal.Fd()), before) //nolint:errcheck // there is nothing else to do
		changed := make(chan os.Signal, 1)
		signal.Notify(changed, unix.SIGWINCH)
		defer signal.Stop(changed)
		go func() {
			for range changed {
				if size, err := terminalSize(a.terminal); err == nil {
					_ = s.Resize(ctx, *size)
				}
			}
		}()
	}
	if open.Input {
		go a.feed(ctx, s)
	}
	code, err := s.Each(ctx, func(o wire.Output) error {
		to := a.out
		if o.Stderr {
			to = a.err
		}
		_, err := to.Write(o.Data)
		return err
	})
	if err == nil && code != 0 {
		err = exitCode(code)
	}
	return err
}

func (a attached) feed(ctx context.Context, s *client.Session) {
	buffer := make([]byte, wire.MaxFrame)
	for {
		n, err := a.in.Read(buffer)
		if n > 0 && s.Input(ctx, buffer[:n]) != nil {
			return // the session is over; Each says how
		}
		if err != nil {
			_ = s.End(ctx)
			return
		}
	}
}

// exitCode ends this command as the one that was run.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("the command ended with %d", int(e)) }
