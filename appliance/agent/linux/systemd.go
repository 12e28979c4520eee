package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/supervise"
)

// systemd keeps each process as a unit of its own, where systemd is PID 1.
type systemd struct{ Config }

const unitFolder = "/etc/systemd/system"

func (s systemd) path(p named) string { return filepath.Join(unitFolder, s.unitName(p)) }

// pending is there while a changed unit is not restarted yet, so that a kill in between is made good.
func (s systemd) pending(p named) string {
	return filepath.Join(s.Installation.Run(), "restart-"+s.unitName(p))
}

func connect(ctx context.Context) (*dbus.Conn, error) {
	conn, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return nil, appliance.Errorf(appliance.Unavailable, "talk to systemd: %w", err)
	}
	return conn, nil
}

func (s systemd) observe(ctx context.Context, p wanted) (host.Observation, error) {
	have, err := os.ReadFile(s.path(p.named))
	if os.IsNotExist(err) {
		return host.Observation{}, nil
	}
	if err != nil {
		return host.Observation{}, err
	}
	o := host.Observation{Present: true}
	_, pending := os.Lstat(s.pending(p.named))
	running, err := s.status(ctx, p.named)
	switch {
	case err != nil:
		return o, err
	case string(have) != unit(p):
		o.Differs = "definition"
	case p.stopped && (running.State != "stopped" || s.enabled(p.named)):
		o.Differs = running.State + ", want stopped"
	case p.stopped:
	case pending == nil:
		o.Differs = "not restarted since it changed"
	case !s.enabled(p.named):
		o.Differs = "not started with the machine"
	case running.State == "missing", running.State == "stopped" && (p.spec.Restart == supervise.Always || running.Since.IsZero()):
		o.Differs = running.State + ", want running"
	}
	o.Matches = o.Differs == ""
	return o, nil
}

func (s systemd) start(ctx context.Context, p wanted) error {
	o, err := s.observe(ctx, p)
	if err != nil || o.Matches {
		return err
	}
	text, path, name := unit(p), s.path(p.named), s.unitName(p.named)
	have, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	if madeOf(string(have)) != madeOf(text) {
		if err := os.MkdirAll(s.Installation.Run(), 0o755); err != nil {
			return err
		}
		if err := durable.WriteFile(s.pending(p.named), nil, 0o600); err != nil {
			return err
		}
	}
	if string(have) != text {
		if err := durable.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("reload systemd: %w", err)
	}
	if _, _, err := conn.EnableUnitFilesContext(ctx, []string{name}, false, true); err != nil {
		return fmt.Errorf("enable %s: %w", name, err)
	}
	begin := conn.StartUnitContext
	if _, err := os.Lstat(s.pending(p.named)); err == nil {
		begin = conn.RestartUnitContext
	}
	if err := job(ctx, name, begin); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := os.Remove(s.pending(p.named)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// enabled says whether the unit is started with the machine.
func (s systemd) enabled(p named) bool {
	_, err := os.Lstat(filepath.Join(unitFolder, target+".wants", s.unitName(p)))
	return err == nil
}

// halt has the unit there, and neither running nor started with the machine.
func (s systemd) halt(ctx context.Context, p wanted) error {
	o, err := s.observe(ctx, p)
	if err != nil || o.Matches {
		return err
	}
	name := s.unitName(p.named)
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if running, err := s.status(ctx, p.named); err != nil {
		return err
	} else if running.State != "missing" { // by the definition with which it was started
		if err := job(ctx, name, conn.StopUnitContext); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	if err := durable.WriteFile(s.path(p.named), []byte(unit(p)), 0o644); err != nil {
		return err
	}
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("reload systemd: %w", err)
	}
	if _, err := conn.DisableUnitFilesContext(ctx, []string{name}, false); err != nil {
		return fmt.Errorf("disable %s: %w", name, err)
	}
	conn.ResetFailedUnitContext(ctx, name) // it may not have failed
	if err := os.Remove(s.pending(p.named)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// job waits for one of systemd's jobs.
func job(ctx context.Context, name string, ask func(context.Context, string, string, chan<- string) (int, error)) error {
	result := make(chan string, 1)
	if _, err := ask(ctx, name, "replace", result); err != nil {
		return err
	}
	select {
	case r := <-result:
		if r != "done" {
			return appliance.Errorf(appliance.NotReady, "systemd's job ended as %s", r)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s systemd) remove(ctx context.Context, p named) error {
	name := s.unitName(p)
	if _, err := os.Lstat(s.path(p)); os.IsNotExist(err) {
		return nil
	}
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if running, err := s.status(ctx, p); err != nil {
		return err
	} else if running.State != "missing" {
		if err := job(ctx, name, conn.StopUnitContext); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	if _, err := conn.DisableUnitFilesContext(ctx, []string{name}, false); err != nil {
		return fmt.Errorf("disable %s: %w", name, err)
	}
	for _, path := range []string{s.pending(p), s.path(p)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	conn.ResetFailedUnitContext(ctx, name) // it may not have failed
	return conn.ReloadContext(ctx)
}

func (s systemd) status(ctx context.Context, p named) (host.Running, error) {
	name := s.unitName(p)
	conn, err := connect(ctx)
	if err != nil {
		return host.Running{}, err
	}
	defer conn.Close()
	properties, err := conn.GetAllPropertiesContext(ctx, name)
	if err != nil {
		return host.Running{}, fmt.Errorf("look at %s: %w", name, err)
	}
	return running(properties), nil
}

// running reads a unit's properties.
func running(properties map[string]any) host.Running {
	text := func(name string) string { s, _ := properties[name].(string); return s }
	var r host.Running
	if started, _ := properties["ExecMainStartTimestamp"].(uint64); started > 0 {
		r.Since = time.UnixMicro(int64(started)).UTC()
	}
	restarts, _ := properties["NRestarts"].(uint32)
	r.Restarts = int(restarts) // since somebody last started the unit: systemd keeps no times
	switch state := text("ActiveState"); {
	case text("LoadState") == "not-found":
		return host.Running{State: "missing"}
	case state == "active" || state == "reloading" || state == "deactivating":
		r.State = "running"
		pid, _ := properties["MainPID"].(uint32)
		r.PID = int(pid)
	case state == "activating":
		r.State = "backoff"
	default:
		r.State = "stopped"
	}
	return r
}

func (s systemd) restart(ctx context.Context, p named) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := job(ctx, s.unitName(p), conn.RestartUnitContext); err != nil {
		return fmt.Errorf("restart %s: %w", s.unitName(p), err)
	}
	return nil
}

func (s systemd) signal(ctx context.Context, p named, name string) error {
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.KillUnitWithTarget(ctx, s.unitName(p), dbus.Main, int32(supervise.Signals[name])); err != nil {
		return fmt.Errorf("signal %s: %w", s.unitName(p), err)
	}
	return nil
}

func (s systemd) log(ctx context.Context, p named, n int) ([]string, error) {
	out, err := run.Output(ctx, run.Command{Program: "journalctl", Arguments: []string{"--unit", s.unitName(p), "--lines", strconv.Itoa(n), "--output", "cat", "--no-pager", "--quiet"}})
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimRight(string(out), "\n"), "\n"), nil
}
