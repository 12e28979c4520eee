package artifacts

import (
	"crypto/ed25519"
	"encoding/base64"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Grant lets its bearer push to a module's artifacts for a while. The mesh signs it; the store needs nothing else to believe it.
type Grant struct {
	Module   appliance.ModuleName `json:"module"`
	Artifact string               `json:"artifact,omitempty"` // empty: every one of the module
	MaxBytes int64                `json:"maxBytes"`           // what the module may hold after the push
	Expires  time.Time            `json:"expires"`
}

// maxGrant bounds the text of a grant, in bytes: a header of a request has to hold it.
const maxGrant = 4096

// IssueGrant signs a grant for an operator. The header says which mesh, who and when; its nonce makes every grant another.
func IssueGrant(g Grant, h wire.Header, key ed25519.PrivateKey) (string, error) {
	body, err := wire.Encode(g)
	if err != nil {
		return "", err
	}
	h.Kind = wire.KindGrant
	sealed, err := wire.Seal(h, body, key)
	return base64.RawURLEncoding.EncodeToString(sealed), err
}

// OpenGrant gives what the mesh has granted with a text, where it still holds.
func OpenGrant(text string, mesh appliance.MeshID, key ed25519.PublicKey, now time.Time) (Grant, error) {
	var g Grant
	refuse := func(why string) (Grant, error) {
		return Grant{}, appliance.Errorf(appliance.Denied, "the grant %s", why).WithHint("a grant holds for a short while and for one module; the push commands ask for one by themselves")
	}
	if len(text) > maxGrant {
		return refuse("is none: it is too long")
	}
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return refuse("is none")
	}
	h, body, err := wire.Open(sealed, wire.KindGrant, key)
	switch {
	case err != nil:
		return refuse("is not one of this mesh's")
	case h.Mesh != mesh || h.From != string(mesh):
		return refuse("is another mesh's")
	case wire.Decode(body, &g) != nil:
		return refuse("says what this version does not know")
	case !now.Before(g.Expires):
		return refuse("has ended " + g.Expires.Format(time.RFC3339))
	}
	return g, nil
}

// Covers says whether the grant is for an artifact.
func (g Grant) Covers(module appliance.ModuleName, artifact string) bool {
	return g.Module == module && (g.Artifact == "" || g.Artifact == artifact)
}
