package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/novox/mesh"

// A source is one Go file of the repository.
type source struct {
	path    string // from the repository's root, with slashes
	dir     string // the package's place
	test    bool
	lines   int
	syntax  *ast.File
	imports []string
}

// parse reads every Go file of a tree.
func parse(tree fs.FS) ([]source, error) {
	var sources []source
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != "." && (strings.HasPrefix(base, ".") || base == "testdata" || name == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s := source{path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), syntax: syntax,
			lines: strings.Count(string(text), "\n")}
		for _, spec := range syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		sources = append(sources, s)
		return nil
	})
	return sources, err
}

// within says whether a slash path is one of the places or beneath one. "." is the root folder alone.
func within(name string, places ...string) bool {
	return slices.ContainsFunc(places, func(place string) bool {
		return name == place || strings.HasPrefix(name, place+"/")
	})
}

// ours cuts the module's path off an import of our own.
func ours(imported string) (string, bool) {
	if imported == module {
		return ".", true
	}
	return strings.CutPrefix(imported, module+"/")
}

var repository = os.DirFS("../..")

// hold fails the test with everything a check finds in the repository.
func hold(t *testing.T, check func([]source) []string) {
	t.Helper()
	sources, err := parse(repository)
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) == 0 {
		t.Fatal("no Go file found")
	}
	for _, violation := range check(sources) {
		t.Error(violation)
	}
}

func complain(s source, format string, args ...any) string {
	return s.path + ": " + fmt.Sprintf(format, args...)
}
