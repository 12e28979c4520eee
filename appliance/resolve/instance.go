package resolve

import (
	"slices"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
)

// artifacts are what the artifact store holds for the instance.
func artifacts(m *manifest.Manifest) map[string]ResolvedArtifact {
	var resolved map[string]ResolvedArtifact
	for name, a := range m.Artifacts {
		if resolved == nil {
			resolved = map[string]ResolvedArtifact{}
		}
		resolved[name] = ResolvedArtifact{Kind: a.Kind, Digest: a.Digest}
	}
	return resolved
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
