package artifacts

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
)

// Access decides who may have what of the store (BLD-6).
type Access struct {
	Mesh    appliance.MeshID
	Signing ed25519.PublicKey // the mesh's

	// Declared gives the manifests that a node's present declaration names. It refuses a key that is not the node's live one.
	Declared func(node appliance.NodeID, key *ecdsa.PublicKey) ([]appliance.Digest, error)
	// Beneath says whether a digest is one of the manifests, or something one of them names.
	Beneath func(d appliance.Digest, manifests []appliance.Digest) bool
}

// Asker is who asks, as far as it has proved that: by a client certificate that the mesh's authority has signed, by a grant, by neither.
type Asker struct {
	Node  appliance.NodeID // empty: the certificate is not a node's, or there is none
	Key   *ecdsa.PublicKey // the certificate's
	Grant string
}

// Action is what is asked of the store.
type Action int

const (
	Look Action = iota // is it there?
	Pull
	Push
)

// Allow refuses what may not be. For a push it gives what the module may hold afterwards.
func (a Access) Allow(who Asker, action Action, module appliance.ModuleName, artifact string, d appliance.Digest, now time.Time) (maxBytes int64, err error) {
	if who.Grant != "" && action != Pull {
		g, err := OpenGrant(who.Grant, a.Mesh, a.Signing, now)
		if err != nil {
			return 0, err
		}
		if !g.Covers(module, artifact) {
			return 0, appliance.Errorf(appliance.Denied, "the grant is for %s, not for %s/%s", g.what(), module, artifact)
		}
		return g.MaxBytes, nil
	}
	if action == Push {
		return 0, unproven("a push needs a grant of the mesh")
	}
	if who.Node == "" {
		return 0, unproven("a pull needs the certificate of a node of this mesh")
	}
	declared, err := a.Declared(who.Node, who.Key)
	if err != nil {
		return 0, err
	}
	if !slices.Contains(declared, d) && !a.Beneath(d, declared) {
		return 0, appliance.Errorf(appliance.Denied, "the declaration of node %s names nothing with %s", who.Node, d)
	}
	return 0, nil
}

func (g Grant) what() string {
	if g.Artifact == "" {
		return "module " + string(g.Module)
	}
	return string(g.Module) + "/" + g.Artifact
}

// Unproven marks a refusal of somebody who has not shown who they are.
const Unproven appliance.Reason = "unproven"

func unproven(text string) error {
	return appliance.Errorf(appliance.Denied, "%s", text).WithReason(Unproven)
}
