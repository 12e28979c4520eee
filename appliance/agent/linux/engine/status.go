package engine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

const maxSaid = 4 << 10 // kept of what a check says

// one gives the container of a resource, nil where there is none.
func (e *Engine) one(ctx context.Context, r wire.Resource) (*connection, wanted, *container.InspectResponse, error) {
	w, err := e.named(r)
	if err != nil {
		return nil, w, nil, err
	}
	c, ours, err := e.find(ctx, w)
	if err != nil || len(ours) == 0 {
		return c, w, nil, err
	}
	return c, w, &ours[0], nil
}

// Status says how the container is, by the engine's account.
func (e *Engine) Status(ctx context.Context, r wire.Resource) (host.Running, error) {
	c, _, have, err := e.one(ctx, r)
	if err != nil {
		return host.Running{}, err
	}
	defer c.Close()
	if have == nil {
		return host.Running{State: "missing"}, nil
	}
	s := host.Running{PID: have.State.Pid, Since: moment(have.State.StartedAt), Restarts: e.restarted(have)}
	switch have.State.Status {
	case container.StateRunning:
		s.State = "running"
	case container.StateRestarting:
		s.State = "backoff"
	case container.StatePaused:
		s.State = "paused"
	default:
		s.State = "stopped"
	}
	return s, nil
}

// restarts are when the engine was seen to have started a container again. It counts, and keeps no times.
type restarts struct {
	id    string
	count int
	seen  []time.Time
}

// restarted gives how often that was within the last ten minutes.
func (e *Engine) restarted(have *container.InspectResponse) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	resource := have.Config.Labels[labelResource]
	r := e.restarts[resource]
	if r.id != have.ID {
		r = restarts{id: have.ID, count: have.RestartCount}
	}
	for range min(max(0, have.RestartCount-r.count), 100) {
		r.seen = append(r.seen, time.Now())
	}
	r.count = have.RestartCount
	r.seen = slices.DeleteFunc(r.seen, func(t time.Time) bool { return time.Since(t) > 10*time.Minute })
	e.restarts[resource] = r
	return len(r.seen)
}

// Act does what a change asks for. What an operator has stopped takes it up when it is started.
func (e *Engine) Act(ctx context.Context, r wire.Resource, action string) error {
	c, w, have, err := e.one(ctx, r)
	if err != nil {
		return err
	}
	defer c.Close()
	switch {
	case have == nil:
		return appliance.Errorf(appliance.NotFound, "%s %s: there is no such container", action, r.ID)
	case w.spec.Stopped:
		return nil
	case action == "restart" || action == "reload" || action == "signal":
	default:
		return appliance.Errorf(appliance.Invalid, "container %s: unknown action %s", r.ID, appliance.Quote(action))
	}
	ctx, cancel := context.WithTimeout(ctx, changing(*have))
	defer cancel()
	if action == "restart" || w.stale(have) {
		_, err = c.ContainerRestart(ctx, have.ID, client.ContainerRestartOptions{})
		return failed("restart container "+w.name, err)
	}
	signal := "HUP"
	if action == "signal" {
		signal = cmp.Or(w.spec.Signal, signal)
	}
	_, err = c.ContainerKill(ctx, have.ID, client.ContainerKillOptions{Signal: "SIG" + signal})
	return failed("signal container "+w.name, err)
}

// stale says whether the container sees another file than lies at a mount's source now: files are replaced whole, and one that is mounted
// by itself is the old one until the container starts anew. Then no signal helps.
func (w wanted) stale(have *container.InspectResponse) bool {
	for _, m := range w.spec.Mounts {
		now, err := os.Stat(m.Source)
		if err != nil || !now.Mode().IsRegular() {
			continue
		}
		inside, err := os.Stat(filepath.Join("/proc", strconv.Itoa(have.State.Pid), "root", m.Target))
		if err != nil || !os.SameFile(now, inside) {
			return true
		}
	}
	return false
}

// Check runs a command inside, as the container's user.
func (e *Engine) Check(ctx context.Context, r wire.Resource, command []string) error {
	var said said
	code, err := e.Exec(ctx, r, host.Attachment{Command: command, Stdout: &said, Stderr: &said})
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, strings.ToValidUTF8(strings.TrimSpace(string(said)), "\uFFFD"))
	}
	if err != nil {
		return fmt.Errorf("check %s: %w", r.ID, err)
	}
	return nil
}

// said keeps the beginning of what a check says.
type said []byte

func (s *said) Write(p []byte) (int, error) {
	*s = append(*s, p[:min(len(p), maxSaid-len(*s))]...)
	return len(p), nil
}
