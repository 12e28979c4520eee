package render

import (
	"net/netip"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Facts are what is so now, as one snapshot of the records.
type Facts struct {
	Mesh      appliance.MeshID
	Range     netip.Prefix
	Authority []byte             // the mesh's, DER
	Artifacts wire.ArtifactStore // without an address while nobody has said where it is
	Nodes     map[appliance.NodeID]NodeFacts
}

// NodeFacts are the facts of one node.
type NodeFacts struct {
	Name    appliance.NodeName
	Address netip.Addr // in the overlay; the zero address while it has none
	State   string     // its installation folder
	Adopted bool       // what was there before the mesh is left as it is (NODE-7)

	Certificates map[CertificateKey]Certificate // issued, for the key the node last asked about
}

// CertificateKey names a certificate on its node.
type CertificateKey struct {
	Instance appliance.InstanceName
	Name     string
}

// Certificate is what the authority has signed.
type Certificate struct {
	Names []string // sorted
	DER   []byte
}
