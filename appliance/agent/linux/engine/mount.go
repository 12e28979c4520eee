package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/novox/mesh/appliance"
)

// steady refuses a mount from the mesh's folder where somebody else than root could put another thing in the source's place: the engine
// follows links, each time it starts the container, and no agent is asked then. What a module mounts from elsewhere it was allowed to.
func (e *Engine) steady(w wanted) error {
	for _, m := range w.spec.Mounts {
		rest, inside := strings.CutPrefix(m.Source, e.config.State+"/")
		if !inside {
			continue
		}
		at := e.config.State
		for part := range strings.SplitSeq(rest, "/") {
			if err := onlyRoots(at); err != nil {
				return fmt.Errorf("mount %s: %w", m.Source, err)
			}
			at = filepath.Join(at, part)
		}
		if info, err := os.Lstat(at); err != nil || info.Mode()&os.ModeSymlink != 0 {
			return appliance.Errorf(appliance.Conflict, "mount %s: it is a link, or not there", m.Source).WithHint("what is mounted is a folder or file of the module")
		}
	}
	return nil
}

// onlyRoots refuses what is no folder, or one in which others than root can put things.
func onlyRoots(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || st.Uid != 0 || st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0 {
		return appliance.Errorf(appliance.Denied, "%s is not root's alone, so that what lies in it could lead elsewhere", dir).
			WithHint("mount that folder itself, or give it to root")
	}
	return nil
}
