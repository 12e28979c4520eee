package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cgroupMounts lists where this machine mounts cgroup2; none where it does not.
func cgroupMounts() ([]string, error) {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var paths []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			paths = append(paths, fields[1])
		}
	}
	return paths, lines.Err()
}

// removeGroups removes a control group with all beneath it; the kernel lets go of a group shortly after its last process.
func removeGroups(ctx context.Context, path string) error {
	if path == "" {
		return nil
	}
	return until(ctx, func() string {
		var groups []string
		err := filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, at)
			}
			return err
		})
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		for i := len(groups) - 1; i >= 0; i-- {
			if err := os.Remove(groups[i]); err != nil {
				return fmt.Sprintf("control group remains: %v", err)
			}
		}
		return ""
	})
}
