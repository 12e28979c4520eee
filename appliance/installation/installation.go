// Package installation knows where an installation of the mesh lies on this machine, what it is, and who is changing it.
// It makes no state beyond the record and the lock; what lies in the folders belongs to the packages that write it.
package installation

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/novox/mesh/appliance"
)

// Default is the state folder when nothing else is said.
const Default = "/var/lib/mesh"

// Variable names the state folder in the environment.
const Variable = "MESH_STATE"

// Installation is one state folder. Several may lie on one machine.
type Installation struct{ Dir string }

// Find decides which installation is meant: the flag, else MESH_STATE, else the default. It need not exist.
func Find(flag string) (Installation, error) {
	dir, from := flag, "--state"
	if dir == "" {
		dir, from = os.Getenv(Variable), Variable
		if dir != "" && !filepath.IsAbs(dir) {
			return Installation{}, appliance.Errorf(appliance.Invalid, "find installation: %s=%s is not an absolute path", Variable, appliance.Quote(dir)).
				WithHint("processes of the mesh run in other folders; only an absolute path means the same in all")
		}
	}
	if dir == "" {
		dir = Default
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Installation{}, fmt.Errorf("find installation: %w", err)
	}
	return at(dir, from)
}

// at takes a clean absolute path. The folder itself may be no link: whoever can change the link would choose the keys.
func at(dir, from string) (Installation, error) {
	if len(dir) > 200 || dir == "/" || !plain(dir) {
		return Installation{}, appliance.Errorf(appliance.Invalid, "find installation: %s %s cannot be a state folder", from, appliance.Quote(dir)).
			WithHint("a folder of its own; letters, digits, and ._-+@/ only, at most 200 bytes")
	}
	info, err := os.Lstat(dir)
	switch {
	case os.IsNotExist(err):
	case err != nil:
		return Installation{}, fmt.Errorf("find installation: %w", err)
	case info.Mode()&os.ModeSymlink != 0:
		return Installation{}, appliance.Errorf(appliance.Invalid, "find installation: %s is a symbolic link", dir).WithHint("name the folder it points to")
	case !info.IsDir():
		return Installation{}, appliance.Errorf(appliance.Invalid, "find installation: %s is not a folder", dir).WithHint("name the folder of an installation, or one that is to be made")
	}
	return Installation{Dir: dir}, nil
}

// plain keeps paths to what needs no quoting in unit files, configuration files and command lines.
func plain(dir string) bool {
	for _, c := range dir {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '/', c == '.', c == '_', c == '-', c == '+', c == '@':
		default:
			return false
		}
	}
	return true
}

func (i Installation) path(parts ...string) string {
	return filepath.Join(append([]string{i.Dir}, parts...)...)
}

func (i Installation) File() string     { return i.path("mesh.json") }
func (i Installation) LockFile() string { return i.path("lock") }

// LeavingFile is there from when the machine begins to leave, and for as long as something is kept.
func (i Installation) LeavingFile() string { return i.path("leaving.json") }

// Binary is what everything of the installation runs; Previous what it ran before.
func (i Installation) Binary() string   { return i.path("bin", "mesh") }
func (i Installation) Previous() string { return i.path("bin", "mesh.previous") }

// BinaryFor is the binary of an architecture: a hub hands out others than its own.
func (i Installation) BinaryFor(architecture string) string {
	if architecture == runtime.GOARCH {
		return i.Binary()
	}
	return i.path("bin", OtherBinary(architecture))
}

// OtherBinary is what a binary of another architecture is called beside this machine's own.
func OtherBinary(architecture string) string { return "mesh-linux-" + architecture }

// Node is the agent's folder, root's alone.
func (i Installation) Node() string     { return i.path("node") }
func (i Installation) NodeKeys() string { return i.path("node", "keys") }

// Certificate is the node's own, PEM.
func (i Installation) Certificate() string { return i.path("node", "tls.crt") }

// Hub is the controller's folder, of user mesh alone.
func (i Installation) Hub() string     { return i.path("hub") }
func (i Installation) HubKeys() string { return i.path("hub", "keys") }

// Operator is the first operator's credential file.
func (i Installation) Operator() string { return i.path("operator", "admin.json") }

// Module is an instance's own folder, ${dir} in its manifest.
func (i Installation) Module(instance appliance.InstanceName) string {
	return i.path("modules", string(instance))
}

// Artifacts holds the unpacked artifacts of kind files.
func (i Installation) Artifacts() string { return i.path("artifacts") }

func (i Installation) Run() string { return i.path("run") }

// ProcessDir is the folder of the supervisor of one process.
func (i Installation) ProcessDir(instance appliance.InstanceName, name string) string {
	return i.path("run", "process", string(instance)+"."+name)
}
