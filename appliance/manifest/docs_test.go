package manifest_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance/manifest"
)

var placeholder = regexp.MustCompile(`\$\{[a-z]+(:[A-Za-z]+)*\}`)

// Who writes a module knows this page and the schema only: its example is a module, and each placeholder that is named is one.
func TestDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/modules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```\n")
	example, _, _ = strings.Cut(example, "```\n")
	if _, err := manifest.Parse([]byte(example)); err != nil {
		t.Errorf("the example: %v", err)
	}

	named := placeholder.FindAllString(string(manifest.Schema()), -1)
	if len(named) < 9 {
		t.Errorf("the schema names only %s", named)
	}
	for _, p := range named {
		if !strings.Contains(string(page), "`"+p+"`") {
			t.Errorf("%s is in the schema and not on the page", p)
		}
	}
	for _, p := range append(named, placeholder.FindAllString(string(page), -1)...) {
		text := strings.NewReplacer("NAME", "x", "greeting", "x", "http", "x").Replace(p)
		m := `{"module": "m", "ports": {"x": {"port": 1, "from": "mesh"}}, "settings": {"x": {"description": "a setting"}},
			"artifacts": {"x": {"kind": "files"}}, "certificates": {"x": {"names": ["m.internal"], "authority": true}},
			"resources": [{"kind": "user", "name": "m"}, {"kind": "process", "name": "p", "user": "m", "command": ["` + text + `"]}]}`
		if _, err := manifest.Parse([]byte(m)); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}
