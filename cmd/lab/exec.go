package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func execCommand(dir *string) *cobra.Command {
	var bedName string
	cmd := &cobra.Command{
		Use:     "exec HOST -- CMD…",
		Short:   "Run a program on a host",
		Example: "  lab exec hub -- mesh status",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			bed, err := find(*dir, bedName)
			if err != nil {
				return err
			}
			host := bed.Host(args[0])
			if host == nil {
				var names []string
				for _, host := range bed.Hosts() {
					names = append(names, host.Name)
				}
				return fmt.Errorf("bed %s has no host %q; it has %s", bed.Name(), args[0], strings.Join(names, ", "))
			}
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return errors.New("no program named; write lab exec HOST -- CMD…")
			}
			program := host.Command(cmd.Context(), argv...)
			// In our own process group, so that it may read from the terminal and hear its interrupt.
			program.SysProcAttr.Setpgid = false
			program.Cancel = func() error { return program.Process.Signal(syscall.SIGTERM) }
			program.Stdin, program.Stdout, program.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return program.Run()
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVar(&bedName, "bed", "", "the bed, where several stand")
	return cmd
}
