package artifacts

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
)

// unpack makes dir of a layer, whole and on disk, or not at all. The layer is what its digest says, and may still be anything: it is held
// to the form that PackFiles gives it, and to the extent that its manifest states.
func unpack(layer io.Reader, bound extent, dir string) error {
	tmp := dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	err := os.Mkdir(tmp, 0o755)
	if err == nil {
		err = unpackInto(layer, bound, tmp)
	}
	if err == nil {
		err = os.Chmod(tmp, 0o755)
	}
	if err == nil {
		err = syncTree(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		os.RemoveAll(tmp)
		return err
	}
	return durable.SyncFolder(filepath.Dir(dir))
}

// syncTree syncs the file system that holds the tree at once: for thousands of files that is far quicker than one by one.
func syncTree(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// headers bounds what the archive's own form takes beside the files' content, by entry and in all, in bytes.
const (
	headers     = 8 << 10
	headersOnce = 1 << 20
	maxWindow   = 8 << 20 // of memory that a compressed stream may ask for
)

func unpackInto(layer io.Reader, bound extent, dir string) error {
	z, err := zstd.NewReader(layer, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer z.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	most := bound.bytes + int64(bound.entries)*headers + headersOnce
	u := unpacking{archive: tar.NewReader(&atMost{z, most, most}), at: root, name: ".", root: root, bound: bound, folders: map[string]bool{".": true}}
	defer u.leave()
	for {
		h, err := u.archive.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = u.entry(h)
		}
		if err != nil {
			return archiveError(err)
		}
	}
}

// archiveError is Invalid unless the disk or a refusal says otherwise.
func archiveError(err error) error {
	var e *appliance.Error
	var disk *os.PathError
	if errors.As(err, &e) || errors.As(err, &disk) {
		return err
	}
	return appliance.Errorf(appliance.Invalid, "the archive is damaged: %w", err)
}

// atMost refuses more bytes than were announced.
type atMost struct {
	from        io.Reader
	left, bound int64
}

func (a *atMost) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	if a.left -= int64(n); a.left < 0 {
		return 0, appliance.Errorf(appliance.Invalid, "the archive grows beyond %d bytes, more than it was announced with", a.bound)
	}
	return n, err
}

// unpacking is one archive on its way into a folder.
type unpacking struct {
	archive *tar.Reader
	root    *os.Root
	bound   extent
	size    extent
	folders map[string]bool // made so far

	at   *os.Root // the folder in hand: entries come folder by folder
	name string   // its name
}

func (u *unpacking) leave() {
	if u.at != u.root {
		u.at.Close()
	}
}

// enter takes the folder of an entry in hand, which has to have been made by an entry of its own: nothing is written through a link.
func (u *unpacking) enter(name string) (base string, err error) {
	dir, base := path.Dir(name), path.Base(name)
	if !u.folders[dir] {
		return "", appliance.Errorf(appliance.Invalid, "%s: its folder is not an earlier folder of the archive", appliance.Quote(name))
	}
	if dir == u.name {
		return base, nil
	}
	u.leave()
	u.at, u.name = u.root, "."
	if dir == "." {
		return base, nil
	}
	at, err := u.root.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	u.at, u.name = at, dir
	return base, nil
}

func (u *unpacking) entry(h *tar.Header) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	if err := checkName(name); err != nil {
		return err
	}
	if h.Mode&^0o777 != 0 {
		return appliance.Errorf(appliance.Invalid, "%s: mode %o sets more than permissions", appliance.Quote(name), h.Mode)
	}
	if err := u.size.add(u.bound, h.Size); err != nil {
		return appliance.Errorf(appliance.Invalid, "%s: %w", appliance.Quote(name), err)
	}
	base, err := u.enter(name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err = u.at.Mkdir(base, 0o755); err == nil {
			err = u.at.Chmod(base, 0o755) // the umask does not decide
		}
		u.folders[name] = true
	case tar.TypeReg:
		mode := os.FileMode(0o644)
		if h.Mode&0o111 != 0 {
			mode = 0o755
		}
		err = u.file(base, mode)
	case tar.TypeSymlink:
		if err := checkLink(name, h.Linkname); err != nil {
			return err
		}
		err = u.at.Symlink(h.Linkname, base)
	default:
		return appliance.Errorf(appliance.Invalid, "%s: an entry of type %q, neither a file, a folder nor a symbolic link", appliance.Quote(name), h.Typeflag)
	}
	if errors.Is(err, os.ErrExist) {
		return appliance.Errorf(appliance.Invalid, "%s: it is twice in the archive", appliance.Quote(name))
	}
	return err
}

func (u *unpacking) file(base string, mode os.FileMode) error {
	f, err := u.at.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, u.archive)
	if err == nil {
		err = f.Chmod(mode)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
