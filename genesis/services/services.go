// Package services makes the mesh's own processes start with the machine: systemd units where systemd is PID 1, an OpenRC script where
// that is, detached processes under our supervisor elsewhere. Modules' processes are the agent's, not these.
package services

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/supervise"
)

// Services are the processes of one installation.
type Services interface {
	// Start starts the agent, now and at every boot; the hub's own process is a resource that the agent brings up.
	Start(ctx context.Context) error
	// StopAgent stops the agent and leaves everything else running.
	StopAgent(ctx context.Context) error
	// Remove stops the agent for good: nothing starts it at boot any more.
	Remove(ctx context.Context) error
	// Running says whether the agent runs.
	Running(ctx context.Context) (bool, error)
	// Logs is the command that shows what the mesh's processes said.
	Logs() string
	// Kind names the init: systemd, openrc, detached.
	Kind() string
}

// For chooses by what is PID 1 on this machine.
func For(i installation.Installation) Services {
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		return systemd{i}
	}
	if _, err := os.Stat("/run/openrc/softlevel"); err == nil {
		return openrc{detached{i}, "/"}
	}
	return detached{i}
}

// detached runs the agent under our own supervisor; a reboot starts nothing.
type detached struct{ install installation.Installation }

func (d detached) Kind() string { return "detached" }

func (d detached) Logs() string {
	return fmt.Sprintf("tail -n 30 %s %s", filepath.Join(d.dir(), "log"), filepath.Join(d.install.Run(), "process", "*", "log"))
}

func (d detached) dir() string { return filepath.Join(d.install.Run(), "agent") }

func (d detached) Start(ctx context.Context) error {
	return supervise.Start(ctx, d.dir(), supervise.Spec{
		Command: []string{d.install.Binary(), "agent", "--state", d.install.Dir}, Directory: "/", Restart: supervise.Always,
		Environment: map[string]string{"GOMEMLIMIT": "64MiB"},
	}, Supervisor(d.install))
}

func (d detached) StopAgent(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(d.dir(), "spec.json")); os.IsNotExist(err) {
		return nil
	}
	return supervise.Terminate(ctx, d.dir())
}

func (d detached) Remove(ctx context.Context) error { return supervise.Remove(ctx, d.dir()) }

func (d detached) Running(ctx context.Context) (bool, error) {
	s, err := supervise.Get(ctx, d.dir())
	return s.State == "running", err
}

// Supervisor is the command of a supervisor; its folder comes behind it.
func Supervisor(i installation.Installation) []string { return []string{i.Binary(), "supervise"} }
