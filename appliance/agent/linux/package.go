package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// came gives what the mesh installed: the package first, then what came with it; nothing where the package was there.
func (packages) came(r wire.Resource, undo json.RawMessage) (m manager, came []string, err error) {
	if was, _, err := record[string](undo); err == nil && was == thereBefore {
		return m, nil, nil
	}
	with, _, err := record[[]string](undo)
	if err != nil {
		return m, nil, err
	}
	s, err := read[wire.PackageSpec](r)
	if err != nil {
		return m, nil, err
	}
	m, name, err := choose(s)
	if err != nil {
		return m, nil, err
	}
	came = []string{name}
	for _, p := range with {
		if p != name && packageGrammar.MatchString(p) {
			came = append(came, p)
		}
	}
	return m, came, nil
}

// Undo removes the package with what came with it. Where somebody else needs some of that by now only the package goes, and where
// somebody needs the package it is kept.
func (p packages) Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	m, came, err := p.came(r, undo)
	if err != nil || len(came) == 0 {
		return false, err
	}
	name := came[0]
	all, err := m.stillThere(ctx, came)
	if err != nil {
		return false, err
	}
	gone, err := m.drop(ctx, all)
	if err == nil && !gone && all[0] == name {
		_, err = m.drop(ctx, all[:1])
	}
	if err != nil {
		return false, fmt.Errorf("remove package %s: %w", name, err)
	}
	if there, err := m.has(ctx, name); there || err != nil {
		return err == nil, err
	}
	if m.name == "apt" && strings.HasPrefix(name, "postgresql") {
		if have, err := os.ReadFile(createClusterFile); err == nil && string(have) == noCluster {
			os.Remove(createClusterFile)
		}
	}
	return false, nil
}

// Holds names the packages of others that need the package.
func (p packages) Holds(ctx context.Context, r wire.Resource, undo json.RawMessage) (string, error) {
	m, came, err := p.came(r, undo)
	if err != nil || len(came) == 0 {
		return "", err
	}
	all, err := m.stillThere(ctx, came)
	if err != nil || !slices.Contains(all, came[0]) {
		return "", err
	}
	others, err := m.needing(ctx, came[:1])
	if others = slices.DeleteFunc(others, func(o string) bool { return slices.Contains(all, o) }); err != nil || len(others) == 0 {
		return "", err
	}
	return "other packages need it: " + strings.Join(others, ", "), nil
}

// Remains lists what came with the package and stays, and of what dpkg keeps the configuration.
func (p packages) Remains(ctx context.Context, r wire.Resource, undo json.RawMessage) (left []host.Left, err error) {
	m, came, err := p.came(r, undo)
	if err != nil {
		return nil, err
	}
	for _, name := range came {
		switch state, err := m.state(ctx, name); {
		case err != nil:
			return nil, err
		case state == configured:
			left = append(left, host.Left{What: "configuration of package " + name, Why: "packages are removed, never purged (dpkg --purge would)"})
		case state != "":
			left = append(left, host.Left{What: "package " + name, Why: "others need it, or have asked for it"})
		}
	}
	return left, nil
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
