package services

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// Own gives a folder and everything in it to a user. The user may have had it before and be at work in it: so it goes by descriptors,
// follows no link, and gives no file away that has another name, which may lie elsewhere.
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
	folder, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return own(folder, uid, gid)
}

// own closes the folder.
func own(folder *os.File, uid, gid int) error {
	defer folder.Close()
	if err := folder.Chown(uid, gid); err != nil {
		return err
	}
	entries, err := folder.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := ownEntry(folder, e.Name(), uid, gid); err != nil {
			return err
		}
	}
	return nil
}

func ownEntry(folder *os.File, name string, uid, gid int) error {
	path := filepath.Join(folder.Name(), name)
	fail := func(err error) error { return &os.PathError{Op: "give away", Path: path, Err: err} }
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail(err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		next, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fail(err)
		}
		return own(os.NewFile(uintptr(next), path), uid, gid)
	}
	if int(st.Uid) == uid && int(st.Gid) == gid {
		return nil
	}
	if st.Nlink > 1 {
		return appliance.Errorf(appliance.Denied, "give away %s: the file has %d names", path, st.Nlink).
			WithHint("another of them may lie where the user has no business; remove this one")
	}
	if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fail(err)
	}
	return nil
}
