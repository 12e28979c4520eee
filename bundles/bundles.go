// Package bundles holds the modules shipped inside the binary, as files. It reads none of them and imports nothing of ours.
//
// Three paths are known outside the manifests, because the processes that fill them are parts of the binary: the cluster of mesh-store
// lies in ${dir}/store/cluster (initdb needs a folder in which it may rename), the streams of mesh-broker in ${dir}/data, and there too
// what artifact-store holds.
package bundles

import (
	"embed"
	"io/fs"
	"path"
	"slices"
)

//go:embed all:base all:extra
var files embed.FS

// Bundle is a module shipped inside the binary.
type Bundle struct {
	Name     string
	Manifest []byte // its module.json
}

// raise is the order in which genesis raises the base bundles: what stands on nothing first.
var raise = []string{"mesh-store", "mesh-broker", "mesh-network", "artifact-store", "mesh-controller"}

// Base gives the base bundles in the order in which genesis raises them.
func Base() []Bundle {
	var all []Bundle
	for _, name := range raise {
		all = append(all, read("base", name))
	}
	return all
}

// IsBase says whether a module of this name is a part of the mesh itself.
func IsBase(name string) bool { return slices.Contains(raise, name) }

// Extra gives the bundles that are registered by name, sorted.
func Extra() []Bundle {
	var all []Bundle
	entries, err := fs.ReadDir(files, "extra")
	if err != nil {
		panic(err) // the folder is part of the binary
	}
	for _, e := range entries {
		all = append(all, read("extra", e.Name()))
	}
	return all
}

// Find gives the bundle with this name.
func Find(name string) (Bundle, bool) {
	for _, b := range append(Base(), Extra()...) {
		if b.Name == name {
			return b, true
		}
	}
	return Bundle{}, false
}

func read(folder, name string) Bundle {
	data, err := files.ReadFile(path.Join(folder, name, "module.json"))
	if err != nil {
		panic(err) // the file is part of the binary
	}
	return Bundle{name, data}
}

// Names lists the bundles a person may register, base bundles included.
func Names() []string {
	var names []string
	for _, b := range append(Base(), Extra()...) {
		names = append(names, b.Name)
	}
	return names
}
