package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/novox/mesh/appliance"
)

// Exit codes; scripts depend on them.
const (
	exitDone        = 0
	exitNo          = 1
	exitUsage       = 2
	exitRefused     = 3
	exitUnreachable = 4
	exitTimeout     = 5
	exitError       = 255
)

const exitText = `Every command ends with one of these:

  0    done
  1    the answer is no: a plan with changes, a mesh that is not current
  2    wrong use: arguments or flags
  3    refused: the input breaks a rule, or something stands against it
  4    not reachable: the hub, its store, or another machine
  5    timed out
  255  error

mesh exec ends with the code of the command it ran.
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: exitText, Args: noArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprint(c.OutOrStdout(), exitText) }}
}

// errNo ends a command with 1 after it has said everything itself.
var errNo = errors.New("no")

// usageError is wrong use of a command.
type usageError struct {
	command *cobra.Command
	text    string
}

func (e usageError) Error() string { return e.text }

func usage(c *cobra.Command, text string) error { return usageError{c, text} }

// wrongFlag says what is wrong with a flag in words of our own where the library would quote Go's.
func wrongFlag(err error) string {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	f, what := wrong.GetFlag(), ""
	switch f.Value.Type() {
	case "duration":
		what = "no time such as 30s, 5m or 2h"
	case "int", "uint16", "uint64":
		what = "no number that it can be"
	case "stringToString":
		what = "not KEY=VALUE"
	default:
		return err.Error()
	}
	return fmt.Sprintf("--%s %s is %s", f.Name, appliance.Quote(wrong.GetValue()), what)
}

// exactly wants n arguments and names them when they are not there.
func exactly(n int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usage(c, fmt.Sprintf("%s wants %s, got %d arguments", c.CommandPath(), names, len(args)))
		}
		return nil
	}
}

// atMost wants up to n arguments.
func atMost(n int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usage(c, fmt.Sprintf("%s wants at most %s, got %d arguments", c.CommandPath(), names, len(args)))
		}
		return nil
	}
}

// noArgs wants none.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(c, fmt.Sprintf("%s wants no arguments, got %s", c.CommandPath(), appliance.Quote(args[0])))
	}
	return nil
}

// group is what a command does that only holds others: without arguments it shows them.
func group(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return c.Help()
	}
	text := fmt.Sprintf("%s has no command %s", c.CommandPath(), appliance.Quote(args[0]))
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return usage(c, text)
}

// fail tells the person what went wrong: error, hint, next command; and gives the exit code.
func fail(w io.Writer, root *cobra.Command, err error) int {
	if errors.Is(err, errNo) {
		return exitNo
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	var wrong usageError
	if errors.As(err, &wrong) {
		fmt.Fprintf(w, "error: %s\nnext:  %s --help\n", plain(wrong.text), wrong.command.CommandPath())
		return exitUsage
	}
	e := appliance.AsError(err)
	fmt.Fprintf(w, "error: %s\n", plain(e.Text))
	if e.Hint != "" {
		fmt.Fprintf(w, "hint:  %s\n", plain(e.Hint))
	}
	if e.Next != "" {
		fmt.Fprintf(w, "next:  %s\n", plain(e.Next))
	}
	late := errors.Is(err, context.DeadlineExceeded)
	switch e.Kind {
	case appliance.Unavailable: // a time limit is how that is found out
		return exitUnreachable
	case appliance.NotReady:
		if late {
			return exitTimeout
		}
		return exitUnreachable
	case appliance.Internal:
		if late {
			return exitTimeout
		}
		return exitError
	}
	return exitRefused
}
