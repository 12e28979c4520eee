package services

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
)

const unitFolder = "/etc/systemd/system"

// systemd runs the agent as a unit.
type systemd struct{ install installation.Installation }

func (s systemd) Kind() string { return "systemd" }

// unit names the agent's unit; an installation elsewhere than in the default folder has its own.
func (s systemd) unit() string {
	if s.install.Dir == installation.Default {
		return "mesh-agent.service"
	}
	return "mesh-agent-" + appliance.DigestOf([]byte(s.install.Dir)).Short() + ".service"
}

func (s systemd) Logs() string { return "journalctl --unit 'mesh*' --lines 50" }

// Unit is the text of the agent's unit. KillMode=process: what the agent brought up outlives it.
func Unit(i installation.Installation) string {
	return fmt.Sprintf(`[Unit]
Description=Mesh agent (%[1]s)
After=network.target
StartLimitIntervalSec=0

[Service]
ExecStart=%[2]s agent --state %[1]s
Environment=GOMEMLIMIT=64MiB
Restart=always
RestartSec=1
KillMode=process
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
`, i.Dir, i.Binary())
}

func (s systemd) Start(ctx context.Context) error {
	if err := durable.WriteFile(filepath.Join(unitFolder, s.unit()), []byte(Unit(s.install)), 0o644); err != nil {
		return err
	}
	return withSystemd(ctx, func(c *dbus.Conn) error {
		if err := c.ReloadContext(ctx); err != nil {
			return err
		}
		if _, _, err := c.EnableUnitFilesContext(ctx, []string{s.unit()}, false, true); err != nil {
			return err
		}
		return job(ctx, func(done chan<- string) (int, error) { return c.RestartUnitContext(ctx, s.unit(), "replace", done) })
	})
}

func (s systemd) StopAgent(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(unitFolder, s.unit())); os.IsNotExist(err) {
		return nil
	}
	return stopUnit(ctx, s.unit())
}

func (s systemd) Remove(ctx context.Context) error {
	path := filepath.Join(unitFolder, s.unit())
	return withSystemd(ctx, func(c *dbus.Conn) error {
		if _, err := os.Stat(path); err == nil {
			if err := job(ctx, func(done chan<- string) (int, error) { return c.StopUnitContext(ctx, s.unit(), "replace", done) }); err != nil {
				return err
			}
			if _, err := c.DisableUnitFilesContext(ctx, []string{s.unit()}, false); err != nil {
				return err
			}
			if err := os.Remove(path); err != nil {
				return err
			}
		} else if !os.IsNotExist(err) {
			return err
		}
		_ = c.ResetFailedUnitContext(ctx, s.unit()) // it may not have failed
		return c.ReloadContext(ctx)
	})
}

func (s systemd) Running(ctx context.Context) (running bool, err error) {
	err = withSystemd(ctx, func(c *dbus.Conn) error {
		p, err := c.GetUnitPropertyContext(ctx, s.unit(), "ActiveState")
		running = err == nil && p.Value.Value() == "active"
		return err
	})
	return running, err
}

func stopUnit(ctx context.Context, unit string) error {
	return withSystemd(ctx, func(c *dbus.Conn) error {
		return job(ctx, func(done chan<- string) (int, error) { return c.StopUnitContext(ctx, unit, "replace", done) })
	})
}

func withSystemd(ctx context.Context, f func(*dbus.Conn) error) error {
	c, err := dbus.NewSystemConnectionContext(ctx)
	if err != nil {
		return appliance.Errorf(appliance.Unavailable, "reach systemd: %w", err)
	}
	defer c.Close()
	if err := f(c); err != nil {
		return fmt.Errorf("ask systemd: %w", err)
	}
	return nil
}

// job waits for a job's end.
func job(ctx context.Context, begin func(chan<- string) (int, error)) error {
	done := make(chan string, 1)
	if _, err := begin(done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("the job ended as %s", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
