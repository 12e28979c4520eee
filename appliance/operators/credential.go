package operators

import (
	"crypto/ed25519"
	"encoding/json"
	"os"

	"github.com/nats-io/nkeys"
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// Credential is the file an operator holds: who, of which mesh, and two keys; the one that signs requests never logs in to the bus.
type Credential struct {
	Mesh      appliance.MeshID     `json:"mesh"`
	MeshName  string               `json:"meshName"`
	Operator  appliance.OperatorID `json:"operator"`
	Name      string               `json:"name"`
	Role      Role                 `json:"role"`
	Broker    []string             `json:"broker"`    // host:port, tried in order
	Authority []byte               `json:"authority"` // DER of the mesh's certificate
	Signing   []byte               `json:"signing"`   // the mesh's public signing key
	Key       []byte               `json:"key"`       // Ed25519 seed
	Bus       string               `json:"bus"`       // nkey seed
}

// SigningKey gives the private half that signs requests.
func (c Credential) SigningKey() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(c.Key) }

// Public gives the public halves, as the records keep them.
func (c Credential) Public() (signing ed25519.PublicKey, bus string, err error) {
	pair, err := nkeys.FromSeed([]byte(c.Bus))
	if err != nil {
		return nil, "", appliance.Errorf(appliance.Invalid, "read the bus key of operator %s: it is damaged", c.Name)
	}
	bus, err = pair.PublicKey()
	return c.SigningKey().Public().(ed25519.PublicKey), bus, err
}

// ReadCredential reads and checks the file.
func ReadCredential(path string) (Credential, error) {
	var c Credential
	info, err := os.Stat(path)
	if err != nil {
		return c, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return c, appliance.Errorf(appliance.Denied, "read credential %s: others may read it (mode %04o)", path, info.Mode().Perm()).WithNext("chmod 600 " + path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, appliance.Errorf(appliance.Invalid, "read credential %s: %w", path, err)
	}
	if !c.Mesh.Valid() || !c.Operator.Valid() || len(c.Key) != ed25519.SeedSize || len(c.Signing) != ed25519.PublicKeySize || c.Bus == "" || len(c.Broker) == 0 {
		return c, appliance.Errorf(appliance.Invalid, "read credential %s: it is not whole", path)
	}
	return c, nil
}

// WriteCredential puts the file in place, readable by its owner only.
func WriteCredential(path string, c Credential) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(path, append(data, '\n'), 0o600)
}
