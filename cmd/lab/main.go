// Command lab raises beds of hosts on this machine and runs programs on them.
//
// It only wires lab/netns and lab/beds to a command line; what a bed is and what happens on it belongs there.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/lab/netns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit): // the program on the host has said what it had to say
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(255)
	}
}

func command() *cobra.Command {
	var dir string
	root := &cobra.Command{
		Use:           "lab",
		Short:         "Beds of several hosts on one machine",
		Long:          "Beds of several hosts on one machine, each with its own network, processes and disk. Needs root and /dev/net/tun.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&dir, "dir", netns.DefaultDir(), "folder of the beds (LAB_DIR)")
	root.AddCommand(upCommand(&dir), downCommand(&dir), listCommand(&dir), execCommand(&dir), initCommand())
	return root
}

func initCommand() *cobra.Command {
	return &cobra.Command{
		Use:    netns.InitCommand + " CONFIG",
		Hidden: true,
		Run:    func(_ *cobra.Command, args []string) { os.Exit(netns.Init(args)) },
	}
}

// find names a bed, or the only one.
func find(dir, name string) (*netns.Running, error) {
	found, err := netns.List(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, bed := range found {
		if bed.Name() == name || name == "" && len(found) == 1 {
			return bed, nil
		}
		names = append(names, bed.Name())
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("no bed stands in %s; raise one with `lab up BED`", dir)
	case name == "":
		return nil, fmt.Errorf("several beds stand: %s; name one", strings.Join(names, ", "))
	default:
		return nil, fmt.Errorf("no bed %s in %s; there are %s", name, dir, strings.Join(names, ", "))
	}
}
