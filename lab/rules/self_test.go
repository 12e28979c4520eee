package rules

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Each check finds what it is for in a tree made wrong on purpose, and is silent about its rightful counterpart.
func TestChecksFindWhatTheyAreFor(t *testing.T) {
	imports := func(pkg, path string) string {
		return "// Package " + pkg + " is.\npackage " + pkg + "\n\nimport _ \"" + path + "\"\n"
	}
	for _, tc := range []struct {
		name, path, text string
		check            func([]source) []string
		right            string // the same text in its rightful place
	}{
		{"broker", "appliance/controller/x.go", imports("x", "github.com/nats-io/nats-server/v2/server"), keptImports, "embedded/natsd/x.go"},
		{"bus in a test", "appliance/store/x_test.go", imports("x", "github.com/nats-io/nats.go"), keptImports, "embedded/natsd/x_test.go"},
		{"database", "genesis/x.go", imports("x", "github.com/jackc/pgx/v5/pgxpool"), keptImports, "appliance/store/storetest/x.go"},
		{"tunnel", "appliance/agent/linux/x.go", imports("x", "github.com/tailscale/wireguard-go/device"), keptImports, "embedded/wg/x.go"},
		{"command line", "genesis/x.go", imports("x", "github.com/spf13/cobra"), keptImports, "cmd/mesh/x.go"},
		{"program", "appliance/controller/x.go", imports("x", "os/exec"), keptImports, "appliance/agent/linux/x.go"},
		{"lab", "appliance/agent/x_test.go", imports("x", module+"/lab/netns"), keptImports, "lab/scenarios/x_test.go"},
		{"embedded", "embedded/natsd/x.go", imports("x", module+"/appliance/wire"), keptDirections, "appliance/bus/x.go"},
		{"bundles", "bundles/x.go", imports("x", module+"/appliance"), keptDirections, "appliance/manifest/x.go"},
		{"controller", "appliance/controller/x.go", imports("x", module+"/appliance/agent"), keptDirections, "cmd/mesh/x.go"},
		{"agent", "appliance/agent/linux/x.go", imports("x", module+"/appliance/controller"), keptDirections, "cmd/mesh/x.go"},
		{"domain", "appliance/overlay/x.go", imports("x", module+"/appliance/agent"), keptDirections, "cmd/mesh/x.go"},
		{"pure", "appliance/resolve/x.go", imports("x", "time"), keptDirections, "appliance/pki/x.go"},
		{"vocabulary", "appliance/x.go", imports("x", "golang.org/x/sys/unix"), keptDirections, "appliance/durable/x.go"},
		{"no comment", "appliance/x/x.go", "package x\n", packageComments, "appliance/x/x_test.go"},
		{"exit", "genesis/x.go", "package x\n\nfunc f() { os.Exit(1) }\n", exits, "cmd/mesh/x.go"},
		{"shell", "cmd/mesh/x.go", "package x\n\nvar argv = []string{\"/bin/sh\", \"-c\", \"true\"}\n", shells, "cmd/mesh/x_test.go"},
		{"shell line", "cmd/mesh/x.go", "package x\n\nvar line = \"exec bash -c true\"\n", shells, "cmd/mesh/x_test.go"},
		{"sleep", "lab/scenarios/x_test.go", "package x\n\nfunc f() { time.Sleep(1) }\n", sleeps, "embedded/wg/x_test.go"},
		{"long", "cmd/mesh/x.go", "package x\n" + strings.Repeat("\n", maxLines), longFiles, "cmd/mesh/x_test.go"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for path, want := range map[string]int{tc.path: 1, tc.right: 0} {
				sources, err := parse(fstest.MapFS{path: {Data: []byte(tc.text)}})
				if err != nil {
					t.Fatal(err)
				}
				if found := tc.check(sources); len(found) != want {
					t.Errorf("%s: %d found, want %d: %v", path, len(found), want, found)
				}
			}
		})
	}
}

func TestTreeChecksFindWhatTheyAreFor(t *testing.T) {
	tree := fstest.MapFS{
		"util/x.go":                   {Data: []byte("package util\n")},
		"appliance/x.go":              {Data: []byte("package appliance\n")},
		"bundles/extra/x/module.json": {Data: []byte(`{"image": "quay.io/x"}`)},
		"appliance/x_test.go":         {Data: []byte("package appliance // SAFE-1, SAFE-99\n")},
	}
	if found, err := unknownFolders(tree); err != nil || len(found) != 1 {
		t.Errorf("folders: %v, %v", found, err)
	}
	if found, err := foreignRegistries(tree); err != nil || len(found) != 1 {
		t.Errorf("registries: %v, %v", found, err)
	}
	names, unknown, err := named(tree, []string{"SAFE-1", "SAFE-2"})
	if err != nil || !names["SAFE-1"] || names["SAFE-2"] || len(unknown) != 1 {
		t.Errorf("rules: named %v, unknown %v, %v", names, unknown, err)
	}
	if ids := strings.Fields(rulesText); len(slices.Compact(slices.Sorted(slices.Values(ids)))) != len(ids) {
		t.Error("rules.txt has an id twice")
	}
}
