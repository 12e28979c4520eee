package beds

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/novox/mesh/lab/netns"
)

// Binary is where Install puts the mesh on a host.
const Binary = "/usr/local/bin/mesh"

// Line is a mesh command for a host. A bed needs little space, however full the disk it lies on is.
func Line(args ...string) []string {
	if len(args) > 0 && (args[0] == "genesis" || args[0] == "join") && !slices.Contains(args, "--least-free") {
		args = append(args[:len(args):len(args)], "--least-free", "16M")
	}
	return append([]string{Binary}, args...)
}

// Install copies the mesh binary to every host.
func Install(ctx context.Context, bed *netns.Running, binary string) error {
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	for _, host := range bed.Hosts() {
		if err := host.Put(ctx, Binary, content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Raise installs the mesh, makes the first host its hub and joins the others to it under their own names.
func Raise(ctx context.Context, bed *netns.Running, binary string, progress io.Writer) error {
	if err := Install(ctx, bed, binary); err != nil {
		return err
	}
	hub := bed.Hosts()[0]
	if err := run(ctx, hub, progress, nil, "genesis", "--name", "lab", "--endpoint", hub.Address.String(), "--yes"); err != nil {
		return err
	}
	for _, node := range bed.Hosts()[1:] {
		token, err := Token(ctx, hub)
		if err != nil {
			return err
		}
		if err := run(ctx, node, progress, strings.NewReader(token), "join", "-", "--name", node.Name); err != nil {
			return err
		}
	}
	return nil
}

// Token asks the hub for a token to join with.
func Token(ctx context.Context, hub *netns.Host) (string, error) {
	out, errs, code, err := hub.Run(ctx, Binary, "token", "create", "-o", "json")
	if err != nil {
		return "", err
	}
	if code != 0 {
		return "", fmt.Errorf("create token on %s: exit code %d: %s", hub.Name, code, strings.TrimSpace(errs))
	}
	var answer struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Token == "" {
		return "", fmt.Errorf("create token on %s: answer without a token", hub.Name)
	}
	return answer.Token, nil
}

func run(ctx context.Context, host *netns.Host, progress io.Writer, stdin io.Reader, args ...string) error {
	fmt.Fprintf(progress, "%s: mesh %s\n", host.Name, strings.Join(args, " "))
	cmd := host.Command(ctx, Line(args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, progress, progress
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mesh %s on %s: %w", args[0], host.Name, err)
	}
	return nil
}
