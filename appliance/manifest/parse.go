package manifest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Parse reads a module.json. Its error is an *Errors with everything that is wrong with the file.
func Parse(data []byte) (*Manifest, error) {
	var errs Errors
	v := decode(data, &errs)
	if enough := errs.settle(); enough || v == nil {
		return nil, errs.result()
	}
	theSchema().check(v, &errs)
	refuseNotYet(v, &errs)
	if _, isObject := v.(map[string]any); errs.settle() || !isObject {
		return nil, errs.result()
	}

	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil && errs.settled == 0 { // else the schema has named the field
		return nil, appliance.Errorf(appliance.Internal, "module.json fits the schema, but not this version: %w", err)
	}
	m.fill()
	c := checker{m: &m, errs: &errs}
	c.check()
	if err := errs.result(); err != nil {
		return nil, err
	}
	return &m, nil
}

// fill puts the defaults in, so that a recorded manifest means the same to a later version.
func (m *Manifest) fill() {
	for i := range m.Seats {
		m.Seats[i].Scope = cmp.Or(m.Seats[i].Scope, ScopeMesh)
	}
	for name, p := range m.Ports {
		p.Protocol = cmp.Or(p.Protocol, "tcp")
		m.Ports[name] = p
	}
	for name, r := range m.recipes() {
		if m.Artifacts == nil {
			m.Artifacts = map[string]Artifact{}
		}
		if _, stated := m.Artifacts[name]; !stated {
			m.Artifacts[name] = Artifact{Kind: r.makes()}
		}
	}
	for name, c := range m.Certificates {
		c.Owner = cmp.Or(c.Owner, m.firstUser())
		slices.Sort(c.Names)
		m.Certificates[name] = c
	}
	for i := range m.Resources {
		m.Resources[i].fill(m)
	}
}

func (m *Manifest) recipes() map[string]Recipe {
	if m.Build == nil {
		return nil
	}
	return m.Build.Artifacts
}

func (m *Manifest) firstUser() string {
	for _, r := range m.Resources {
		if r.Kind == wire.User {
			return r.Name
		}
	}
	return "root"
}

// watched are the names under which on-change knows what can change beneath something that runs.
func (m *Manifest) watched() (names []string) {
	for _, r := range m.Resources {
		if r.Kind == wire.File {
			names = append(names, r.Label())
		}
	}
	for _, name := range keysOf(m.Certificates) {
		names = append(names, string(wire.Certificate)+"/"+name)
	}
	return names
}

func (r *Resource) fill(m *Manifest) {
	switch r.Kind {
	case wire.Directory, wire.File:
		r.Owner = cmp.Or(r.Owner, "root")
		r.Group = cmp.Or(r.Group, r.Owner)
		if len(r.Mode) == 3 {
			r.Mode = "0" + r.Mode
		}
		if r.Kind == wire.Directory {
			r.Class = cmp.Or(r.Class, "data") // MOD-10
			r.Mode = cmp.Or(r.Mode, "0750")
		} else {
			r.Mode = cmp.Or(r.Mode, "0640")
		}
	case wire.Container:
		r.LogSize = cmp.Or(r.LogSize, "10MiB")
		r.PIDs = cmp.Or(r.PIDs, 4096)
	}
	if !r.Kind.Runs() {
		return
	}
	r.Restart = cmp.Or(r.Restart, "always")
	r.Stop = cmp.Or(r.Stop, "10s")
	if r.Ready != nil {
		r.Ready.Every = cmp.Or(r.Ready.Every, "1s")
		r.Ready.Within = cmp.Or(r.Ready.Within, "30s")
	}
	if r.Alive != nil {
		r.Alive.Every = cmp.Or(r.Alive.Every, "10s")
		r.Alive.Within = cmp.Or(r.Alive.Within, "5s")
		r.Alive.Failures = cmp.Or(r.Alive.Failures, 3)
	}
	for _, name := range m.watched() {
		if r.OnChange == nil {
			r.OnChange = map[string]string{}
		}
		r.OnChange[name] = cmp.Or(r.OnChange[name], "restart") // DEC-11
	}
}

// checker finds what a schema cannot say.
type checker struct {
	m    *Manifest
	errs *Errors
}

func (c *checker) check() {
	c.name("module", "module", string(c.m.Module))
	seen := map[string]bool{}
	for i, s := range c.m.Seats {
		at := index("seats", i) + ".name"
		c.name(at, "seat", string(s.Name))
		c.once(seen, at, "seat "+string(s.Name))
	}
	for i, s := range c.m.Claims {
		c.name(index("claims", i), "seat", string(s))
	}
	for _, name := range keysOf(c.m.Certificates) {
		c.certificate(join("certificates", name), c.m.Certificates[name])
	}
	for _, name := range keysOf(c.m.recipes()) {
		if kind := c.m.recipes()[name].makes(); c.m.Artifacts[name].Kind != kind {
			c.errs.add(join("artifacts", name)+".kind", "", fmt.Sprintf("is not what build makes of it: %s", kind))
		}
	}
	for i, p := range c.m.Privileged {
		if p.Path != "" {
			c.clean(index("privileged", i)+".path", p.Path)
		}
	}
	for i, r := range c.m.Resources {
		at := index("resources", i)
		if !slices.Contains(wire.ResourceKinds, r.Kind) {
			continue
		}
		if r.Label() != "" {
			c.once(seen, at, r.ID())
		}
		switch r.Kind {
		case wire.Package:
			for j, pattern := range r.Unless {
				c.placeholders(index(at+".unless", j), pattern)
				if _, err := path.Match(pattern, ""); err != nil {
					c.errs.add(index(at+".unless", j), "", appliance.Quote(pattern)+" is not a glob pattern")
				}
			}
		case wire.User:
			c.account(at+".name", r.Name)
		case wire.Directory, wire.File:
			c.place(at, r, seen)
		case wire.Process, wire.Container:
			c.runs(at, r)
			if r.Kind == wire.Container {
				c.container(at, r)
			}
		case wire.Trust:
			if !slices.ContainsFunc(c.m.Privileged, func(p Privilege) bool { return p.Trust == "system" }) {
				c.errs.add(at, `add {"trust": "system", "reason": "…"} to privileged`, "trust needs a privilege")
			}
		case wire.Overlay:
			if !slices.Contains(c.m.Claims, "mesh-network") {
				c.errs.add(at+".kind", "claim mesh-network", `"overlay" is only for the module that claims mesh-network`)
			}
		}
	}
}

func (c *checker) name(at, what, s string) {
	if _, err := appliance.ParseName[string](what, s); err != nil {
		e := appliance.AsError(err)
		c.errs.add(at, e.Hint, e.Text)
	}
}

func (c *checker) once(seen map[string]bool, at, what string) {
	if seen[what] {
		c.errs.add(at, "", what+" is there twice")
	}
	seen[what] = true
}

// account checks a user that the manifest makes.
func (c *checker) account(at, name string) {
	switch name {
	case "root":
		c.errs.add(at, "leave it out", "root is always there")
	case "mesh":
		c.privilege(at, name)
	}
}

// privilege refuses an account with rights of its own unless the manifest says why (MOD-14).
func (c *checker) privilege(at, user string) {
	if !slices.ContainsFunc(c.m.Privileged, func(p Privilege) bool { return p.User == user }) {
		c.errs.add(at, fmt.Sprintf(`add {"user": %q, "reason": "…"} to privileged`, user), "user "+user+" needs a privilege")
	}
}

// place checks path and owners of a directory or file.
func (c *checker) place(at string, r Resource, seen map[string]bool) {
	c.owner(at+".owner", r.Owner)
	if r.Group != r.Owner {
		c.owner(at+".group", r.Group)
	}
	if r.Content != nil {
		c.placeholders(at+".content", *r.Content)
	}
	where := at + ".path"
	c.placeholders(where, r.Path)
	if !c.clean(where, r.Path) {
		return
	}
	c.once(seen, where, "path "+r.Path)
	if !strings.HasPrefix(r.Path, "${dir}/") {
		if !slices.ContainsFunc(c.m.Privileged, func(p Privilege) bool { return p.Path != "" && within(r.Path, p.Path) }) {
			c.errs.add(where, `keep it beneath ${dir}, or add {"path": "…", "reason": "…"} to privileged`, appliance.Quote(r.Path)+" lies outside ${dir}")
		}
		return
	}
	parent := path.Dir(r.Path)
	made := func(o Resource) bool { return o.Kind == wire.Directory && o.Path == parent }
	if parent != "${dir}" && !slices.ContainsFunc(c.m.Resources, made) {
		c.errs.add(where, "", fmt.Sprintf("its folder %s is no directory of this manifest", appliance.Quote(parent)))
	}
}

// clean says whether p is a plain path: nothing in it that leads elsewhere.
func (c *checker) clean(at, p string) bool {
	switch {
	case slices.Contains(strings.Split(p, "/"), ".."):
		c.errs.add(at, "", appliance.Quote(p)+` holds ".."`)
	case path.Clean(p) != p || p == "/" || p == "":
		c.errs.add(at, "no empty or dot parts, no slash at the end", appliance.Quote(p)+" is not a plain path")
	case strings.Contains(strings.TrimPrefix(p, "${dir}/"), "${dir}"):
		c.errs.add(at, "", "${dir} can only stand at the beginning")
	default:
		return true
	}
	return false
}

func within(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

func (c *checker) owner(at, name string) {
	users := c.users()
	if !slices.Contains(users, name) {
		c.errs.add(at, suggest(name, users), appliance.Quote(name)+" is neither root nor a user of this manifest")
	}
}

func (c *checker) users() []string {
	users := []string{"root"}
	for _, r := range c.m.Resources {
		if r.Kind == wire.User {
			users = append(users, r.Name)
		}
	}
	return users
}

// runs checks what processes and containers have in common.
func (c *checker) runs(at string, r Resource) {
	c.owner(at+".user", r.User)
	if r.User == "root" {
		c.privilege(at+".user", r.User)
	}
	if want := artifactOf[r.Kind]; r.Artifact != "" && c.m.Artifacts[r.Artifact].Kind != want {
		var fit []string
		for _, name := range keysOf(c.m.Artifacts) {
			if c.m.Artifacts[name].Kind == want {
				fit = append(fit, name)
			}
		}
		c.errs.add(at+".artifact", suggest(r.Artifact, fit), fmt.Sprintf("%s names no artifact of kind %s in this manifest", appliance.Quote(r.Artifact), want))
	}
	for i, s := range r.Command {
		c.placeholders(index(at+".command", i), s)
	}
	for _, k := range slices.Sorted(maps.Keys(r.Environment)) {
		if strings.HasPrefix(k, "MESH_") {
			c.errs.add(join(at+".environment", k), "names that begin with MESH_ are set by the mesh", "is no name that may stand here")
		}
		c.placeholders(join(at+".environment", k), r.Environment[k])
	}
	c.duration(at+".stop", r.Stop, 0, 10*time.Minute)
	c.probe(at+".ready", r.Ready)
	c.probe(at+".alive", r.Alive)
	watched := c.m.watched()
	for _, f := range slices.Sorted(maps.Keys(r.OnChange)) {
		if !slices.Contains(watched, f) {
			c.errs.add(join(at+".on-change", f), suggest(f, watched), "names no file and no certificate of this manifest")
		}
	}
}

func (c *checker) probe(at string, p *Check) {
	if p == nil {
		return
	}
	c.placeholders(at+".http", p.HTTP)
	c.placeholders(at+".tcp", p.TCP)
	for i, s := range p.Command {
		c.placeholders(index(at+".command", i), s)
	}
	c.duration(at+".every", p.Every, 100*time.Millisecond, time.Hour)
	c.duration(at+".within", p.Within, 100*time.Millisecond, time.Hour)
}

func (c *checker) duration(at, s string, least, most time.Duration) {
	if d, err := time.ParseDuration(s); err != nil || d < least || d > most {
		c.errs.add(at, fmt.Sprintf("from %s to %s", least, most), appliance.Quote(s)+" is out of bounds")
	}
}

// fromDir is how a path is called in ids: from ${dir} where it lies beneath, "." for ${dir} itself.
func fromDir(p string) string {
	if p == "${dir}" {
		return "."
	}
	return strings.TrimPrefix(p, "${dir}/")
}

func index(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
