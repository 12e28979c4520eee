package main

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/novox/mesh/lab/netns"
)

func TestMain(m *testing.M) {
	// The first process of a host is this binary under its own name, not as a script's `lab`.
	if len(os.Args) > 1 && os.Args[1] == netns.InitCommand {
		main()
		return
	}
	testscript.Main(m, map[string]func(){"lab": main})
}

// LAB-1: `lab up`, `lab exec` and `lab down`, as one types them.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for its namespaces: run the tests as root, as .ci/run does")
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			dir := env.WorkDir + "/beds"
			env.Setenv("LAB_DIR", dir)
			env.Defer(func() { // what a failed script leaves standing
				found, err := netns.List(dir)
				if err != nil {
					t.Error(err)
				}
				for _, bed := range found {
					if err := bed.Down(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
			return nil
		},
	})
}
