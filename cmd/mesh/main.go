// Command mesh is the whole appliance: hub, node, supervisor and the operator's tool. Each command is one file; what it decides
// belongs to a package below appliance or genesis.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
)

// version is set by the build (-ldflags -X).
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && !errors.Is(err, errNo) {
			err = appliance.Errorf(appliance.Internal, "interrupted").WithHint("the same command finishes what this one began")
		}
		return fail(os.Stderr, root, whyAway(ctx, root, err))
	}
	return exitDone
}

// global holds the flags every command has.
type global struct {
	state  string // folder of the installation
	output string // table, json, yaml
}

func newRoot() *cobra.Command {
	g := &global{}
	root := &cobra.Command{
		Use:           "mesh",
		Short:         "Run your own machines as one mesh",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		// An output that cannot be given is refused before anything is asked or changed.
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return g.checkOutput(c) },
	}
	root.PersistentFlags().StringVar(&g.state, "state", "", "folder of the installation (default $MESH_STATE or /var/lib/mesh)")
	root.PersistentFlags().StringVarP(&g.output, "output", "o", "table", "table, json or yaml")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, wrongFlag(err)) })
	root.AddGroup(&cobra.Group{ID: "machine", Title: "On this machine:"}, &cobra.Group{ID: "mesh", Title: "In the mesh:"})
	for _, c := range []*cobra.Command{newGenesis(g), newJoin(g), newStart(g), newStop(g), newLeave(g), newUninstall(g), newStore(g)} {
		c.GroupID = "machine"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{newStatus(g), newToken(g), newModule(g), newArtifact(g), newSetting(g), newPlan(g), newPush(g), newRollback(g), newCheck(g), newLogs(g), newExec(g), newNode(g), newOverlay(g), newAudit(g)} {
		c.GroupID = "mesh"
		root.AddCommand(c)
	}
	root.AddCommand(newServe(g), newAgent(g), newSupervise(), newHello(), newExitCodes())
	for _, c := range append(root.Commands(), root) {
		if c.HasSubCommands() && !c.Runnable() {
			c.Args, c.RunE = cobra.ArbitraryArgs, group
		}
	}
	return root
}
