package linux

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance/agent/linux/engine"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/pki"
)

// newEngine gives the machine's container engine, whether or not there is one now.
func newEngine(c Config) *engine.Engine {
	return engine.New(engine.Config{Mesh: c.Mesh, Node: c.Node, State: c.Installation.Dir, Credentials: c.credentials,
		Record: filepath.Join(c.Installation.Node(), "engine.json")})
}

// credentials are what this node shows to the artifact store.
func (c Config) credentials() (engine.Credentials, error) {
	trust, err := identity.ReadTrust(c.Installation.Node())
	if err != nil {
		return engine.Credentials{}, err
	}
	keys, err := identity.LoadNode(c.Installation.NodeKeys())
	if err != nil {
		return engine.Credentials{}, err
	}
	certificate, err := os.ReadFile(c.Installation.Certificate())
	if err != nil {
		return engine.Credentials{}, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(keys.TLS)
	if err != nil {
		return engine.Credentials{}, err
	}
	return engine.Credentials{Authority: pki.EncodePEM(trust.Authority), Certificate: certificate,
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})}, nil
}
