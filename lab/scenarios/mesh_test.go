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

// meshBinary builds the real binary, once for all scenarios; oldBinary one that says it understands wire version 0 only.
var (
	meshBinary = sync.OnceValues(func() (string, error) { return build("mesh", "") })
	oldBinary  = sync.OnceValues(func() (string, error) { return build("mesh-old", "-X main.claimWire=0") })
)

func build(name, ldflags string) (string, error) {
	if built == "" {
		dir, err := os.MkdirTemp("", "mesh-scenarios-")
		if err != nil {
			return "", err
		}
		built = dir
	}
	binary := filepath.Join(built, name)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", ldflags, "-o", binary, "./cmd/mesh")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, bytes.TrimSpace(out))
	}
	return binary, nil
}

// equip puts the mesh on every host of a bed; when the test fails, the hosts' logs are shown.
func equip(t *testing.T, bed *netns.Running) {
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
			out, _, _, err := host.Run(context.Background(), "find", "/var/lib/mesh/run", "-name", "log", "-type", "f", "-exec", "tail", "-v", "-n", "30", "{}", "+")
			t.Logf("logs of %s (%v):\n%s", host.Name, err, out)
		}
	})
	if err := beds.Install(t.Context(), bed, binary); err != nil {
		t.Fatal(err)
	}
}

// command runs a mesh command on a host, which must end with the code, and returns what it said on both outputs.
func command(t *testing.T, host *netns.Host, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	out, errs, got, err := host.Run(t.Context(), beds.Line(args...)...)
	if err != nil || got != code {
		t.Fatalf("mesh %s on %s: exit code %d, not %d: %v\n%s%s", strings.Join(args, " "), host.Name, got, code, err, out, errs)
	}
	return out, errs
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

// status is what scenarios read of `mesh status -o json`.
type status struct {
	Mesh  struct{ ID, Name string }
	Nodes []nodeStatus
}

type nodeStatus struct {
	Name, Number, Declared, Outcome, Health string
	LastSeen                                time.Time
	Current, Lost                           bool
	Unpushed                                int
	Instances                               []struct{ Name, Health string }
	Kept                                    []struct{ Instance, Path string }
	Warnings                                []struct{ Code, Severity, Text, Remedy string }
	Failures                                []struct{ ID, Status, Step, Error string }
}

func (s status) node(name string) nodeStatus {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nodeStatus{}
}

func statusOf(t *testing.T, hub *netns.Host) status {
	t.Helper()
	var s status
	if err := ask(t.Context(), hub, &s, "status"); err != nil {
		t.Fatal(err)
	}
	return s
}

// notCurrent says which nodes of the mesh are not yet current, clean and healthy, or were not heard of since.
func notCurrent(ctx context.Context, hub *netns.Host, nodes int, since time.Time) string {
	var s status
	if err := ask(ctx, hub, &s, "status"); err != nil {
		return err.Error()
	}
	var waiting []string
	for _, n := range s.Nodes {
		if !n.Current || n.Outcome != "clean" || n.Health != "healthy" || n.Lost || !n.LastSeen.After(since) {
			waiting = append(waiting, fmt.Sprintf("%s: current %v, outcome %q, health %q, lost %v, seen %s", n.Name, n.Current, n.Outcome, n.Health, n.Lost, n.LastSeen))
		}
	}
	if len(s.Nodes) != nodes {
		waiting = append(waiting, fmt.Sprintf("%d nodes known of %d", len(s.Nodes), nodes))
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
