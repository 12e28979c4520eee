package manifest_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/bundles"
)

var update = flag.Bool("update", false, "write what is found into the golden files")

// MOD-1, MOD-2, PORT-6: a golden file holds a module.json, and what is wrong with it or its canonical form.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := txtar.File{Name: "canonical"}
			m, err := manifest.Parse(a.Files[0].Data)
			if err != nil {
				got = txtar.File{Name: "problems", Data: []byte(err.Error() + "\n")}
				if appliance.KindOf(err) != appliance.Invalid {
					t.Errorf("kind %s", appliance.KindOf(err))
				}
			} else {
				got.Data = append(m.Canonical(), '\n')
			}
			if *update {
				a.Files = append(a.Files[:1], got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(a.Files[1:], []txtar.File{got}); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// MOD-1: the example of the format holds nothing that is wrong, and nothing of it is ignored.
func TestEveryFieldIsCarriedOutOrRefused(t *testing.T) {
	a, err := txtar.ParseFile("testdata/design-example.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, err = manifest.Parse(a.Files[0].Data)
	var errs *manifest.Errors
	if !errors.As(err, &errs) {
		t.Fatalf("error %v", err)
	}
	refused := map[string]bool{}
	for _, p := range errs.Problems {
		if !strings.HasSuffix(p.Text, "not carried out by this version") {
			t.Errorf("%s", p)
		}
		refused[p.Path] = true
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(a.Files[0].Data, &fields); err != nil {
		t.Fatal(err)
	}
	carriedOut := map[string]bool{"$schema": true, "module": true, "description": true, "seats": true, "claims": true, "ports": true, "privileged": true, "resources": true,
		"settings": true, "artifacts": true, "certificates": true, "upgrade": true, "build": true} // of the last two a part
	for field := range fields {
		if refused[field] == carriedOut[field] {
			t.Errorf("field %s: refused %t, carried out %t", field, refused[field], carriedOut[field])
		}
	}
	var properties struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if err := json.Unmarshal(manifest.Schema(), &properties); err != nil {
		t.Fatal(err)
	}
	for field := range properties.Properties {
		if _, shown := fields[field]; !shown && field != "privileged" && field != "artifacts" { // the last is filled in by registering
			t.Errorf("field %s of the schema is not in the example", field)
		}
	}
}

// MOD-1: the schema documents every field.
func TestSchemaDocumentsEveryField(t *testing.T) {
	var schema any
	if err := json.Unmarshal(manifest.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	documented := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		in, ok := v.(map[string]any)
		if !ok {
			return
		}
		if properties, ok := in["properties"].(map[string]any); ok && !strings.HasSuffix(path, "/if") {
			for name, p := range properties {
				if p == true { // described where the part is shared
					continue
				}
				field := p.(map[string]any)
				if field["title"] == nil || field["description"] == nil {
					t.Errorf("%s/%s has no title or description", path, name)
				}
				documented++
			}
		}
		for k, child := range in {
			walk(path+"/"+k, child)
			if list, ok := child.([]any); ok {
				for _, item := range list {
					if branch, ok := item.(map[string]any); ok && branch["if"] == nil {
						walk(path+"/"+k, item)
					}
				}
			}
		}
	}
	walk("", schema)
	if documented < 60 {
		t.Errorf("only %d fields found", documented)
	}
	if got := schema.(map[string]any)["$id"]; got != manifest.SchemaID {
		t.Errorf("$id %v", got)
	}
}

// SAFE-2: sizes and depths are bounded, and the bound is in the message.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"size":       {`{"module": "a", "description": "` + strings.Repeat("x", manifest.MaxSize) + `"}`, "at most 256 KiB"},
		"depth":      {`{"module": "a", "bus": ` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "more than 32 levels deep"},
		"content":    {`{"module": "a", "resources": [{"kind": "file", "path": "${dir}/a", "content": "` + strings.Repeat("x", 131073) + `"}]}`, "at most 131072"},
		"utf8":       {"{\"module\": \"a\xff\"}", "is not UTF-8"},
		"empty":      {"", "ends in the middle"},
		"all":        {`{"a": 1` + manyFields(300) + `}`, "and 202 more that are wrong"},
		"number":     {`{"module": "a", "ports": {"http": {"port": 1e999999999, "from": "mesh"}}}`, "at most 15 digits"},
		"resources":  {`{"module": "a", "resources": [` + strings.Repeat(`{"kind":"user","name":"a"},`, 9000) + `{"kind":"user","name":"a"}]}`, "at most 500"},
		"ports":      {`{"module": "a", "ports": {"a": {"port": 1, "from": "mesh"}` + manyFields(600) + `}}`, "at most 50"},
		"duplicates": {`{"module": "a", "claims": [` + strings.Repeat(`"a",`, 60000) + `"a"]}`, "at most 50"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifest.Parse([]byte(c.data))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if err != nil && len(err.Error()) > 40000 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

func manyFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"f%d":1`, i)
	}
	return b.String()
}

// SAFE-2: the checks behind the schema compare everything with everything, so a file with too much in it does not get there.
func TestMemoryIsBounded(t *testing.T) {
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, c := range map[string]struct{ data, want string }{
		"resources": {`{"module": "a", "resources": [{"kind":"user","name":"a"}` +
			repeat(2200, `,{"kind":"file","path":"${dir}/%d","content":""},{"kind":"process","name":"a","user":"a","command":["a"]}`) + `]}`, "resources: has 4401 entries (at most 500)"},
		"fields twice":      {`{"module": "a"` + repeat(7000, `,"f%[1]d":1,"f%[1]d":1`) + `}`, "and 6900 more that are wrong"},
		"placeholders":      {`{"module": "a"` + repeat(8000, `,"f%d":1`) + `,"resources":[{"kind":"file","path":"${dir}/a","content":"` + repeat(10000, "${%d}") + `"}]}`, "and 7900 more that are wrong"},
		"only placeholders": {`{"module": "a","resources":[{"kind":"file","path":"${dir}/a","content":"` + repeat(15000, "${%d}") + `"}]}`, "and 14900 more that are wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := manifest.Parse([]byte(c.data))
			runtime.ReadMemStats(&after)
			if len(c.data) > manifest.MaxSize || err == nil || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%d bytes: error %.2000v, want %s", len(c.data), err, c.want)
			}
			if spent := (after.TotalAlloc - before.TotalAlloc) >> 20; spent > 250 {
				t.Errorf("%d MiB allocated for a file of %d KiB", spent, len(c.data)>>10)
			}
		})
	}
}

// DEC-10: what is recorded reads back as the same, also by a process that walks maps in another order.
func TestCanonicalReadsBack(t *testing.T) {
	for _, b := range append(bundles.Base(), bundles.Extra()...) {
		m, err := manifest.Parse(b.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		again, err := manifest.Parse(m.Canonical())
		if err != nil {
			t.Fatalf("%s: canonical form: %v", b.Name, err)
		}
		if diff := cmp.Diff(m, again); diff != "" || m.Digest() != again.Digest() {
			t.Errorf("%s reads back differently:\n%s", b.Name, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.txtar")
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Files[0].Data)
	}
	for _, b := range append(bundles.Base(), bundles.Extra()...) {
		f.Add(b.Manifest)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := manifest.Parse(data)
		if err != nil {
			var errs *manifest.Errors
			if !errors.As(err, &errs) || len(errs.Problems) == 0 {
				t.Fatalf("error without problems: %v", err)
			}
			return
		}
		again, err := manifest.Parse(m.Canonical())
		if err != nil {
			t.Fatalf("canonical form is refused: %v\n%s", err, m.Canonical())
		}
		if m.Digest() != again.Digest() {
			t.Fatalf("canonical form reads back differently:\n%s\n%s", m.Canonical(), again.Canonical())
		}
	})
}
