package manifest

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// artifactOf says which kind of artifact something that runs is made of.
var artifactOf = map[wire.ResourceKind]ArtifactKind{wire.Process: Files, wire.Container: Image}

// container checks what only containers have. Everything that reaches out of the container needs a privilege (MOD-14).
func (c *checker) container(at string, r Resource) {
	for _, name := range keysOf(r.Ports) {
		if _, known := c.m.Ports[name]; !known {
			c.errs.add(join(at+".ports", name), suggest(name, keysOf(c.m.Ports)), "names no port of this manifest")
		}
	}
	targets := map[string]bool{}
	for i, m := range r.Mounts {
		where := index(at+".mounts", i)
		c.placeholders(where+".source", m.Source)
		if c.clean(where+".source", m.Source) {
			c.mount(where+".source", m.Source)
		}
		if path.Clean(m.Target) != m.Target || m.Target == "/" {
			c.errs.add(where+".target", "no empty or dot parts, no slash at the end, not / itself", appliance.Quote(m.Target)+" is not a plain path")
		}
		c.once(targets, where+".target", "target "+m.Target)
	}
	if r.Network == "host" {
		c.privileged(at+".network", "a container in the host's network", Privilege{Network: "host"})
		if len(r.Ports) > 0 {
			c.errs.add(at+".ports", "leave them out: what listens inside listens on the node", "have no meaning in the host's network")
		}
	}
	for i, d := range r.Devices {
		if c.clean(index(at+".devices", i), d) {
			c.privileged(index(at+".devices", i), "device "+d, Privilege{Device: d})
		}
	}
	if r.Privileged {
		c.privileged(at+".privileged", "a container without confinement", Privilege{Container: "privileged"})
	}
}

// mount sees that a mount's source is something of the manifest, or allowed, and that only root can put another thing in its place: the
// engine follows links, each time the container starts.
func (c *checker) mount(at, source string) {
	for _, o := range c.m.Resources {
		if o.Kind == wire.Directory && o.Path != source && within(source, o.Path) && o.shared() {
			c.errs.add(at, "mount "+o.Path+" itself", fmt.Sprintf("%s lies in a folder that others than root can change", appliance.Quote(source)))
			return
		}
	}
	made := func(o Resource) bool {
		return o.Kind == wire.File && o.Path == source || o.Kind == wire.Directory && within(source, o.Path)
	}
	name, is := strings.CutPrefix(source, "${dir}/certificates/")
	_, certificate := c.m.Certificates[name]
	switch {
	case slices.ContainsFunc(c.m.Resources, made) || is && certificate:
	case strings.HasPrefix(source, "${dir}/"):
		c.errs.add(at, "add it to resources", appliance.Quote(source)+" is no directory or file of this manifest")
	case !slices.ContainsFunc(c.m.Privileged, func(p Privilege) bool { return p.Path != "" && within(source, p.Path) }):
		c.errs.add(at, `keep it beneath ${dir}, or add {"path": "…", "reason": "…"} to privileged`, appliance.Quote(source)+" lies outside ${dir}")
	}
}

// shared says whether others than root can change what is in the directory.
func (r Resource) shared() bool {
	mode, err := strconv.ParseUint(r.Mode, 8, 32)
	return err != nil || r.Owner != "root" || mode&0o002 != 0 || mode&0o020 != 0 && r.Group != "root"
}

// privileged refuses what unless the manifest says why.
func (c *checker) privileged(at, what string, need Privilege) {
	for _, p := range c.m.Privileged {
		p.Reason = ""
		if p == need {
			return
		}
	}
	entry, err := wire.Encode(need)
	if err != nil {
		panic(err) // strings always encode
	}
	c.errs.add(at, fmt.Sprintf("add %s to privileged", strings.Replace(string(entry), `"reason":""`, `"reason":"…"`, 1)), what+" needs a privilege")
}

// certificate sees that only names of the module's own are asked for (PKI-5).
func (c *checker) certificate(at string, cert Certificate) {
	c.owner(at+".owner", cert.Owner)
	own := []string{string(c.m.Module) + ".internal"}
	for _, seat := range c.m.Claims {
		own = append(own, string(seat)+".internal")
	}
	for i, name := range cert.Names {
		if !slices.Contains(own, name) {
			c.errs.add(index(at+".names", i), suggest(name, own), appliance.Quote(name)+" is neither the module's own name nor that of a seat it claims")
		}
	}
}

// Bytes reads a size that the schema has let pass; the empty one is 0.
func Bytes(size string) int64 {
	digits := strings.TrimRight(size, "KMGiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	return n << map[byte]int{'K': 10, 'M': 20, 'G': 30}[size[len(digits)]]
}

// Millis reads a number of cores as thousandths of one; the empty one is 0.
func Millis(cores string) int64 {
	whole, rest, _ := strings.Cut(cores, ".")
	n, err := strconv.ParseInt(whole+(rest + "000")[:3], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
