package resolve

import (
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/wire"
)

// artifacts refuses a node that cannot run what the module is made of (BLD-7).
func artifacts(m *manifest.Manifest, n Node, instance appliance.InstanceName) (map[string]ResolvedArtifact, error) {
	for _, r := range m.Resources {
		if r.Kind == wire.Container && n.Runtime == "" {
			return nil, appliance.Errorf(appliance.Conflict, "resolve instance %s: module %s has a container, and node %s has no container engine", instance, m.Module, n.Name).
				WithHint("install Docker there, or assign the module to another node")
		}
	}
	resolved := map[string]ResolvedArtifact{}
	for _, name := range union(m.Artifacts, nil) {
		a := m.Artifacts[name]
		if len(a.Platforms) > 0 && n.Platform != "" && !slices.Contains(a.Platforms, n.Platform) {
			return nil, appliance.Errorf(appliance.Conflict, "resolve instance %s: artifact %s of module %s is for %s, and node %s is %s",
				instance, name, m.Module, strings.Join(a.Platforms, ", "), n.Name, n.Platform).
				WithHint("assign the module to another node, or push the artifact for that platform too")
		}
		resolved[name] = ResolvedArtifact{Kind: a.Kind, Digest: a.Digest}
	}
	if len(resolved) == 0 {
		return nil, nil
	}
	return resolved, nil
}

// certificates puts the instance's name in the place of the module's, and adds the one name that no other node shares (PKI-5).
func certificates(m *manifest.Manifest, instance appliance.InstanceName, node appliance.NodeName) map[string]manifest.Certificate {
	var resolved map[string]manifest.Certificate
	for name, c := range m.Certificates {
		names := []string{string(instance) + "." + string(node) + ".internal"}
		for _, n := range c.Names {
			if n == string(m.Module)+".internal" {
				n = string(instance) + ".internal"
			}
			names = append(names, n)
		}
		slices.Sort(names)
		c.Names = slices.Compact(names)
		if resolved == nil {
			resolved = map[string]manifest.Certificate{}
		}
		resolved[name] = c
	}
	return resolved
}
