package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

// packages installs what the distribution has. It removes only what it installed, and never purges.
type packages struct{}

// unless says whether what the package is wanted for is there already.
func unless(s wire.PackageSpec) bool {
	for _, pattern := range s.Unless {
		matches, _ := filepath.Glob(pattern)
		for _, path := range matches {
			if isExecutable(path) {
				return true
			}
		}
	}
	return false
}

func (packages) there(ctx context.Context, r wire.Resource) (bool, error) {
	s, err := read[wire.PackageSpec](r)
	if err != nil || unless(s) {
		return err == nil, err
	}
	m, name, err := choose(s)
	if err != nil {
		return false, err
	}
	return m.has(ctx, name)
}

func (p packages) Observe(ctx context.Context, r wire.Resource) (host.Observation, error) {
	there, err := p.there(ctx, r)
	return host.Observation{Present: there, Matches: there}, err
}

func (p packages) Before(ctx context.Context, r wire.Resource) (json.RawMessage, error) {
	there, err := p.there(ctx, r)
	if err != nil {
		return nil, err
	}
	if there {
		return json.Marshal(thereBefore)
	}
	s, _ := read[wire.PackageSpec](r)
	m, name, err := choose(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m.with(ctx, name))
}

// thereBefore is the undo record of a package that was there. Otherwise it is the list of what comes with the package.
const thereBefore = "there before"

func (p packages) Do(ctx context.Context, r wire.Resource) error {
	there, err := p.there(ctx, r)
	if err != nil || there {
		return err
	}
	s, _ := read[wire.PackageSpec](r)
	m, name, err := choose(s)
	if err != nil {
		return err
	}
	if m.name == "apt" && strings.HasPrefix(name, "postgresql") {
		restore, err := withoutCluster(createClusterFile)
		if err != nil {
			return err
		}
		defer restore()
	}
	if err := m.add(ctx, name); err != nil {
		return fmt.Errorf("install package %s: %w", name, err)
	}
	return nil
}

// Undo removes the package with what came with it. Where somebody else needs some of that by now only the package goes, and where
// somebody needs the package it is kept.
func (p packages) Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	if was, _, err := record[string](undo); err == nil && was == thereBefore {
		return false, nil
	}
	came, _, err := record[[]string](undo)
	if err != nil {
		return false, err
	}
	s, err := read[wire.PackageSpec](r)
	if err != nil {
		return false, err
	}
	m, name, err := choose(s)
	if err != nil {
		return false, err
	}
	if there, err := m.has(ctx, name); err != nil || !there {
		return false, err
	}
	all, err := m.stillThere(ctx, name, came)
	if err != nil {
		return false, err
	}
	gone, err := m.drop(ctx, all)
	if err == nil && !gone && len(all) > 1 {
		gone, err = m.drop(ctx, all[:1])
	}
	if err != nil {
		return false, fmt.Errorf("remove package %s: %w", name, err)
	}
	if gone && m.name == "apt" && strings.HasPrefix(name, "postgresql") {
		if have, err := os.ReadFile(createClusterFile); err == nil && string(have) == noCluster {
			os.Remove(createClusterFile)
		}
	}
	return !gone, nil
}

// Debian's packages create and start a cluster with each server package, unless this file says no (GEN-5).
const (
	createClusterFile = "/etc/postgresql-common/createcluster.conf"
	noCluster         = "create_main_cluster = false\n"
)

// withoutCluster sees to it that the file says no. Ours stays for as long as the package does, for the next version's sake; somebody
// else's is put back by restore.
func withoutCluster(path string) (restore func(), err error) {
	have, err := os.ReadFile(path)
	switch {
	case os.IsNotExist(err):
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		return func() {}, durable.WriteFile(path, []byte(noCluster), 0o644)
	case err != nil:
		return nil, err
	case string(have) == noCluster || bytes.HasSuffix(have, []byte("\n"+noCluster)): // the last word counts
		return func() {}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	with := append(bytes.TrimSuffix(bytes.Clone(have), []byte("\n")), "\n"+noCluster...)
	if err := durable.WriteFile(path, with, info.Mode().Perm()); err != nil {
		return nil, err
	}
	return func() { durable.WriteFile(path, have, info.Mode().Perm()) }, nil
}
