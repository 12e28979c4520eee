package rules

import (
	"go/ast"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// Every package says what it is for.
func packageComments(sources []source) []string {
	comment := map[string]string{}
	var order []source
	for _, s := range sources {
		if s.test {
			continue
		}
		if _, seen := comment[s.dir]; !seen {
			order = append(order, s)
			comment[s.dir] = ""
		}
		if s.syntax.Doc != nil {
			comment[s.dir] += s.syntax.Doc.Text()
		}
	}
	var found []string
	for _, s := range order {
		want := "Package " + s.syntax.Name.Name + " "
		if s.syntax.Name.Name == "main" {
			want = "Command " + s.dir[strings.LastIndexByte(s.dir, '/')+1:] + " "
		}
		if !strings.HasPrefix(comment[s.dir], want) {
			found = append(found, complain(s, "the package has no comment that begins %q", want))
		}
	}
	return found
}

// calls finds uses of pkg.Name selectors that match.
func calls(s source, match func(name string) bool) []string {
	var names []string
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := selector.X.(*ast.Ident); ok && match(pkg.Name+"."+selector.Sel.Name) {
				names = append(names, pkg.Name+"."+selector.Sel.Name)
			}
		}
		return true
	})
	return names
}

// Scenarios wait for what they can name, never for a while (LAB-2).
func sleeps(sources []source) []string {
	var found []string
	for _, s := range sources {
		if !within(s.dir, "lab") {
			continue
		}
		for _, name := range calls(s, func(name string) bool { return name == "time.Sleep" }) {
			found = append(found, complain(s, "calls %s; poll for a condition that says what is not yet so", name))
		}
	}
	return found
}

// Only main exits: everything else returns its error.
func exits(sources []source) []string {
	var found []string
	for _, s := range sources {
		if s.test || within(s.dir, "cmd") {
			continue
		}
		for _, name := range calls(s, func(name string) bool {
			return name == "os.Exit" || strings.HasPrefix(name, "log.Fatal") || strings.HasPrefix(name, "log.Panic")
		}) {
			found = append(found, complain(s, "calls %s; only cmd exits", name))
		}
	}
	return found
}

var (
	shellName = regexp.MustCompile(`^(/usr)?(/bin/)?(ba|da|z|k)?sh$`)
	shellLine = regexp.MustCompile(`\b(ba|da|z|k)?sh -c\b`)
)

// No shell anywhere (SAFE-3): no string names one as a program or as a line.
func shells(sources []source) []string {
	var found []string
	for _, s := range sources {
		if s.test {
			continue
		}
		ast.Inspect(s.syntax, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				text, err := strconv.Unquote(literal.Value)
				if err == nil && (shellName.MatchString(text) || shellLine.MatchString(text)) {
					found = append(found, complain(s, "names a shell: %s", literal.Value))
				}
			}
			return true
		})
	}
	return found
}

const maxLines = 500

// A file holds one idea.
func longFiles(sources []source) []string {
	var found []string
	for _, s := range sources {
		if !s.test && s.lines > maxLines {
			found = append(found, complain(s, "has %d lines, allowed are %d", s.lines, maxLines))
		}
	}
	return found
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) { hold(t, packageComments) }
func TestOnlyMainExits(t *testing.T)             { hold(t, exits) }
func TestNoShell(t *testing.T)                   { hold(t, shells) } // SAFE-3
func TestNoSleep(t *testing.T)                   { hold(t, sleeps) } // LAB-2
func TestFilesAreShort(t *testing.T)             { hold(t, longFiles) }

// The layout's folders; another is a decision, made here.
var folders = []string{"appliance", "bundles", "cmd", "conformance", "docs", "embedded", "genesis", "lab", "migrations"}

func unknownFolders(tree fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(tree, ".")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() && !strings.HasPrefix(name, ".") && name != "bin" && !slices.Contains(folders, name) {
			found = append(found, name+": not a folder of the layout")
		}
		if !entry.IsDir() && strings.HasSuffix(name, ".go") {
			found = append(found, name+": the root folder is no package")
		}
	}
	return found, nil
}

func TestTopLevelFolders(t *testing.T) {
	found, err := unknownFolders(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Error(violation)
	}
}

// Artifacts come from the mesh's own store and nowhere else.
var foreignRegistry = regexp.MustCompile(`\b(docker\.io/|index\.docker\.io|ghcr\.io|quay\.io|[a-z]*\.?gcr\.io|registry\.k8s\.io|mcr\.microsoft\.com|public\.ecr\.aws)`)

func foreignRegistries(tree fs.FS) ([]string, error) {
	var found []string
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".git" || name == "bin" || name == "lab/rules" {
				return fs.SkipDir
			}
			return nil
		}
		if name == "go.sum" || !entry.Type().IsRegular() {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		if host := foreignRegistry.Find(text); host != nil && utf8.Valid(text) {
			found = append(found, name+": names the registry "+string(host))
		}
		return nil
	})
	return found, err
}

func TestNoForeignRegistry(t *testing.T) {
	found, err := foreignRegistries(repository)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range found {
		t.Error(violation)
	}
}
