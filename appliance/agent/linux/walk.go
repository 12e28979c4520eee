package linux

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// Root works in folders that belong to modules' users, who can put links and other people's files there. So nothing is done by path:
// a path is walked from the root, descriptor by descriptor, and a symbolic link counts only in a folder where root alone can have put it.

// place is where something is, or shall be: a folder held open, and a name in it.
type place struct {
	folder *os.File
	name   string
	path   string // for messages
}

func (p place) close() { p.folder.Close() }

func (p place) fd() int { return int(p.folder.Fd()) }

func (p place) fail(what string, err error) error {
	return fmt.Errorf("%s %s: %w", what, p.path, err)
}

const maxLinks = 40

// walk opens the folder that holds at.
func walk(at string) (place, error) {
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" {
		return place{}, appliance.Errorf(appliance.Invalid, "open %s: not an absolute, clean path beneath /", appliance.Quote(at))
	}
	dir, err := openFolder(path.Dir(at))
	if err != nil {
		return place{}, fmt.Errorf("open folder of %s: %w", at, err)
	}
	return place{dir, path.Base(at), at}, nil
}

// openFolder holds the folder at dir. It may be used beneath, not read.
func openFolder(dir string) (*os.File, error) {
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open("/", how, 0)
	if err != nil {
		return nil, err
	}
	held := os.NewFile(uintptr(fd), "/")
	left := strings.Split(strings.Trim(dir, "/"), "/")
	for links := 0; len(left) > 0; {
		part := left[0]
		left = left[1:]
		if part == "" || part == "." {
			continue
		}
		var st unix.Stat_t
		fd, err := unix.Openat(int(held.Fd()), part, how, 0)
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if err != nil {
			held.Close()
			return nil, &os.PathError{Op: "open", Path: path.Join(held.Name(), part), Err: err}
		}
		next := os.NewFile(uintptr(fd), path.Join(held.Name(), part))
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			held.Close()
			held = next
			continue
		case unix.S_IFLNK:
			target, err := followed(held, next)
			if links++; err == nil && links > maxLinks {
				err = &os.PathError{Op: "open", Path: dir, Err: unix.ELOOP}
			}
			next.Close()
			if err != nil {
				held.Close()
				return nil, err
			}
			left = append(strings.Split(target, "/"), left...)
			if path.IsAbs(target) {
				held.Close()
				if fd, err = unix.Open("/", how, 0); err != nil {
					return nil, err
				}
				held = os.NewFile(uintptr(fd), "/")
			}
		default:
			held.Close()
			next.Close()
			return nil, &os.PathError{Op: "open", Path: next.Name(), Err: unix.ENOTDIR}
		}
	}
	return held, nil
}

// followed gives the target of a link that lies in folder, where it may be followed.
func followed(folder, link *os.File) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(folder.Fd()), &st); err != nil {
		return "", err
	}
	if st.Uid != 0 || st.Mode&0o022 != 0 {
		return "", appliance.Errorf(appliance.Denied, "open %s: a symbolic link in a folder that others than root can change", link.Name()).
			WithHint("remove the link")
	}
	buffer := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", buffer)
	if err != nil {
		return "", err
	}
	return string(buffer[:n]), nil
}

// open opens what is at the place itself, never what a link there points to, and never waits for a pipe. Nil when nothing is there.
func (p place) open(kind uint32, noun string) (*os.File, *unix.Stat_t, error) {
	how := unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	var st unix.Stat_t
	err := unix.Fstatat(p.fd(), p.name, &st, unix.AT_SYMLINK_NOFOLLOW) // before opening: a device does things when opened
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, p.fail("look at", err)
	}
	other := func() error {
		return appliance.Errorf(appliance.Conflict, "open %s: there is something that is not a %s", p.path, noun).WithHint("move it away")
	}
	if st.Mode&unix.S_IFMT != kind {
		return nil, nil, other()
	}
	fd, err := unix.Openat(p.fd(), p.name, how, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, p.fail("open", err)
	}
	f := os.NewFile(uintptr(fd), p.path)
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != kind {
		err = other()
	}
	if err != nil {
		f.Close()
		return nil, nil, p.fail("open", err)
	}
	return f, &st, nil
}

// sync makes what changed in the folder durable.
func (p place) sync() error {
	fd, err := unix.Openat(p.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p.fail("sync folder of", err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil {
		return p.fail("sync folder of", err)
	}
	return nil
}
