package artifacts

import (
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/novox/mesh/appliance"
)

// What a file tree becomes: an OCI artifact with one layer.
const (
	FilesType = "application/vnd.mesh.files.v1"
	layerType = "application/vnd.mesh.files.v1.tar+zstd"

	// The layer's annotations: what it takes unpacked, so that whoever unpacks can refuse more.
	sizeNote    = "vnd.mesh.files.size"    // bytes of all files
	entriesNote = "vnd.mesh.files.entries" // files, folders and links
)

// Bounds of a tree.
const (
	MaxEntries = 100_000 // files, folders and links
	MaxBytes   = 2 << 30 // of all files together
	maxPath    = 1024    // bytes of one name, and of what a link says
)

// extent is how much a tree is.
type extent struct {
	entries int
	bytes   int64
}

// add refuses what goes beyond a bound.
func (e *extent) add(bound extent, bytes int64) error {
	e.entries++
	e.bytes += bytes
	if e.entries > bound.entries {
		return appliance.Errorf(appliance.Invalid, "more than %d files, folders and links", bound.entries)
	}
	if e.bytes > bound.bytes || bytes < 0 {
		return appliance.Errorf(appliance.Invalid, "more than %d bytes", bound.bytes)
	}
	return nil
}

// checkName refuses a name in a tree that is not a plain relative one.
func checkName(name string) error {
	switch {
	case len(name) > maxPath:
		return appliance.Errorf(appliance.Invalid, "%s: a name of %d bytes, at most %d", appliance.Quote(name), len(name), maxPath)
	case !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0):
		return appliance.Errorf(appliance.Invalid, "%s: not a plain name inside the tree", appliance.Quote(name)).
			WithHint("names are relative, without . and .. in them")
	}
	return nil
}

// checkLink refuses a symbolic link that could lead out of the tree. It may go up as far as the tree reaches, and from there down: since the
// folders above a link are real ones, that never leaves, whatever other links it meets.
func checkLink(name, target string) error {
	refuse := func(why string) error {
		return appliance.Errorf(appliance.Invalid, "%s: a symbolic link to %s, %s", appliance.Quote(name), appliance.Quote(target), why)
	}
	switch {
	case target == "" || len(target) > maxPath || !utf8.ValidString(target) || strings.ContainsRune(target, 0):
		return refuse("which is no path")
	case path.IsAbs(target):
		return refuse("which is absolute")
	}
	depth, down := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "..":
			if depth--; depth < 0 || down {
				return refuse("which leads out of the tree, or may")
			}
		case part != ".":
			down = true
		}
	}
	return nil
}
