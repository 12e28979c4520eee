package linux

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// capabilities says what this node understands: containers only where an engine answers, whenever that was installed, or where it has
// some that are to be stopped or removed once it answers again. The binary is read once: what runs does not change when its file does.
func capabilities(c Config, engine func() string, had func() bool) func() wire.Capabilities {
	digest := sync.OnceValue(binaryDigest)
	return func() wire.Capabilities {
		answers, kinds := engine(), slices.Clone(wire.ResourceKinds)
		if answers == "" && !had() {
			kinds = slices.DeleteFunc(kinds, func(k wire.ResourceKind) bool { return k == wire.Container })
		}
		return wire.Capabilities{
			Wire: wire.Version, Binary: c.Version, Digest: digest(), OS: runtime.GOOS, Architecture: runtime.GOARCH,
			Distribution: distribution("/etc/os-release", "/usr/lib/os-release"), Init: initSystem(), Runtime: answers,
			State: c.Installation.Dir, Kinds: kinds,
		}
	}
}

func binaryDigest() appliance.Digest {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return appliance.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// distribution is the ID in os-release.
func distribution(paths ...string) string {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if id, ok := strings.CutPrefix(strings.TrimSpace(line), "ID="); ok {
				return strings.Trim(id, `"'`)
			}
		}
		return "linux" // what os-release says where it does not say
	}
	return ""
}

func initSystem() string {
	if underSystemd() {
		return "systemd"
	}
	if _, err := os.Stat("/run/openrc/softlevel"); err == nil {
		return "openrc"
	}
	return "none"
}

// machineID is a hash, since the id itself is confidential; empty where the machine has none.
func machineID() string {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if data, err := os.ReadFile(path); err == nil {
			if id := strings.TrimSpace(string(data)); len(id) == 32 {
				return string(appliance.DigestOf([]byte("mesh machine\n" + id)))
			}
		}
	}
	return ""
}
