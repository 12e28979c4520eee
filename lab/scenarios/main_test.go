package scenarios

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/netns"
)

// This binary is also the first process of every host, a small program that hosts are probed with, and an owner of a
// bed for a test to kill.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case netns.InitCommand:
			os.Exit(netns.Init(os.Args[2:]))
		case probeCommand:
			os.Exit(probe(os.Args[2:]))
		case ownerCommand:
			os.Exit(owner(os.Args[2]))
		}
	}
	code := m.Run()
	os.RemoveAll(built)
	if _, err := netns.Sweep(context.Background(), netns.DefaultDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// needLab skips where no bed can be raised.
func needLab(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for its namespaces: run the tests as root, as .ci/run does")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("the lab needs /dev/net/tun: run `modprobe tun` first, as root")
	}
}

// up raises a bed that goes with the test.
func up(t *testing.T, bed netns.Bed) *netns.Running {
	t.Helper()
	needLab(t)
	running, err := netns.Up(t.Context(), bed, netns.DefaultDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return running
}

// run runs a program on a host and returns its trimmed output.
func run(t *testing.T, host *netns.Host, argv ...string) string {
	t.Helper()
	out, errs, code, err := host.Run(t.Context(), argv...)
	if err != nil || code != 0 {
		t.Fatalf("%q on %s: exit code %d: %v: %s", argv, host.Name, code, err, errs)
	}
	return strings.TrimSpace(out)
}

// waitFor polls until reason returns nothing; what it returned last is what the failure says.
func waitFor(t *testing.T, what string, within time.Duration, reason func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for {
		why := reason()
		if why == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not after %s: %s", what, within, why)
		case <-t.Context().Done():
			t.Fatalf("%s: the test ended: %s", what, why)
		}
	}
}
