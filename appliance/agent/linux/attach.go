package linux

import (
	"context"
	"slices"
	"strconv"
	"syscall"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
)

// beside is a command that runs as the process does: its user, its folder, its environment, and its cgroup while it runs, so that nothing of
// a module is in the agent's, and what the command leaves behind ends with the process (DEC-8).
func (e processes) beside(ctx context.Context, r wire.Resource, command []string) (run.Command, error) {
	w, err := e.wanted(r)
	if err != nil {
		return run.Command{}, err
	}
	if len(command) == 0 {
		return run.Command{}, appliance.Errorf(appliance.Invalid, "run beside %s: no command", r.ID)
	}
	program, err := e.find(command[0], w.spec.Directory)
	if err != nil {
		return run.Command{}, err
	}
	c := run.Command{Program: program, Arguments: command[1:], Directory: w.spec.Directory,
		As: &syscall.Credential{Uid: w.spec.UID, Gid: w.spec.GID, Groups: w.spec.Groups}}
	for name, value := range w.spec.Environment {
		c.Environment = append(c.Environment, name+"="+value)
	}
	slices.Sort(c.Environment)
	if is, err := e.keeper.status(ctx, w.named); err == nil && is.PID > 0 {
		c.Group = run.Group(is.PID)
	}
	return c, nil
}

func (e processes) Exec(ctx context.Context, r wire.Resource, a host.Attachment) (int, error) {
	c, err := e.beside(ctx, r, a.Command)
	if err != nil {
		return 0, err
	}
	attached := run.Attached{Command: c, Stdin: a.Stdin, Stdout: a.Stdout, Stderr: a.Stderr, Terminal: a.Terminal, Resize: a.Resize}
	if a.Terminal != nil {
		attached.Environment = append(attached.Environment, "TERM="+a.Term)
	}
	return run.Attach(ctx, attached)
}

func (e processes) Follow(ctx context.Context, r wire.Resource, n int, follow bool, emit func([]byte) error) error {
	p, _, err := e.named(r)
	if err != nil {
		return err
	}
	return e.keeper.follow(ctx, p, n, follow, emit)
}

func (s supervisors) follow(ctx context.Context, p named, n int, follow bool, emit func([]byte) error) error {
	return supervise.Follow(ctx, s.dir(p), n, follow, emit)
}

func (s systemd) follow(ctx context.Context, p named, n int, follow bool, emit func([]byte) error) error {
	arguments := []string{"--unit", s.unitName(p), "--lines", strconv.Itoa(n), "--output", "cat", "--no-pager", "--quiet"}
	if follow {
		arguments = append(arguments, "--follow")
	}
	return run.Lines(ctx, run.Command{Program: "journalctl", Arguments: arguments}, emit)
}
