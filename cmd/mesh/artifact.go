package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/operators"
)

func newArtifact(g *global) *cobra.Command {
	c := &cobra.Command{Use: "artifact", Short: "What modules are made of: push, list, show"}
	c.AddCommand(newArtifactPush(g), newArtifactList(g), newArtifactShow(g))
	return c
}

func newArtifactPush(g *global) *cobra.Command {
	var limit *disk.Size
	c := &cobra.Command{Use: "push MODULE/ARTIFACT PATH", Short: "Put an image or a file tree into the artifact store", Args: exactly(2, "MODULE/ARTIFACT and a path"),
		Long: "Put an image or a file tree into the artifact store, and print its reference.\n\nAn image is a folder or a tar in OCI's layout, or what `docker save` writes. Any other folder is packed as a file tree: the same files make the same artifact. " +
			"What no plan within reach of a rollback names is removed a day after it was pushed last.",
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			module, artifact, err := artifacts.ParsePath(args[0])
			if err != nil {
				return err
			}
			source, err := openSource(args[1])
			if err != nil {
				return err
			}
			defer source.Close()
			var most int64
			if limit != nil {
				most = int64(*limit)
			}
			ref, err := g.pushArtifact(c, module, artifact, source, most)
			if err != nil {
				return err
			}
			return g.show(c, map[string]any{"reference": ref.String(), "digest": ref.Digest}, func(w io.Writer) { fmt.Fprintln(w, ref) })
		}}
	sizeVar(c.Flags(), &limit, "limit", "what the module may hold after the push (default 2 GiB)")
	return c
}

func openSource(path string) (*artifacts.Source, error) {
	if artifacts.IsImage(path) {
		return artifacts.OpenImage(path)
	}
	return artifacts.PackFiles(path, []string{"."})
}

func newArtifactList(g *global) *cobra.Command {
	return &cobra.Command{Use: "list [MODULE]", Short: "List what the artifact store holds", Args: atMost(1, "a module"), ValidArgsFunction: g.complete(false, moduleNames),
		RunE: func(c *cobra.Command, args []string) error {
			var ask operators.ListArtifacts
			if len(args) > 0 {
				ask.Module = appliance.ModuleName(args[0])
			}
			var all operators.Artifacts
			if err := g.call(c, operators.ArtifactList, ask, &all); err != nil {
				return err
			}
			return g.show(c, all, func(w io.Writer) {
				row(w, "KIND", "PLATFORMS", "SIZE", "PUSHED", "DAMAGED", "REFERENCE")
				for _, a := range all.Artifacts {
					row(w, a.Kind, strings.Join(a.Platforms, ","), disk.Size(a.Size), ago(a.Pushed), yes(len(a.Damaged) > 0), a.Reference)
				}
				if all.More > 0 {
					fmt.Fprintf(w, "and %d more: name a module\n", all.More)
				}
			})
		}}
}

func newArtifactShow(g *global) *cobra.Command {
	return &cobra.Command{Use: "show REFERENCE", Short: "Show an artifact, and who names it", Args: exactly(1, "a reference"), ValidArgsFunction: g.complete(false, references),
		RunE: func(c *cobra.Command, args []string) error {
			d := appliance.Digest(args[0])
			if !d.Valid() {
				ref, err := artifacts.ParseReference(args[0])
				if err != nil {
					return err
				}
				d = ref.Digest
			}
			var a operators.ShownArtifact
			if err := g.call(c, operators.ArtifactShow, operators.ShowArtifact{Digest: d}, &a); err != nil {
				return err
			}
			return g.show(c, a, func(w io.Writer) {
				of := a.Stored[0] // the same everywhere, but for when it was pushed
				row(w, "digest", a.Digest)
				row(w, "kind", of.Kind)
				row(w, "media type", of.MediaType)
				row(w, "size", disk.Size(of.Size))
				row(w, "platforms", strings.Join(of.Platforms, ", "))
				for _, s := range a.Stored {
					row(w, "stored as", fmt.Sprintf("%s, pushed %s", s.Reference, s.Pushed.Local().Format(time.DateTime)))
				}
				row(w, "modules", words(a.Modules))
				row(w, "nodes", words(a.Nodes))
				row(w, "damaged", words(of.Damaged))
			})
		}}
}

func words[T ~string](all []T) string {
	parts := make([]string, len(all))
	for i, s := range all {
		parts[i] = string(s)
	}
	return strings.Join(parts, ", ")
}
