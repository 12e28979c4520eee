package run

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat gives the fields of /proc/PID/stat that follow the program's name, from the third on; nil where there is no such process.
func Stat(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return nil
	}
	return fields
}

// session is the session of a process that runs, 0 where there is none.
func session(pid int) int {
	if fields := Stat(pid); fields != nil && fields[0] != "Z" {
		id, _ := strconv.Atoi(fields[3])
		return id
	}
	return 0
}

// KillSession kills the processes of a session: a shell puts what it starts on a terminal into groups of their own, so that a group is
// not enough. What they start meanwhile is found by looking again.
func KillSession(leader int) {
	killed := map[int]bool{0: true, 1: true}
	if killed[leader] {
		return
	}
	for found := true; found; {
		found = false
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil || killed[pid] || session(pid) != leader {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			if session(pid) == leader { // and is no other's that got the number
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				killed[pid], found = true, true
			}
			unix.Close(fd)
		}
	}
}
