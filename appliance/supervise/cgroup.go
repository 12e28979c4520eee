package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// groupRoot is where cgroups of version 2 are; empty where there are none.
func groupRoot() string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return root
		}
	}
	return ""
}

// supervisorsGroup is where supervisors themselves are, so that none is in the cgroup of who started it.
const supervisorsGroup = "mesh-supervisors"

// makeGroup makes a cgroup and gives its folder; empty where that is not possible.
func makeGroup(name string) string {
	root := groupRoot()
	if root == "" {
		return ""
	}
	group := filepath.Join(root, name)
	if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
		return ""
	}
	if f, err := os.OpenFile(filepath.Join(group, "cgroup.procs"), os.O_WRONLY, 0); err == nil {
		f.Close()
		return group
	}
	return ""
}

// Tidy removes the supervisors' control group where none is in it any more, of whatever installation.
func Tidy() {
	if root := groupRoot(); root != "" {
		removeGroup(filepath.Join(root, supervisorsGroup))
	}
}

// groupName is one per folder, so that also a supervisor without memory finds what its predecessor started.
func groupName(dir string) string { return "mesh-" + appliance.DigestOf([]byte(key(dir))).Short() }

// key names a folder on this kernel: with mount namespaces, one path is many folders.
func key(dir string) string {
	var st unix.Stat_t
	unix.Stat(dir, &st) // it is there: we hold a lock in it
	return fmt.Sprintf("%s#%x:%d", dir, st.Dev, st.Ino)
}

// groupPIDs are the processes in the group and in groups beneath it.
func groupPIDs(group string) (pids []int) {
	filepath.WalkDir(group, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil
		}
		data, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for _, f := range strings.Fields(string(data)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// removeGroup removes the empty group with what its processes made beneath it. The kernel lets go of a group shortly after its last
// process, so it tries for a while; a group that stays empty does no harm and is used again.
func removeGroup(group string) {
	for range 100 {
		var folders []string
		filepath.WalkDir(group, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		if len(folders) == 0 {
			return
		}
		for i := len(folders) - 1; i >= 0; i-- {
			os.Remove(folders[i])
		}
		time.Sleep(2 * time.Millisecond) // between two tries
	}
}
