package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is the process: started here, or found alive.
type child struct {
	identity
	cmd  *exec.Cmd     // nil when found alive
	gone chan struct{} // closed when it has exited; it may be a zombie
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// startChild runs the spec in a session and, where group is not empty, a cgroup of its own. Its output goes straight into the log:
// a pipe to the supervisor would end or block it with the supervisor.
func startChild(dir string, s Spec, group string, log *os.File) (*child, error) {
	cmd := &exec.Cmd{Path: s.Command[0], Args: s.Command, Dir: s.Directory, Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	cmd.Env = []string{marker + "=" + key(dir)}
	if _, ok := s.Environment["PATH"]; !ok {
		cmd.Env = append(cmd.Env, "PATH="+defaultPath)
	}
	for name, value := range s.Environment {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	slices.Sort(cmd.Env)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: s.UID, Gid: s.GID, Groups: s.Groups}
	}
	if group != "" {
		g, err := os.Open(group)
		if err != nil {
			return nil, fmt.Errorf("open cgroup: %w", err)
		}
		defer g.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.Fd())
	}
	if err := startPlain(cmd, s.UID != 0); err != nil {
		return nil, err
	}
	p, ok := look(cmd.Process.Pid) // not reaped yet, so it is there
	if !ok {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, errors.New("no process table: mount /proc")
	}
	return watch(&child{identity: p.identity, cmd: cmd, gone: make(chan struct{})}), nil
}

// startPlain starts cmd so that it and what it starts can gain no privileges. The attribute belongs to a thread and cannot be taken
// back, so the thread ends with the start.
func startPlain(cmd *exec.Cmd, plain bool) (err error) {
	if !plain {
		return cmd.Start()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = cmd.Start()
		}
		done <- err
	}()
	return <-done
}

// takeOver gives the child that i names, when it still runs.
func takeOver(i identity) *child {
	if !i.alive() {
		return nil
	}
	return watch(&child{identity: i, gone: make(chan struct{})})
}

// watch closes gone when the process exits.
func watch(c *child) *child {
	fd := c.open()
	if fd < 0 {
		close(c.gone)
		return c
	}
	go func() {
		defer close(c.gone)
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err != unix.EINTR {
				return
			}
		}
	}()
	return c
}

// reap says how it ended. Only what was started here leaves that behind.
func (c *child) reap() (text string, good bool) {
	if c.cmd == nil {
		return "exit not seen: started by an earlier supervisor", false
	}
	c.cmd.Wait()
	return c.cmd.ProcessState.String(), c.cmd.ProcessState.Success()
}

// endGroup kills whatever is left of the folder's processes and waits until all are gone: before, a new start would find ports and
// files taken. more are processes seen before the leader went.
func endGroup(dir, group string, leader identity, more []identity) error {
	const within, patience = 10 * time.Second, time.Second
	for begun := time.Now(); ; {
		left := members(dir, group, leader)
		for _, i := range more {
			if i.alive() && !slices.Contains(left, i) {
				left = append(left, i)
			}
		}
		if len(left) == 0 {
			return nil
		}
		took := time.Since(begun)
		if took > within {
			return fmt.Errorf("%d processes outlive SIGKILL by %s, the first is %d", len(left), within, left[0].PID)
		}
		for _, i := range left {
			i.signal(unix.SIGKILL)
		}
		if group != "" && took > patience { // they fork faster than we kill
			os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0)
		}
		time.Sleep(2 * time.Millisecond) // until the kernel is through with them
	}
}
