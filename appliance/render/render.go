// Package render makes an approved plan and today's facts into the content of a declaration. It is pure: the same plan and facts
// give the same bytes, in any process. What a plan holds is resolve's; render chooses nothing.
package render

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

// Version is the form of the content.
const Version = 1

// Render gives the content of the plan's node. A fact that the plan names and that is not there yet is an error of kind NotReady.
//
// The resources come in the order of wire.ResourceKinds, then of instances; folders before what lies in them, the rest of an
// instance as in its manifest. So every package is there before the first process, whichever module brings it.
func Render(p resolve.Plan, facts Facts) (wire.Content, error) {
	node, ok := facts.Nodes[p.Node]
	if !ok {
		return wire.Content{}, appliance.Errorf(appliance.NotReady, "render node %s: nothing is known of it", p.Node)
	}
	if !path.IsAbs(node.State) {
		return wire.Content{}, appliance.Errorf(appliance.NotReady, "render node %s: its installation folder is not known", node.Name)
	}
	var overlay string
	for _, i := range p.Instances {
		for _, r := range i.Resources {
			if r.Kind == wire.Overlay {
				overlay = id(i.Name, r)
			}
		}
	}
	content := wire.Content{Version: Version, Hold: p.Hold, Adopted: node.Adopted, Resources: []wire.Resource{}}
	for _, i := range p.Instances {
		in := instance{Instance: i, facts: facts, node: node, dir: path.Join(node.State, "modules", string(i.Name)), overlay: overlay}
		resources, err := in.render()
		if err != nil {
			return wire.Content{}, fmt.Errorf("render instance %s on node %s: %w", i.Name, node.Name, err)
		}
		content.Resources = append(content.Resources, resources...)
	}
	slices.SortStableFunc(content.Resources, func(a, b wire.Resource) int {
		return cmp.Or(cmp.Compare(rank(a.Kind), rank(b.Kind)), cmp.Compare(a.Instance, b.Instance))
	})
	return content, nil
}

// Bytes are the content's bytes and the digest that names them.
func Bytes(c wire.Content) ([]byte, appliance.Digest) {
	b, err := wire.Encode(c)
	if err != nil {
		panic(err) // what Render made always encodes
	}
	return b, appliance.DigestOf(b)
}

func rank(k wire.ResourceKind) int { return slices.Index(wire.ResourceKinds, k) }

func id(i appliance.InstanceName, r manifest.Resource) string { return string(i) + "/" + r.ID() }

// instance renders one instance.
type instance struct {
	resolve.Instance
	facts   Facts
	node    NodeFacts
	dir     string
	overlay string // id of the node's overlay resource, empty where it has none
}

// own is the instance's folder, which no manifest names.
var own = manifest.Resource{Kind: wire.Directory, Path: "${dir}", Class: "config", Owner: "root", Group: "root", Mode: "0755"}

// render gives the instance's resources: folders by path, its own first, then what it is given, then the rest as in the manifest.
func (in instance) render() ([]wire.Resource, error) {
	folders, rest := []manifest.Resource{own}, in.given()
	for _, r := range in.Resources {
		if r.Kind == wire.Directory {
			folders = append(folders, r)
		} else {
			rest = append(rest, r)
		}
	}
	slices.SortFunc(folders[1:], func(a, b manifest.Resource) int { return cmp.Compare(a.Path, b.Path) })
	var rendered []wire.Resource
	for _, r := range append(folders, rest...) {
		w, err := in.resource(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.ID(), err)
		}
		rendered = append(rendered, w)
	}
	return rendered, nil
}

// given are the resources that a manifest states as artifacts and certificates.
func (in instance) given() []manifest.Resource {
	list := []manifest.Resource{}
	for _, name := range sortedKeys(in.Certificates) {
		list = append(list, manifest.Resource{Kind: wire.Certificate, Name: name, Owner: in.Certificates[name].Owner})
	}
	for _, name := range sortedKeys(in.Artifacts) {
		if in.Artifacts[name].Kind == manifest.Files {
			list = append(list, manifest.Resource{Kind: wire.Artifact, Name: name})
		}
	}
	return list
}

func (in instance) resource(r manifest.Resource) (wire.Resource, error) {
	x := expander{instance: in}
	var spec any
	switch r.Kind {
	case wire.Package:
		spec = wire.PackageSpec{Names: r.Names, Unless: x.all(r.Unless)}
	case wire.User:
		spec = wire.UserSpec{Name: r.Name}
	case wire.Overlay:
		spec = wire.OverlaySpec{}
	case wire.Trust:
		spec = wire.TrustSpec{Name: r.Name, Authority: in.facts.Authority}
	case wire.Directory:
		spec = wire.DirectorySpec{Path: x.path(r.Path), Class: r.Class, Owner: r.Owner, Group: r.Group, Mode: r.Mode}
	case wire.File:
		spec = wire.FileSpec{Path: x.path(r.Path), Owner: r.Owner, Group: r.Group, Mode: r.Mode, Content: x.text(*r.Content)}
	case wire.Certificate:
		spec = in.certificate(r)
	case wire.Artifact:
		spec = wire.ArtifactSpec{Reference: in.reference(r.Name), Digest: in.Artifacts[r.Name].Digest, Store: x.store(), Path: in.tree(r.Name)}
	case wire.Process:
		spec = in.process(&x, r)
	case wire.Container:
		spec = in.container(&x, r)
	default:
		return wire.Resource{}, appliance.Errorf(appliance.Internal, "no rendering for kind %s", r.Kind)
	}
	if x.err != nil {
		return wire.Resource{}, x.err
	}
	encoded, err := wire.Encode(spec)
	if err != nil {
		return wire.Resource{}, err
	}
	return wire.Resource{ID: id(in.Name, r), Instance: in.Name, Kind: r.Kind, After: in.after(r, x.address), Spec: encoded}, nil
}

func (in instance) process(x *expander, r manifest.Resource) wire.ProcessSpec {
	spec := wire.ProcessSpec{Name: r.Name, User: r.User, Command: x.all(r.Command), Directory: in.dir, Environment: x.environment(r), Run: in.run(x, r)}
	if r.Artifact != "" {
		spec.Directory = in.tree(r.Artifact)
	}
	return spec
}

// run is what processes and containers have in common.
func (in instance) run(x *expander, r manifest.Resource) wire.Run {
	run := wire.Run{Stopped: in.Stopped, Ready: x.check(r.Ready), Alive: x.check(r.Alive), Restart: r.Restart, Stop: r.Stop, Signal: r.Signal}
	for changed, action := range r.OnChange {
		if run.OnChange == nil {
			run.OnChange = map[string]string{}
		}
		name, is := strings.CutPrefix(changed, string(wire.Certificate)+"/")
		if _, known := in.Certificates[name]; !is || !known {
			changed = string(wire.File) + "/" + changed
		}
		run.OnChange[string(in.Name)+"/"+changed] = action
	}
	return run
}

// after gives the ids that r depends on, sorted: its owner and the folder it lies in; for what runs everything that the instance has
// but what runs, with the overlay where it uses the node's address or is pulled.
func (in instance) after(r manifest.Resource, address bool) []string {
	var ids []string
	for _, o := range slices.Concat([]manifest.Resource{own}, in.Resources, in.given()) {
		var needs bool
		switch r.Kind {
		case wire.Directory, wire.File:
			needs = o.Kind == wire.User && (o.Name == r.Owner || o.Name == r.Group) || o.Kind == wire.Directory && o.Path == path.Dir(r.Path)
		case wire.Certificate:
			needs = o.Kind == wire.User && o.Name == r.Owner || o.Kind == wire.Directory && o.Path == own.Path
		case wire.Process, wire.Container:
			needs = !o.Kind.Runs()
		}
		if needs {
			ids = append(ids, id(in.Name, o))
		}
	}
	pulls := r.Kind == wire.Artifact || r.Kind == wire.Container // over the overlay, where there is one (PORT-5)
	if in.overlay != "" && (pulls || address && r.Kind.Runs()) {
		ids = append(ids, in.overlay)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// expander puts facts in the place of placeholders and remembers the first that is missing.
type expander struct {
	instance
	address bool // the node's address was used
	err     error
}

func (x *expander) text(s string) string {
	expanded, err := manifest.Expand(s, x.value)
	if err != nil && x.err == nil {
		x.err = err
	}
	return expanded
}

func (x *expander) all(list []string) []string {
	var expanded []string
	for _, s := range list {
		expanded = append(expanded, x.text(s))
	}
	return expanded
}

func (x *expander) environment(r manifest.Resource) map[string]string {
	var expanded map[string]string
	for _, k := range sortedKeys(r.Environment) {
		if expanded == nil {
			expanded = map[string]string{}
		}
		expanded[k] = x.text(r.Environment[k])
	}
	return expanded
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// path expands a path; what comes out must still be one that leads nowhere else.
func (x *expander) path(s string) string {
	p := x.text(s)
	if x.err == nil && (!path.IsAbs(p) || path.Clean(p) != p) {
		x.err = appliance.Errorf(appliance.Invalid, "path %s is not plain and absolute", appliance.Quote(p))
	}
	return p
}

func (x *expander) check(c *manifest.Check) *wire.Check {
	if c == nil {
		return nil
	}
	return &wire.Check{HTTP: x.text(c.HTTP), TCP: x.text(c.TCP), Command: x.all(c.Command), Every: c.Every, Within: c.Within, Failures: c.Failures}
}

// value is what stands for a placeholder today.
func (x *expander) value(name string) (string, error) {
	switch name {
	case "dir":
		return x.dir, nil
	case "node:name":
		return string(x.node.Name), nil
	case "node:address":
		x.address = true
		if !x.node.Address.IsValid() {
			return "", appliance.Errorf(appliance.NotReady, "${%s}: node %s has no overlay address", name, x.node.Name)
		}
		return x.node.Address.String(), nil
	}
	switch word, rest, _ := strings.Cut(name, ":"); word {
	case "port":
		if p, ok := x.Ports[rest]; ok {
			return strconv.Itoa(int(p.Number)), nil
		}
	case "setting":
		if v, ok := x.Settings[rest]; ok {
			return v, nil
		}
	case "artifact":
		if a, ok := x.Artifacts[rest]; ok && a.Kind == manifest.Files {
			return x.tree(rest), nil
		}
	case "cert":
		cert, part, _ := strings.Cut(rest, ":")
		if _, ok := x.Certificates[cert]; ok && certificateFiles[part] != "" {
			return path.Join(x.certificates(cert), certificateFiles[part]), nil
		}
	}
	return "", appliance.Errorf(appliance.Invalid, "the plan names ${%s}, which this binary does not know", name)
}
