package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A process is known by its pid and its start time, so that a later process under the same pid is not mistaken for it.
type process struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func identify(pid int) (process, error) {
	start, _, err := stat(pid)
	if err != nil {
		return process{}, err
	}
	return process{Pid: pid, Start: start}, nil
}

// stat returns the start time and the state letter of a process.
func stat(pid int) (uint64, string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", err
	}
	// The command's name is in parentheses and may hold anything; the fields counted here come after it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, "", fmt.Errorf("process %d: /proc stat line is short", pid)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0], err
}

func (p process) alive() bool {
	if p.Pid == 0 {
		return false
	}
	start, state, err := stat(p.Pid)
	return err == nil && start == p.Start && state != "Z" && state != "X"
}

// kill ends the process and returns once it is gone.
func (p process) kill(ctx context.Context) error {
	if p.Pid == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	defer unix.Close(fd)
	if !p.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.Pid, err)
	}
	return until(ctx, func() string {
		if p.alive() {
			return fmt.Sprintf("process %d still runs after SIGKILL", p.Pid)
		}
		return ""
	})
}

// namespace names one namespace of a process, for example "pid:[4026531836]".
func namespace(pid int, kind string) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	return name
}

// inside lists the machine's pids of all processes in a namespace.
func inside(kind, name string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && name != "" && namespace(pid, kind) == name {
			pids = append(pids, pid)
		}
	}
	return pids
}

// patience bounds every wait for the kernel.
const patience = 20 * time.Second

// until waits for a condition that says what is not yet so.
func until(ctx context.Context, reason func() string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		why := reason()
		if why == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("after %s: %s", patience, why)
		}
	}
}
