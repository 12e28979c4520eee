package disk

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance/durable"
)

// Ballast is a file that only takes up space, to be let go when there is no other. One of size zero is never held.
type Ballast struct {
	Path string
	Size Size
}

// Held says whether it takes up its space.
func (b Ballast) Held() bool {
	info, err := os.Lstat(b.Path)
	return err == nil && info.Mode().IsRegular() && Size(info.Size()) == b.Size
}

// Hold takes the space up, all of it or nothing.
func (b Ballast) Hold() error {
	if b.Size == 0 || b.Held() {
		return nil
	}
	err := b.LetGo() // what a kill left half made, or was made for another size
	if err == nil {
		err = b.fill()
	}
	if err != nil {
		os.Remove(b.Path)
		return fmt.Errorf("hold %s in reserve: %w", b.Size, err)
	}
	return durable.SyncFolder(filepath.Dir(b.Path))
}

func (b Ballast) fill() error {
	f, err := os.OpenFile(b.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(b.Size))
	if errors.Is(err, unix.EOPNOTSUPP) { // random bytes are what no filesystem makes smaller
		_, err = io.CopyN(f, rand.Reader, int64(b.Size))
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// LetGo gives the space back.
func (b Ballast) LetGo() error {
	if err := os.Remove(b.Path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("let go of the reserve: %w", err)
	}
	return nil
}
