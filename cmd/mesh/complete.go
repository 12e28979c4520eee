package main

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/bundles"
)

// completeWithin bounds how long a shell waits for names.
const completeWithin = 2 * time.Second

// names asks the mesh for the names an argument may have.
type names func(ctx context.Context, g *global) []string

// complete offers, for each argument in turn, what the mesh knows; the last one goes on for further arguments where rest is set.
func (g *global) complete(rest bool, per ...names) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		i := len(args)
		if i >= len(per) && rest {
			i = len(per) - 1
		}
		if i >= len(per) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(context.Background(), completeWithin)
		defer cancel()
		return per[i](ctx, g), cobra.ShellCompDirectiveNoFileComp
	}
}

// ask is a call that says nothing when it fails: a completion has no place for errors.
func ask[T any](ctx context.Context, g *global, verb operators.Verb) (answer T) {
	cl, err := g.dial(ctx, completeWithin, io.Discard)
	if err != nil {
		return answer
	}
	defer cl.Close()
	_ = cl.Call(ctx, verb, struct{}{}, &answer)
	return answer
}

func nodeNames(ctx context.Context, g *global) (out []string) {
	for _, n := range ask[operators.Status](ctx, g, operators.StatusShow).Nodes {
		out = append(out, string(n.Name))
	}
	return out
}

func moduleNames(ctx context.Context, g *global) (out []string) {
	for _, m := range ask[[]operators.Module](ctx, g, operators.ModuleList) {
		out = append(out, string(m.Name))
	}
	return out
}

func instanceNames(ctx context.Context, g *global) (out []string) {
	for _, m := range ask[[]operators.Module](ctx, g, operators.ModuleList) {
		for _, i := range m.Instances {
			out = append(out, string(i.Name))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// scopedNames offers instances, and each of them on each of its nodes.
func scopedNames(ctx context.Context, g *global) []string {
	return append(instanceNames(ctx, g), placedNames(ctx, g)...)
}

func references(ctx context.Context, g *global) (out []string) {
	for _, a := range ask[operators.Artifacts](ctx, g, operators.ArtifactList).Artifacts {
		out = append(out, a.Reference)
	}
	return out
}

func openTokens(ctx context.Context, g *global) (out []string) {
	for _, t := range ask[[]operators.Token](ctx, g, operators.TokenList) {
		if t.State == "open" {
			out = append(out, string(t.ID))
		}
	}
	return out
}

// bundleOrFolder offers the bundles and, by the shell, folders.
func bundleOrFolder(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return bundles.Names(), cobra.ShellCompDirectiveDefault
}
