package services

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
)

// InstallBinary puts the running binary where the installation runs it from. The same bytes are left alone.
func InstallBinary(i installation.Installation) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if self == i.Binary() {
		return nil
	}
	have, err1 := sum(i.Binary())
	want, err2 := sum(self)
	if err1 == nil && err2 == nil && have == want {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(i.Binary()), 0o755); err != nil {
		return err
	}
	in, err := os.Open(self)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := i.Binary() + ".new"
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
		err = os.Rename(tmp, i.Binary())
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("install %s: %w", i.Binary(), err)
	}
	return durable.SyncFolder(filepath.Dir(i.Binary()))
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

// Own gives a folder and everything in it to a user. Nothing in it follows a link.
func Own(dir, name string) error {
	u, err := user.Lookup(name)
	if err != nil {
		return err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}
