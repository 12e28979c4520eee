package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// built is the folder of the binary, which TestMain removes.
var built string

// meshBinary builds the real binary, once for all scenarios.
var meshBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "mesh-scenarios-")
	if err != nil {
		return "", err
	}
	built = dir
	binary := filepath.Join(dir, "mesh")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./cmd/mesh")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mesh: %w\n%s", err, bytes.TrimSpace(out))
	}
	return binary, nil
})

// raise makes a bed one mesh; when the test fails, the hosts' logs are shown.
func raise(t *testing.T, bed *netns.Running) {
	t.Helper()
	binary, err := meshBinary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, host := range bed.Hosts() {
			out, _, _, err := host.Run(context.Background(), "find", "/var/lib/mesh/log", "-type", "f", "-exec", "tail", "-v", "-n", "30", "{}", "+")
			t.Logf("logs of %s (%v):\n%s", host.Name, err, out)
		}
	})
	if err := beds.Raise(t.Context(), bed, binary, t.Output()); err != nil {
		t.Fatal(err)
	}
}

// ask runs a mesh command on a host and reads its JSON.
func ask(ctx context.Context, host *netns.Host, answer any, args ...string) error {
	out, errs, code, err := host.Run(ctx, append([]string{beds.Binary}, append(args, "-o", "json")...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), answer); err != nil {
		return fmt.Errorf("mesh %s on %s: exit code %d: %w: %s", strings.Join(args, " "), host.Name, code, err, strings.TrimSpace(errs))
	}
	return nil
}

// notCurrent says which nodes of a bed are not yet current and clean, and why.
func notCurrent(ctx context.Context, bed *netns.Running) string {
	var status struct {
		Nodes []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Outcome string `json:"outcome"`
			Lost    bool   `json:"lost"`
		} `json:"nodes"`
	}
	if err := ask(ctx, bed.Hosts()[0], &status, "status"); err != nil {
		return err.Error()
	}
	var waiting []string
	for _, node := range status.Nodes {
		if !node.Current || node.Outcome != "clean" || node.Lost {
			waiting = append(waiting, fmt.Sprintf("%s: current %v, outcome %q, lost %v", node.Name, node.Current, node.Outcome, node.Lost))
		}
	}
	if len(status.Nodes) != len(bed.Hosts()) {
		waiting = append(waiting, fmt.Sprintf("%d nodes known of %d hosts", len(status.Nodes), len(bed.Hosts())))
	}
	return strings.Join(waiting, "; ")
}

// addresses are the overlay's, by node.
func addresses(ctx context.Context, hub *netns.Host) (map[string]string, error) {
	var overlay struct {
		Nodes []struct {
			Name    string `json:"name"`
			Address string `json:"address"`
		} `json:"nodes"`
	}
	if err := ask(ctx, hub, &overlay, "overlay", "show"); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, node := range overlay.Nodes {
		found[node.Name] = node.Address
	}
	if len(found) == 0 {
		return nil, errors.New("the overlay has no node")
	}
	return found, nil
}

// GEN-1, NODE-3, NET-1, NET-4, GEN-8: three fresh machines become one mesh, in which every one reaches every other by
// address and by name, and which is the same after the hub has been cut off power.
func TestThreeMachinesBecomeOneMesh(t *testing.T) {
	bed := up(t, beds.Three)
	raise(t, bed)
	hub := bed.Hosts()[0]
	waitFor(t, "every node is current", 2*time.Minute, func() string { return notCurrent(t.Context(), bed) })

	for _, host := range bed.Hosts() {
		greeter(t, host)
	}
	everyoneReachesEveryone(t, bed)

	before, err := addresses(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, hub, beds.Binary, "start")
	listen(t, hub)
	waitFor(t, "every node is current after the power cut", 2*time.Minute, func() string { return notCurrent(t.Context(), bed) })
	everyoneReachesEveryone(t, bed)
	after, err := addresses(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range before {
		if after[name] != address {
			t.Errorf("%s went from %s to %q", name, address, after[name])
		}
	}
}

func everyoneReachesEveryone(t *testing.T, bed *netns.Running) {
	t.Helper()
	overlay, err := addresses(t.Context(), bed.Hosts()[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range bed.Hosts() {
		for _, to := range bed.Hosts() {
			waitFor(t, from.Name+" reaches "+to.Name+" over the overlay", 30*time.Second, func() string {
				if why := reach(from, overlay[to.Name]); why != "" {
					return why
				}
				return reach(from, to.Name+".internal")
			})
		}
	}
}
