package main

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// confirm shows what will be done and asks; where nobody can be asked, only --yes goes on.
func confirm(c *cobra.Command, yes bool, what string) error {
	return confirmBy(c, yes, what, "Go on? [y/N]", "y", "yes")
}

// confirmBy is confirm where the answer has to be one of some words.
func confirmBy(c *cobra.Command, yes bool, what, question string, words ...string) error {
	w := c.ErrOrStderr()
	fmt.Fprintln(w, plain(what))
	if yes {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err != nil {
		return usage(c, c.CommandPath()+" asks before it goes on, and there is no terminal to ask on: give --yes")
	}
	fmt.Fprint(w, question+" ")
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if slices.Contains(words, strings.ToLower(strings.TrimSpace(answer))) {
		return nil
	}
	return appliance.Errorf(appliance.Denied, "%s: not confirmed; nothing is changed", c.CommandPath())
}
