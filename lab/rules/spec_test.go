package rules

import (
	_ "embed"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rulesText lists the ids of the specification's rules, one a line.
//
//go:embed rules.txt
var rulesText string

// unnamed is how many rules no test names. It may only fall: lower it with the test that names another.
const unnamed = 40

// named collects the ids that tests and scripts name, and those that the specification does not have.
func named(tree fs.FS, rules []string) (names map[string]bool, unknown []string, err error) {
	var families []string
	for _, id := range rules {
		family, _, _ := strings.Cut(id, "-")
		families = append(families, family)
	}
	slices.Sort(families)
	pattern := regexp.MustCompile(`\b(?:` + strings.Join(slices.Compact(families), "|") + `)-[0-9]+\b`)
	names = map[string]bool{}
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == ".git" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		script := strings.Contains(name, "testdata/") && (strings.HasSuffix(name, ".txt") || strings.HasSuffix(name, ".txtar"))
		if !strings.HasSuffix(name, "_test.go") && !script || name == "lab/rules/self_test.go" {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		for _, id := range pattern.FindAllString(string(text), -1) {
			if !slices.Contains(rules, id) {
				unknown = append(unknown, name+": names "+id+", which is no rule")
			}
			names[id] = true
		}
		return nil
	})
	return names, unknown, err
}

func TestRulesThatNoTestNames(t *testing.T) {
	rules := strings.Fields(rulesText)
	names, unknown, err := named(repository, rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, violation := range unknown {
		t.Error(violation)
	}
	missing := slices.DeleteFunc(slices.Clone(rules), func(id string) bool { return names[id] })
	switch {
	case len(missing) > unnamed:
		t.Errorf("%d rules are named by no test, recorded are %d; name the rule in the test that proves it: %s", len(missing), unnamed, strings.Join(missing, " "))
	case len(missing) < unnamed:
		t.Logf("%d rules are named by no test, recorded are %d: lower the number", len(missing), unnamed)
	}
	t.Logf("named by no test: %s", strings.Join(missing, " "))
}
