package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// confirm shows what will be done and asks; where nobody can be asked, only --yes goes on.
func confirm(c *cobra.Command, yes bool, what string) error {
	w := c.ErrOrStderr()
	fmt.Fprintln(w, plain(what))
	if yes {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err != nil {
		return usage(c, c.CommandPath()+" asks before it goes on, and there is no terminal to ask on: give --yes")
	}
	fmt.Fprint(w, "Go on? [y/N] ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return appliance.Errorf(appliance.Denied, "%s: not confirmed; nothing is changed", c.CommandPath())
}
