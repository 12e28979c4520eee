package render

import (
	"path"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/wire"
)

// container renders a container. Its ports are bound to the address that their "from" means (NET-10).
func (in instance) container(x *expander, r manifest.Resource) wire.ContainerSpec {
	store := x.store()
	spec := wire.ContainerSpec{Name: r.Name, Reference: in.reference(r.Artifact), Store: store,
		Image:   store.Address + "/" + string(in.Module) + "/" + r.Artifact + "@" + string(in.Artifacts[r.Artifact].Digest),
		Command: x.all(r.Command), User: r.User, Environment: x.environment(r),
		Memory: manifest.Bytes(r.Memory), CPU: manifest.Millis(r.CPU), PIDs: r.PIDs, ReadOnly: r.ReadOnly, Network: r.Network, Devices: r.Devices,
		Privileged: r.Privileged, LogSize: manifest.Bytes(r.LogSize), Run: in.run(x, r)}
	for _, name := range sortedKeys(r.Ports) {
		p := in.Ports[name]
		spec.Ports = append(spec.Ports, wire.Published{Inside: r.Ports[name], Port: p.Number, Protocol: p.Protocol, Address: x.bound(p.From)})
	}
	for _, m := range r.Mounts {
		spec.Mounts = append(spec.Mounts, wire.Mount{Source: x.path(m.Source), Target: m.Target, ReadOnly: m.ReadOnly})
	}
	if in.overlay != "" && r.Network == "" {
		spec.Resolver = x.text("${node:address}")
	}
	return spec
}

// bound is the address that a port is reached at from where its manifest says.
func (x *expander) bound(from string) string {
	switch from {
	case "mesh":
		return x.text("${node:address}")
	case "node":
		return "127.0.0.1"
	}
	return "0.0.0.0"
}

// store is where artifacts are pulled from; while nobody has said where it is, what needs it cannot be rendered.
func (x *expander) store() wire.ArtifactStore {
	if x.facts.Artifacts.Address == "" && x.err == nil {
		x.err = appliance.Errorf(appliance.NotReady, "where the artifact store is has not been said yet").WithHint("the hub's agent says it when it starts")
	}
	return x.facts.Artifacts
}

// reference names an artifact of the instance's module; no address is part of it (PORT-5).
func (in instance) reference(artifact string) string {
	return "artifact-store://" + string(in.Module) + "/" + artifact + "@" + string(in.Artifacts[artifact].Digest)
}

// tree is where an artifact of kind files is unpacked: one folder for each digest, whoever uses it.
func (in instance) tree(artifact string) string {
	return path.Join(in.node.State, "artifacts", strings.TrimPrefix(string(in.Artifacts[artifact].Digest), "sha256:"))
}

// certificateFiles are the parts of a certificate, by the last word of a placeholder.
var certificateFiles = map[string]string{"cert": "cert.pem", "key": "key.pem", "ca": "ca.pem"}

// certificates is the folder of one certificate.
func (in instance) certificates(name string) string { return path.Join(in.dir, "certificates", name) }

// certificate renders what was issued for the key that the node asked about; where the names are no longer those, it waits for another.
func (in instance) certificate(r manifest.Resource) wire.CertificateSpec {
	asked := in.Certificates[r.Name]
	spec := wire.CertificateSpec{Name: r.Name, Names: asked.Names, Owner: asked.Owner, Folder: in.certificates(r.Name)}
	if issued := in.node.Certificates[CertificateKey{in.Name, r.Name}]; slices.Equal(issued.Names, asked.Names) {
		spec.Certificate = issued.DER
	}
	if asked.Authority {
		spec.Authority = in.facts.Authority
	}
	return spec
}
