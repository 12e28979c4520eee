package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// orphanWithin is how long the server of a former life may take to stop.
const orphanWithin = 60 * time.Second

// clear makes room for a new server: one that still runs here, left by a parent
// that was killed, is asked to stop and waited for, its backends too. Lock
// files that name somebody else by now are removed, since postgres would take
// any process of its own user for a server.
func (s *Server) clear(ctx context.Context) error {
	lock := filepath.Join(s.cfg.Data, "postmaster.pid")
	if pid := lockedBy(lock); pid > 0 {
		// Opened before it is looked at, so that it is the one which is signalled.
		p, err := os.FindProcess(pid)
		if err == nil && s.runsHere(pid) {
			_ = p.Signal(syscall.SIGINT)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, orphanWithin)
	defer cancel()
	for {
		pids, err := s.running()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			break
		}
		if pause(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("processes %v still use %s: stop them", pids, s.cfg.Data)
		}
	}
	if err := removeForeign(lock); err != nil {
		return err
	}
	socket := filepath.Join(s.cfg.Socket, ".s.PGSQL."+port+".lock")
	if pid := lockedBy(socket); pid > 0 && isPostgres(pid) {
		return fmt.Errorf("another server, process %d, listens in %s: name another socket folder", pid, s.cfg.Socket)
	}
	return removeForeign(socket)
}

// removeForeign removes a lock file of a process that lives. Of one that does
// not, postgres takes care itself.
func removeForeign(lock string) error {
	pid := lockedBy(lock)
	if pid == 0 {
		return nil
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return nil
	}
	if err := os.Remove(lock); err != nil {
		return fmt.Errorf("remove stale lock: %w", err)
	}
	return nil
}

// lockedBy is the process in a lock file, 0 if there is none.
func lockedBy(lock string) int {
	lines, err := lockLines(lock)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(lines[0])
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// lockLines are the trimmed lines of a lock file, at least one.
func lockLines(lock string) ([]string, error) {
	text, err := os.ReadFile(lock)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines, nil
}

// isPostgres is false for a zombie, which has no executable any more.
func isPostgres(pid int) bool {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == "postgres"
}

// runsHere says whether pid is a server process of this data folder.
func (s *Server) runsHere(pid int) bool {
	if !isPostgres(pid) {
		return false
	}
	cwd, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	data, err := os.Stat(s.cfg.Data)
	return err == nil && os.SameFile(cwd, data)
}

// running lists the server processes of this data folder.
func (s *Server) running() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, errors.Join(errors.New("list processes"), err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && s.runsHere(pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
