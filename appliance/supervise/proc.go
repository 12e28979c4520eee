package supervise

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// identity names a process beyond the reuse of its pid, within one boot.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in ticks since boot, field 22 of /proc/PID/stat
}

// process is one line of the process table.
type process struct {
	identity
	session int
	dead    bool // a zombie, or about to be none
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// look reads the process table's line for pid; false when there is none.
func look(pid int) (process, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	end := bytes.LastIndexByte(data, ')') // the name may hold anything, a ) too
	if end < 0 {
		return process{}, false
	}
	fields := strings.Fields(string(data[end+1:])) // the first is field 3, the state
	if len(fields) < 20 {
		return process{}, false
	}
	session, err1 := strconv.Atoi(fields[3])
	start, err2 := strconv.ParseUint(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return process{}, false
	}
	return process{identity{pid, start}, session, strings.ContainsAny(fields[0], "ZXx")}, true
}

// alive says whether this very process runs.
func (i identity) alive() bool {
	p, ok := look(i.PID)
	return ok && i.PID > 0 && p.identity == i && !p.dead
}

// open gives a descriptor that means this very process for ever; -1 when it is gone.
func (i identity) open() int {
	if i.PID <= 0 {
		return -1
	}
	fd, err := unix.PidfdOpen(i.PID, 0)
	if err != nil {
		return -1
	}
	if p, ok := look(i.PID); !ok || p.identity != i { // whose pid was it when we opened?
		unix.Close(fd)
		return -1
	}
	return fd
}

func (i identity) signal(s unix.Signal) {
	if fd := i.open(); fd >= 0 {
		unix.PidfdSendSignal(fd, s, nil, 0) // the only error of interest is that it is gone
		unix.Close(fd)
	}
}

// self is the calling process.
func self() identity {
	p, _ := look(os.Getpid())
	return p.identity
}

// marker is in the environment of everything that a supervisor of dir started.
const marker = "MESH_PROCESS"

// members finds the processes that belong to the folder: those in the cgroup, where there is one. Where there is none, those with the
// marker, and those in the session of a leader that is still to be seen (a pid that somebody else has got by now proves nothing).
func members(dir, group string, leader identity) (found []identity) {
	if group != "" {
		for _, pid := range groupPIDs(group) {
			if p, ok := look(pid); ok && !p.dead {
				found = append(found, p.identity)
			}
		}
		return found
	}
	l, ok := look(leader.PID)
	leads := ok && leader.PID > 0 && l.identity == leader
	mark := marker + "=" + key(dir)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, ok := look(pid)
		if ok && !p.dead && (leads && p.session == leader.PID || marked(pid, mark)) {
			found = append(found, p.identity)
		}
	}
	return found
}

func marked(pid int, mark string) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for v := range bytes.SplitSeq(data, []byte{0}) {
		if string(v) == mark {
			return true
		}
	}
	return false
}
