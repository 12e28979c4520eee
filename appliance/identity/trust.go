package identity

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// Trust is what a node believes of its mesh, written once by genesis or join.
type Trust struct {
	Mesh      appliance.MeshID   `json:"mesh"`
	MeshName  string             `json:"meshName"`
	Signing   ed25519.PublicKey  `json:"signing"`   // base64 in the file
	Authority []byte             `json:"authority"` // DER, base64 in the file
	Broker    []string           `json:"broker"`    // host:port; the membership's take precedence once there is one
	Node      appliance.NodeID   `json:"node"`
	Name      appliance.NodeName `json:"name"`
}

// TrustFile is the file's name in the node's folder.
const TrustFile = "trust.json"

const maxTrust = 64 << 10

// ReadTrust reads the trust of the node whose folder is dir; NotFound when it has none.
func ReadTrust(dir string) (Trust, error) {
	path := filepath.Join(dir, TrustFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Trust{}, appliance.Errorf(appliance.NotFound, "read trust: this machine is in no mesh").WithHint("no file " + path)
	}
	if err != nil {
		return Trust{}, fmt.Errorf("read trust: %w", err)
	}
	if info.Size() > maxTrust {
		return Trust{}, appliance.Errorf(appliance.Invalid, "read trust: %s has %d bytes, at most %d", path, info.Size(), maxTrust)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return Trust{}, fmt.Errorf("read trust: %w", err)
	}
	var t Trust
	if err := json.Unmarshal(data, &t); err != nil { // not strict: the previous binary must read what the next one wrote
		return Trust{}, appliance.Errorf(appliance.Invalid, "read trust %s: %w", path, err)
	}
	return t, t.check()
}

// Write puts the trust into dir, whole or not at all.
func (t Trust) Write(dir string) error {
	if err := t.check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return fmt.Errorf("write trust: %w", err)
	}
	return durable.WriteFile(filepath.Join(dir, TrustFile), append(data, '\n'), 0o600)
}

func (t Trust) check() error {
	var what string
	switch {
	case !t.Mesh.Valid():
		what = "mesh id"
	case !t.Node.Valid():
		what = "node id"
	case len(t.Signing) != ed25519.PublicKeySize || [32]byte(t.Signing) == [32]byte{}:
		what = "mesh signing key"
	case len(t.Authority) == 0:
		what = "authority"
	case len(t.Broker) == 0:
		what = "broker endpoint"
	default:
		return nil
	}
	return appliance.Errorf(appliance.Invalid, "trust: no valid %s", what).WithHint("the node's trust.json is damaged; join again")
}
