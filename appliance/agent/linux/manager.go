package linux

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/wire"
)

// manager is one package manager as argument lists, to each of which the names of packages are appended.
type manager struct {
	name    string   // key of PackageSpec.Names
	like    []string // distributions that use it, as os-release names them
	program string
	query   []string // says whether a package is there
	states  bool     // in lines of dpkg's words; otherwise with its exit status
	refresh []string // once, when a package is not found; no name is appended
	comes   []string // says what would come with a package; nil: remove takes along what came, and nobody else needs
	unasked []string // says which of the packages nobody asked for by name
	install []string
	leaves  []string // says what would go with packages, or fails where others need them; nil: remove leaves those alone
	remove  []string
}

// Removing takes nothing from others: what they need is left, and counts as kept. None of the managers purges.
var managers = []manager{
	{
		name: "apt", like: []string{"debian", "ubuntu"}, program: "apt-get",
		query: []string{"dpkg-query", "-W", "-f", `${db:Status-Status}\n`}, states: true,
		refresh: []string{"apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "update"},
		comes:   []string{"apt-get", "-q", "-s", "--no-install-recommends", "install"},
		install: []string{"apt-get", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Options::=--force-confold", "install"},
		unasked: []string{"apt-mark", "showauto"},
		leaves:  []string{"apt-get", "-q", "-s", "remove"},
		remove:  []string{"apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "remove"},
	},
	{
		name: "dnf", like: []string{"fedora", "rhel", "centos"}, program: "dnf",
		query:   []string{"rpm", "-q"},
		refresh: []string{"dnf", "-q", "-y", "--refresh", "makecache"},
		install: []string{"dnf", "-q", "-y", "--setopt=install_weak_deps=False", "install"},
		leaves:  []string{"rpm", "-e", "--test"},
		remove:  []string{"dnf", "-q", "-y", "--setopt=clean_requirements_on_remove=True", "remove"}, // dnf and dnf5 name the flag differently
	},
	{
		name: "apk", like: []string{"alpine"}, program: "apk",
		query:   []string{"apk", "info", "-e"},
		install: []string{"apk", "--wait", "300", "--no-cache", "add"},
		remove:  []string{"apk", "--wait", "300", "del"},
	},
}

var packageGrammar = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9.+_-]{0,99}$`)

// choose gives this machine's manager and the package's name for it: the distribution's own, where another one is there, too.
func choose(s wire.PackageSpec) (m manager, name string, err error) {
	family := family("/etc/os-release", "/usr/lib/os-release")
	for _, here := range managers {
		if _, err := run.Find(here.program); err != nil {
			continue
		}
		own := slices.ContainsFunc(here.like, func(id string) bool { return slices.Contains(family, id) })
		if own || m.name == "" {
			m = here
		}
		if own {
			break
		}
	}
	if m.name == "" {
		return m, "", appliance.Errorf(appliance.Unavailable, "this machine has no apt-get, dnf or apk").WithHint("install the program by hand where the manifest's unless looks")
	}
	if name = s.Names[m.name]; !packageGrammar.MatchString(name) {
		return m, "", appliance.Errorf(appliance.Invalid, "this machine has %s, for which the package has the name %s", m.name, appliance.Quote(name)).
			WithHint("give the package's name for " + m.name + " in the manifest")
	}
	return m, name, nil
}

// family gives the distribution's id and those it is like.
func family(paths ...string) (ids []string) {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if key == "ID" || key == "ID_LIKE" {
				ids = append(ids, strings.Fields(strings.Trim(value, `"'`))...)
			}
		}
		break
	}
	return ids
}

func (m manager) run(ctx context.Context, arguments []string, names ...string) ([]byte, error) {
	return run.Output(ctx, run.Command{Program: arguments[0], Arguments: append(arguments[1:len(arguments):len(arguments)], names...),
		Environment: []string{"DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=l"}}) // Ubuntu would restart other people's services
}

func (m manager) has(ctx context.Context, name string) (bool, error) {
	state, err := m.state(ctx, name)
	return state == installed, err
}

// What state says; dpkg has more between them.
const (
	installed  = "installed"
	configured = "config-files" // only its configuration is there
)

// state is how a package is there; empty where it is not.
func (m manager) state(ctx context.Context, name string) (string, error) {
	out, err := m.run(ctx, m.query, name)
	if run.ExitCode(err) > 0 { // it does not know the package
		return "", nil
	}
	if err != nil || !m.states {
		return installed, err
	}
	state := ""
	for one := range strings.FieldsSeq(string(out)) { // for each of its architectures
		if state != installed && one != "not-installed" {
			state = one
		}
	}
	return state, nil
}

// add installs a package, at a second try with fresh lists.
func (m manager) add(ctx context.Context, name string) error {
	err := m.change(ctx, m.install, name)
	if err == nil || m.refresh == nil || ctx.Err() != nil {
		return err
	}
	if _, err := m.run(ctx, m.refresh); err != nil {
		return err
	}
	return m.change(ctx, m.install, name)
}

// change installs or removes. What a killed manager has left in the middle is finished first.
func (m manager) change(ctx context.Context, arguments []string, names ...string) error {
	out, err := m.run(ctx, arguments, names...)
	if err == nil || m.name != "apt" || ctx.Err() != nil || !strings.Contains(string(out), "dpkg --configure -a") {
		return err
	}
	if _, err := m.run(ctx, []string{"dpkg", "--force-confold", "--configure", "-a"}); err != nil {
		return err
	}
	_, err = m.run(ctx, arguments, names...)
	return err
}

// with lists what installing a package would bring, itself first. It is asked before the first installation only.
func (m manager) with(ctx context.Context, name string) []string {
	came := []string{name}
	if m.comes == nil {
		return came
	}
	out, err := m.run(ctx, m.comes, name)
	if err != nil && ctx.Err() == nil {
		if _, err = m.run(ctx, m.refresh); err == nil {
			out, err = m.run(ctx, m.comes, name)
		}
	}
	if err != nil {
		return came // the installation will say why
	}
	for _, new := range simulated("Inst", out) {
		if new != name && packageGrammar.MatchString(new) {
			came = append(came, new)
		}
	}
	return came
}

// stillThere lists, of a package and what came with it, what is there, also in the middle of being removed, and nobody has asked for since.
func (m manager) stillThere(ctx context.Context, came []string) ([]string, error) {
	var all, others []string
	for i, name := range came {
		state, err := m.state(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case state == "" || state == configured:
		case i == 0:
			all = append(all, name)
		default:
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return all, nil
	}
	out, err := m.run(ctx, m.unasked, others...)
	if err != nil {
		return nil, err
	}
	for n := range strings.FieldsSeq(string(out)) {
		if slices.Contains(others, n) {
			all = append(all, n)
		}
	}
	return all, nil
}

// needing lists what of others would go along with packages, because it needs them. For apk, which does not say, it lists nothing.
func (m manager) needing(ctx context.Context, names []string) (others []string, err error) {
	if m.leaves == nil {
		return nil, nil
	}
	out, err := m.run(ctx, m.leaves, names...)
	switch {
	case m.name == "apt" && err == nil:
		others = slices.DeleteFunc(simulated("Remv", out), func(gone string) bool { return slices.Contains(names, gone) })
	case m.name != "apt" && run.ExitCode(err) > 0:
		others = neededBy(out)
	case err != nil:
		return nil, err
	}
	slices.Sort(others)
	return slices.Compact(others), nil
}

// drop removes packages together, unless others need them: false then.
func (m manager) drop(ctx context.Context, names []string) (bool, error) {
	if len(names) == 0 {
		return true, nil
	}
	if others, err := m.needing(ctx, names); len(others) > 0 || err != nil {
		return false, err
	}
	err := m.change(ctx, m.remove, names...)
	return err == nil, err
}

// simulated reads apt-get -s: the packages that would be installed anew (Inst) or removed (Remv).
func simulated(verb string, out []byte) (names []string) {
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == verb && (verb == "Remv" || !strings.HasPrefix(f[2], "[")) {
			names = append(names, f[1])
		}
	}
	return names
}

// neededBy reads rpm -e --test: the packages that need something of what would go.
func neededBy(out []byte) (names []string) {
	for line := range strings.Lines(string(out)) {
		if _, by, ok := strings.Cut(strings.TrimSpace(line), " is needed by (installed) "); ok {
			names = append(names, by)
		}
	}
	if len(names) == 0 {
		return []string{"others"} // it refuses, and does not say for whom
	}
	return names
}
