package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

func upCommand(dir *string) *cobra.Command {
	var binary string
	var join bool
	var names []string
	for _, bed := range beds.All {
		names = append(names, bed.Name)
	}
	cmd := &cobra.Command{
		Use:       "up BED",
		Short:     "Raise a bed: " + strings.Join(names, ", "),
		Args:      cobra.ExactArgs(1),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			bed, ok := beds.Named(args[0])
			if !ok {
				return fmt.Errorf("no bed is called %q; there are %s", args[0], strings.Join(names, ", "))
			}
			if join && binary == "" {
				return errors.New("--join needs the binary to join with; add --mesh PATH (make build writes bin/mesh)")
			}
			running, err := netns.UpKept(cmd.Context(), bed, *dir)
			if err != nil {
				return err
			}
			show(cmd, running)
			switch {
			case join:
				return beds.Raise(cmd.Context(), running, binary, cmd.ErrOrStderr())
			case binary != "":
				return beds.Install(cmd.Context(), running, binary)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&binary, "mesh", "", "mesh binary to install on every host")
	cmd.Flags().BoolVar(&join, "join", false, "make the first host a hub and join the others")
	return cmd
}

func show(cmd *cobra.Command, bed *netns.Running) {
	for _, host := range bed.Hosts() {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\t%s\t%s\n", bed.Name(), host.Name, host.Address)
	}
}

func listCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show beds, hosts and addresses",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := netns.List(*dir)
			for _, bed := range found {
				show(cmd, bed)
			}
			return err
		},
	}
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down [BED]",
		Short: "Take down a bed (the only one unless named), and what dead owners left",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			swept, err := netns.Sweep(cmd.Context(), *dir)
			for _, name := range swept {
				fmt.Fprintln(cmd.ErrOrStderr(), "swept", name)
			}
			if err != nil {
				return err
			}
			name := strings.Join(args, "")
			bed, err := find(*dir, name)
			if err != nil {
				if len(swept) > 0 && name == "" {
					return nil
				}
				return err
			}
			return bed.Down(cmd.Context())
		},
	}
}
