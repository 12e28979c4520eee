// Package disktest makes real small filesystems for tests. Nothing outside tests imports it.
package disktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance/disk"
)

// Small is a folder on a filesystem of its own, of so many bytes. It is mounted nowhere: only this process sees it, and it goes with the
// test, however that ends.
func Small(t testing.TB, size disk.Size) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a filesystem needs root: run the tests as root, as .ci/run does")
	}
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err == nil {
		defer unix.Close(config)
		err = unix.FsconfigSetString(config, "size", strconv.FormatUint(uint64(size), 10))
	}
	if err == nil {
		err = unix.FsconfigCreate(config)
	}
	var mount int
	if err == nil {
		mount, err = unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	}
	if err != nil {
		t.Fatalf("make a filesystem of %s: %v", size, err)
	}
	t.Cleanup(func() { unix.Close(mount) })
	return fmt.Sprintf("/proc/self/fd/%d", mount)
}

// Fill takes all the space there is in dir; the function gives it back.
func Fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	return func() {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}
