package linux

import (
	"context"
	"encoding/json"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// leavingUsers are users of whom it is also known what else belongs to them, once a machine leaves.
type leavingUsers struct {
	users
	files *belongings
}

// Holds names a file that belongs to a user the mesh made: without the user it would be the next one's who gets the number. Of data that
// stays Undo knows.
func (u leavingUsers) Holds(ctx context.Context, r wire.Resource, undo json.RawMessage) (string, error) {
	s, err := readUser(r)
	if err != nil {
		return "", err
	}
	before, _, err := record[userBefore](undo)
	if err != nil || before.User {
		return "", err
	}
	if owns, err := u.data.ownedBy(s.Name); owns || err != nil {
		return "", err
	}
	uid, err := userID(s.Name)
	if appliance.KindOf(err) == appliance.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	path, whole := u.files.of(ctx, uid)
	switch {
	case path != "":
		return path + " belongs to it", nil
	case !whole:
		return "not all files could be looked at, and some may belong to it", ctx.Err()
	}
	return "", nil
}

// belongings is where files of each user are, as far as users can have any: looked for once, at the first question.
type belongings struct {
	looked bool
	whole  bool
	first  map[int]string // by uid, without root's
}

const lookWithin = time.Minute

// of gives a file of a user's; empty where there is none, which counts only where whole is true.
func (b *belongings) of(ctx context.Context, uid int) (path string, whole bool) {
	if !b.looked {
		ctx, cancel := context.WithTimeout(ctx, lookWithin)
		defer cancel()
		b.first = map[int]string{}
		b.whole = b.look(ctx, "/") == nil
		b.looked = ctx.Err() == nil || b.whole
	}
	return b.first[uid], b.whole
}

// elsewhere are folders that nobody but root writes to, and those of container engines, where the numbers are of other machines' users.
var elsewhere = []string{"/usr", "/boot", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/lxc", "/var/lib/machines"}

// local are the filesystems that are this machine's own. On others the numbers may be another's.
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	0x2fc12fc1 /* ZFS */, unix.REISERFS_SUPER_MAGIC, 0x3153464a /* JFS */, unix.MSDOS_SUPER_MAGIC, unix.RAMFS_MAGIC}

// closed says whether nobody but root comes into a folder.
func closed(st *syscall.Stat_t) bool {
	return st.Uid == 0 && st.Mode&0o001 == 0 && (st.Mode&0o010 == 0 || st.Gid == 0)
}

func (b *belongings) look(ctx context.Context, root string) error {
	devices := map[uint64]bool{} // whether to look there
	return filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil // gone meanwhile
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		st := info.Sys().(*syscall.Stat_t)
		if e.IsDir() {
			here, known := devices[st.Dev]
			if !known {
				var f unix.Statfs_t
				here = unix.Statfs(path, &f) == nil && slices.Contains(local, int64(f.Type))
				devices[st.Dev] = here
			}
			if !here || slices.Contains(elsewhere, path) || closed(st) {
				return fs.SkipDir
			}
		}
		if uid := int(st.Uid); uid != 0 && b.first[uid] == "" && path != root {
			b.first[uid] = path
		}
		return nil
	})
}
