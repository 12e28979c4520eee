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
	content := wire.Content{Version: Version, Resources: []wire.Resource{}}
	for _, i := range p.Instances {
		in := instance{Instance: i, node: node, dir: path.Join(node.State, "modules", string(i.Name)), overlay: overlay}
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
	node    NodeFacts
	dir     string
	overlay string // id of the node's overlay resource, empty where it has none
}

// own is the instance's folder, which no manifest names.
var own = manifest.Resource{Kind: wire.Directory, Path: "${dir}", Class: "config", Owner: "root", Group: "root", Mode: "0755"}

// render gives the instance's resources: folders by path, its own first, then the rest as in the manifest.
func (in instance) render() ([]wire.Resource, error) {
	folders, rest := []manifest.Resource{own}, []manifest.Resource{}
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
	case wire.Directory:
		spec = wire.DirectorySpec{Path: x.path(r.Path), Class: r.Class, Owner: r.Owner, Group: r.Group, Mode: r.Mode}
	case wire.File:
		spec = wire.FileSpec{Path: x.path(r.Path), Owner: r.Owner, Group: r.Group, Mode: r.Mode, Content: x.text(*r.Content)}
	case wire.Process:
		spec = in.process(&x, r)
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
	spec := wire.ProcessSpec{
		Name: r.Name, User: r.User, Command: x.all(r.Command), Directory: in.dir,
		Ready: x.check(r.Ready), Alive: x.check(r.Alive), Restart: r.Restart, Stop: r.Stop,
	}
	for _, k := range slices.Sorted(maps.Keys(r.Environment)) {
		if spec.Environment == nil {
			spec.Environment = map[string]string{}
		}
		spec.Environment[k] = x.text(r.Environment[k])
	}
	for file, action := range r.OnChange {
		if spec.OnChange == nil {
			spec.OnChange = map[string]string{}
		}
		spec.OnChange[string(in.Name)+"/file/"+file] = action
	}
	return spec
}

// after gives the ids that r depends on, sorted: its owner and the folder it lies in; for a process everything that the instance has
// but other processes, with the overlay where it uses the node's address.
func (in instance) after(r manifest.Resource, address bool) []string {
	var ids []string
	for _, o := range append([]manifest.Resource{own}, in.Resources...) {
		var needs bool
		switch r.Kind {
		case wire.Directory, wire.File:
			needs = o.Kind == wire.User && (o.Name == r.Owner || o.Name == r.Group) || o.Kind == wire.Directory && o.Path == path.Dir(r.Path)
		case wire.Process:
			needs = o.Kind != wire.Process
		}
		if needs {
			ids = append(ids, id(in.Name, o))
		}
	}
	if r.Kind == wire.Process && address && in.overlay != "" {
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
	if port, ok := strings.CutPrefix(name, "port:"); ok {
		if p, ok := x.Ports[port]; ok {
			return strconv.Itoa(int(p.Number)), nil
		}
	}
	return "", appliance.Errorf(appliance.Invalid, "the plan names ${%s}, which this binary does not know", name)
}
