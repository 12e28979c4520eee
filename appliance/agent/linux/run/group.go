package run

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Group gives the folder of the cgroup (version 2) that a process is in; empty where there is none to be found.
func Group(pid int) string {
	number := strconv.Itoa(pid)
	text, err := os.ReadFile("/proc/" + number + "/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		path, two := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !two {
			continue
		}
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			group := filepath.Join(root, path)
			if all, err := os.ReadFile(filepath.Join(group, "cgroup.procs")); err == nil && slices.Contains(strings.Fields(string(all)), number) {
				return group
			}
		}
	}
	return ""
}
