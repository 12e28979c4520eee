// Package linux is the real machine: it makes packages, users, folders, files, processes and the overlay true on a Linux host, as root.
// What to make, in which order, and what became of it is the agent's; nothing here knows a mesh, a declaration or a report.
package linux

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
)

// Config says for which installation the machine works.
type Config struct {
	Installation installation.Installation // required
	Mesh         appliance.MeshID          // required: gives the overlay's interface its name
	Node         appliance.NodeName        // required: MESH_NODE of processes
	Version      string                    // of this binary, for the capabilities
	HostsFile    string                    // empty: /etc/hosts
	Logger       *slog.Logger              // nil: the default one
}

// New gives the machine. It changes nothing yet.
func New(c Config) (host.Machine, error) {
	if os.Geteuid() != 0 {
		return host.Machine{}, appliance.Errorf(appliance.Denied, "work on this machine: not root").
			WithHint("users, packages and the overlay need root").WithNext("sudo mesh …")
	}
	if !filepath.IsAbs(c.Installation.Dir) || !c.Mesh.Valid() || c.Node == "" {
		return host.Machine{}, appliance.Errorf(appliance.Invalid, "work on this machine: state folder %s, mesh %s and node %s must all be known",
			appliance.Quote(c.Installation.Dir), appliance.Quote(string(c.Mesh)), appliance.Quote(string(c.Node)))
	}
	if c.HostsFile == "" {
		c.HostsFile = "/etc/hosts"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	data := &dataList{path: filepath.Join(c.Installation.Node(), "data.json")}
	net, containers := newOverlay(c), newEngine(c)
	tree := trees{c.Installation, &seenFiles{times: map[string]int64{}}}
	return host.Machine{
		Effectors: map[wire.ResourceKind]host.Effector{
			wire.Package:     packages{},
			wire.User:        leavingUsers{users{data}, &belongings{}},
			wire.Directory:   directories{data, filepath.Join(c.Installation.Dir, "modules")},
			wire.File:        files{},
			wire.Certificate: certificates{},
			wire.Artifact:    tree,
			wire.Trust:       trusted{c.Mesh},
		},
		Size:    size,
		Request: request,
		Collect: func(ctx context.Context, keep []appliance.Digest) error {
			return errors.Join(tree.collect(ctx, keep), containers.Collect(ctx, keep))
		},
		Processes:    processes{c, keeperFor(c)},
		Containers:   containers,
		Overlay:      net,
		Capabilities: capabilities(c, containers.Runtime, containers.Had),
		Warnings:     net.warnings,
		MachineID:    machineID,
		Space:        func() (disk.Space, error) { return disk.Look(c.Installation.Dir) },
		Tidy:         func(ctx context.Context) error { supervise.Tidy(); return containers.Collect(ctx, nil) },
	}, nil
}

// read gives the resource's spec.
func read[T any](r wire.Resource) (spec T, err error) {
	if err := json.Unmarshal(r.Spec, &spec); err != nil {
		return spec, appliance.Errorf(appliance.Invalid, "read %s: %w", r.ID, err)
	}
	return spec, nil
}

// record gives what Before returned; false where that was nothing.
func record[T any](undo json.RawMessage) (before T, there bool, err error) {
	if len(undo) == 0 || string(undo) == "null" {
		return before, false, nil
	}
	if err := json.Unmarshal(undo, &before); err != nil {
		return before, false, appliance.Errorf(appliance.Invalid, "read undo record: %w", err)
	}
	return before, true, nil
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// find gives the program that a process's command means (see wire.ProcessSpec).
func (c Config) find(command, directory string) (string, error) {
	switch {
	case filepath.IsAbs(command):
		return command, nil
	case filepath.Base(command) != command:
		return filepath.Join(directory, command), nil
	}
	if own := filepath.Join(c.Installation.Dir, "bin", command); isExecutable(own) {
		return own, nil
	}
	return run.Find(command)
}
