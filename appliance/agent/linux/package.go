package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

// packages installs what the distribution has. It removes only what it installed, and never purges.
type packages struct{}

// manager is one package manager as argument lists; the package's name is appended to each.
type manager struct {
	name      string // key of PackageSpec.Names
	program   string
	query     []string // says whether a package is installed
	installed string   // what query then prints; empty: its exit status says it
	install   []string
	remove    []string
	refresh   []string // once, when a package is not found; the name is not appended
}

var managers = []manager{
	{"apt", "apt-get", []string{"dpkg-query", "-W", "-f", "${db:Status-Status}"}, "installed",
		[]string{"apt-get", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Options::=--force-confold", "install"},
		[]string{"apt-get", "-y", "-o", "DPkg::Lock::Timeout=300", "remove"},
		[]string{"apt-get", "-o", "DPkg::Lock::Timeout=300", "update"}},
	{"dnf", "dnf", []string{"rpm", "-q"}, "", []string{"dnf", "-y", "--setopt=install_weak_deps=False", "install"}, []string{"dnf", "-y", "remove", "--noautoremove"}, nil},
	{"apk", "apk", []string{"apk", "info", "-e"}, "", []string{"apk", "--no-cache", "add"}, []string{"apk", "del"}, nil},
}

var packageGrammar = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.+_-]{0,99}$`)

// choose gives this machine's manager and the package's name for it.
func choose(s wire.PackageSpec) (manager, string, error) {
	for _, m := range managers {
		if _, err := run.Find(m.program); err != nil {
			continue
		}
		name := s.Names[m.name]
		if !packageGrammar.MatchString(name) {
			return m, "", appliance.Errorf(appliance.Invalid, "this machine has %s, for which the package has the name %s", m.name, appliance.Quote(name)).
				WithHint("give the package's name for " + m.name + " in the manifest")
		}
		return m, name, nil
	}
	return manager{}, "", appliance.Errorf(appliance.Unavailable, "this machine has no apt-get, dnf or apk").WithHint("install the program by hand where the manifest's unless looks")
}

func (m manager) run(ctx context.Context, arguments []string, more ...string) ([]byte, error) {
	return run.Output(ctx, run.Command{Program: arguments[0], Arguments: append(arguments[1:len(arguments):len(arguments)], more...),
		Environment: []string{"DEBIAN_FRONTEND=noninteractive"}})
}

func (m manager) has(ctx context.Context, name string) (bool, error) {
	out, err := m.run(ctx, m.query, name)
	if run.ExitCode(err) > 0 { // it does not know the package
		return false, nil
	}
	return err == nil && (m.installed == "" || string(out) == m.installed), err
}

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
	if there, err := p.there(ctx, r); err != nil || !there {
		return nil, err
	}
	return json.RawMessage(`"there before"`), nil
}

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
	_, err = m.run(ctx, m.install, name)
	if err != nil && m.refresh != nil && ctx.Err() == nil {
		if _, e := m.run(ctx, m.refresh); e != nil {
			return fmt.Errorf("install package %s: %w", name, errors.Join(err, e))
		}
		_, err = m.run(ctx, m.install, name)
	}
	if err != nil {
		return fmt.Errorf("install package %s: %w", name, err)
	}
	return nil
}

func (p packages) Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (bool, error) {
	_, before, err := record[string](undo)
	if err != nil || before {
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
	if _, err := m.run(ctx, m.remove, name); err != nil {
		return false, fmt.Errorf("remove package %s: %w", name, err)
	}
	if m.name == "apt" && strings.HasPrefix(name, "postgresql") {
		if have, err := os.ReadFile(createClusterFile); err == nil && string(have) == noCluster {
			os.Remove(createClusterFile)
		}
	}
	return false, nil
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
