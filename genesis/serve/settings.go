// Package serve is the process of the hub: broker, store, controller, artifact store and download server in one, without privileges. It starts the
// parts, keeps them going and founds the mesh from what genesis decided. What the parts do is theirs.
package serve

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
)

// Settings is hub.json: what genesis decided, once. The records say what is so; this file is what the hub needs before it has them.
type Settings struct {
	Version     int              `json:"version"`
	Mesh        appliance.MeshID `json:"mesh"`
	Name        string           `json:"name"`
	Endpoints   []string         `json:"endpoints"` // of the broker, from outside: host:port
	Range       netip.Prefix     `json:"range"`
	Ports       Ports            `json:"ports"`
	Hub         Hub              `json:"hub"`
	Operator    Operator         `json:"operator"`
	StoreFile   string           `json:"storeFile,omitempty"`   // a DSN to an existing server; empty: the private cluster
	PostgresBin string           `json:"postgresBin,omitempty"` // empty: the newest on the machine
	Ballast     *disk.Size       `json:"ballast,omitempty"`     // bytes held in reserve for a full disk; absent: 64 MiB
	Founded     time.Time        `json:"founded"`
}

// Ports are what the hub's own parts bind.
type Ports struct {
	Broker    uint16 `json:"broker"`
	Downloads uint16 `json:"downloads"`
	Artifacts uint16 `json:"artifacts"` // absent: 4281
	Overlay   uint16 `json:"overlay"`
}

// Hub is the hub's own node.
type Hub struct {
	ID           appliance.NodeID   `json:"id"`
	Name         appliance.NodeName `json:"name"`
	Address      netip.Addr         `json:"address"`
	Keys         wire.PublicKeys    `json:"keys"`
	Certificate  []byte             `json:"certificate"` // DER
	Capabilities wire.Capabilities  `json:"capabilities"`
}

// Operator is the first operator's public half.
type Operator struct {
	ID      appliance.OperatorID   `json:"id"`
	Name    appliance.OperatorName `json:"name"`
	Signing ed25519.PublicKey      `json:"signing"` // base64 in the file
	Bus     string                 `json:"bus"`
}

// Where things lie in the hub's folder.
func SettingsFile(i installation.Installation) string { return filepath.Join(i.Hub(), "hub.json") }
func AuthorityFile(i installation.Installation) string {
	return filepath.Join(i.Hub(), "authority.crt")
}
func UsersFile(i installation.Installation) string { return filepath.Join(i.Hub(), "users.conf") }

// LockFile is held by who works with the hub's parts: serve, or what needs them at rest.
func LockFile(i installation.Installation) string { return filepath.Join(i.Hub(), "lock") }

// MembershipFile is the last membership, signed: what the servers know of it before the records are there.
func MembershipFile(i installation.Installation) string { return filepath.Join(i.Hub(), "membership") }

// FoundedFile says that the records were written: from then on they are looked for, never made.
func FoundedFile(i installation.Installation) string { return filepath.Join(i.Hub(), "founded") }

// Folders of the base bundles' data; bundles names them.
func Cluster(i installation.Installation) string {
	return filepath.Join(i.Module("mesh-store"), "store", "cluster")
}

// NewCluster is where a cluster of another major is made beside it.
func NewCluster(i installation.Installation) string { return Cluster(i) + ".new" }
func Streams(i installation.Installation) string {
	return filepath.Join(i.Module("mesh-broker"), "data")
}
func Artifacts(i installation.Installation) string {
	return filepath.Join(i.Module("artifact-store"), "data")
}

// DefaultArtifacts is the artifact store's port where hub.json was written before there was one.
const DefaultArtifacts = 4281

const (
	settingsVersion = 1 // the form of hub.json
	maxSettings     = 64 << 10
)

// ReadSettings reads hub.json; os.ErrNotExist where genesis has not got so far.
func ReadSettings(i installation.Installation) (Settings, error) {
	var s Settings
	data, err := readSettings(SettingsFile(i))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read %s: %w", SettingsFile(i), err)
	}
	if s.Version != settingsVersion {
		return s, appliance.Errorf(appliance.Conflict, "read %s: version %d, this binary reads %d", SettingsFile(i), s.Version, settingsVersion).WithHint("run the binary that wrote it, or a newer one")
	}
	if s.Ports.Artifacts == 0 {
		s.Ports.Artifacts = DefaultArtifacts
	}
	return s, nil
}

// readSettings reads no more than a settings file can be: root's agent reads it in a folder of user mesh, who could make it anything.
func readSettings(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = appliance.Errorf(appliance.Invalid, "read %s: not a regular file", path)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err == nil && len(data) > maxSettings {
		err = appliance.Errorf(appliance.Invalid, "read %s: more than %d bytes", path, maxSettings)
	}
	return data, err
}

// Write puts hub.json in place.
func (s Settings) Write(i installation.Installation) error {
	s.Version = settingsVersion
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(SettingsFile(i), append(data, '\n'), 0o600)
}

// Carried is what the hub's parts bind, as its agent states it (PORT-2).
func (s Settings) Carried() []wire.CarriedPort {
	return []wire.CarriedPort{
		{Port: s.Ports.Broker, Protocol: "tcp", Part: "broker"},
		{Port: s.Ports.Downloads, Protocol: "tcp", Part: "downloads"},
		{Port: s.Ports.Artifacts, Protocol: "tcp", Part: "artifacts"},
		{Port: s.Ports.Overlay, Protocol: "udp", Part: "overlay"},
	}
}
