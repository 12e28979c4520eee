package scenarios

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/novox/mesh/lab/beds"
)

// shipped is a module whose program comes with it: the folder is all there is to register.
const shipped = `{
  "module": "shipped", "description": "A program that comes with its module",
  "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}},
  "build": {"artifacts": {"program": {"kind": "files", "files": ["bin", "conf"]}}},
  "resources": [
    {"kind": "user", "name": "shipped"},
    {"kind": "directory", "path": "${dir}/data", "owner": "shipped"},
    {"kind": "process", "name": "web", "user": "shipped", "artifact": "program",
     "command": ["./bin/current", "hello", "--listen", "${node:address}:${port:http}", "--data", "${dir}/data"],
     "ready": {"http": "http://${node:address}:${port:http}/healthz", "within": "30s"}}
  ]
}`

// BLD-6, BLD-7: a folder with a module.json and a program is registered on the hub, and the program runs on the node, out of what came
// over the artifact store; the same folder again changes nothing, a changed file is another version. List and show say what is there.
func TestModuleWithItsProgram(t *testing.T) {
	bed := up(t, beds.Pair)
	equip(t, bed)
	hub, n1 := bed.Host("hub"), bed.Host("n1")
	command(t, hub, 0, founding(hub)...)
	token, err := beds.Token(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	command(t, n1, 0, "join", token, "--name", "n1")

	folder := t.TempDir()
	for name, content := range map[string]string{"module.json": shipped, "conf/a": "first"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyTo(t, hub, folder, "/root/shipped")
	run(t, hub, "mkdir", "/root/shipped/bin")
	run(t, hub, "cp", beds.Binary, "/root/shipped/bin/program")
	run(t, hub, "ln", "-s", "program", "/root/shipped/bin/current")

	type registered struct {
		Version string
		Changed bool
	}
	var first, again, changed registered
	register := func(into *registered) {
		t.Helper()
		if err := ask(t.Context(), hub, into, "module", "register", "/root/shipped"); err != nil {
			t.Fatal(err)
		}
	}
	register(&first)
	command(t, hub, 0, "module", "assign", "shipped", "n1", "--push", "--wait")
	runs := func() string { // the program comes from the tree of an artifact
		t.Helper()
		pid := the(t, n1, "shipped", func(cmdline []string) bool {
			return strings.HasSuffix(cmdline[0], "/bin/current") && slices.Contains(cmdline, "/var/lib/mesh/modules/shipped/data")
		})
		return run(t, n1, "readlink", "/proc/"+strconv.Itoa(pid)+"/exe")
	}
	was := runs()
	if !strings.HasPrefix(was, "/var/lib/mesh/artifacts/") || !strings.HasSuffix(was, "/bin/program") {
		t.Errorf("it runs %s", was)
	}
	register(&again)
	if again.Changed || again.Version != first.Version {
		t.Errorf("registered again: %+v, first %+v", again, first)
	}

	type artifact struct{ Reference, Kind string }
	list := func() (all struct{ Artifacts []artifact }) {
		t.Helper()
		if err := ask(t.Context(), hub, &all, "artifact", "list", "shipped"); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := list().Artifacts
	if len(all) != 1 || all[0].Kind != "files" || !strings.HasPrefix(all[0].Reference, "artifact-store://shipped/program@sha256:") {
		t.Fatalf("listed %+v", all)
	}
	var shown struct{ Modules, Nodes []string }
	if err := ask(t.Context(), hub, &shown, "artifact", "show", all[0].Reference); err != nil || strings.Join(append(shown.Modules, shown.Nodes...), " ") != "shipped n1" {
		t.Errorf("shown %+v, %v", shown, err)
	}
	out, _ := command(t, hub, 0, "artifact", "push", "shipped/program", "/root/shipped/conf")
	if !strings.HasPrefix(out, "artifact-store://shipped/program@sha256:") || strings.Count(out, "\n") != 1 || len(list().Artifacts) != 2 {
		t.Errorf("pushed by hand: %q, %d in the store", out, len(list().Artifacts))
	}

	run(t, hub, "cp", "/root/shipped/module.json", "/root/shipped/conf/a")
	register(&changed)
	if !changed.Changed || changed.Version == first.Version {
		t.Errorf("registered with another file: %+v", changed)
	}
	command(t, hub, 0, "push", "--wait")
	if now := runs(); now == was || !strings.HasSuffix(now, "/bin/program") {
		t.Errorf("after the push it runs %s, before %s", now, was)
	}

	// Without a certificate nobody gets it.
	digest := all[0].Reference[strings.Index(all[0].Reference, "@")+1:]
	if out := run(t, n1, "curl", "-sk", "https://hub.internal:4281/v2/shipped/program/manifests/"+digest); !strings.Contains(out, "UNAUTHORIZED") {
		t.Errorf("without a certificate: %s", out)
	}
}
