package services

import (
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
)

// InstallBinary puts the running binary where the installation runs it from.
func InstallBinary(i installation.Installation) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return install(self, i.Binary())
}

// InstallOthers puts the binaries of other architectures beside it, for the hub to hand out.
func InstallOthers(i installation.Installation) error {
	others, err := OtherBinaries()
	for architecture, path := range others {
		err = errors.Join(err, install(path, i.BinaryFor(architecture)))
	}
	return err
}

// elfMachines are how a binary names the architecture it was built for.
var elfMachines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// OtherBinaries finds those that lie beside the running one. One that was built for something else than its name says is refused.
func OtherBinaries() (map[string]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return besides(self)
}

func besides(self string) (map[string]string, error) {
	found := map[string]string{}
	for _, architecture := range wire.Architectures {
		path := filepath.Join(filepath.Dir(self), installation.OtherBinary(architecture))
		if _, err := os.Stat(path); architecture == runtime.GOARCH || os.IsNotExist(err) {
			continue
		}
		f, err := elf.Open(path)
		if err == nil {
			f.Close()
		}
		if err != nil || f.Machine != elfMachines[architecture] {
			return nil, appliance.Errorf(appliance.Invalid, "look at %s: it is no linux/%s binary", path, architecture).
				WithHint("the hub would hand it to machines of that kind; `make build` makes it anew")
		}
		found[architecture] = path
	}
	return found, nil
}

// install copies a binary. The same bytes are left alone.
func install(from, to string) error {
	if from == to {
		return nil
	}
	if have, err := sum(to); err == nil {
		if want, err := sum(from); err == nil && have == want {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := to + ".new"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if e := out.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp, to)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("install %s: %w", to, err)
	}
	return durable.SyncFolder(filepath.Dir(to))
}

func sum(path string) (out [32]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [32]byte(h.Sum(nil)), err
}
