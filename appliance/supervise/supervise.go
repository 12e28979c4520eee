package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

const (
	startWithin  = 15 * time.Second
	statusWithin = 5 * time.Second
)

// noSupervisor is why ask got no answer: none is there, it does not listen yet, or it was killed meanwhile.
const noSupervisor appliance.Reason = "no-supervisor"

func noAnswer(err error) bool { return appliance.IsReason(err, noSupervisor) }

// Start sees to it that the process of dir is what spec says and that a supervisor keeps it so: command with dir appended, which must
// call Run. It is started detached where none is there. A running process is restarted only when what it is made of has changed.
func Start(ctx context.Context, dir string, spec Spec, command []string) error {
	release, err := prepare(dir, &spec)
	if err != nil {
		return err
	}
	defer release()
	if have, err := readSpec(dir); err != nil || !have.Same(spec) {
		if err := writeSpec(dir, spec); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin+spec.stopAfter())
	defer cancel()
	var exited chan error // of the supervisor launched here
	for {
		_, err := ask(ctx, dir, verbApply)
		if !noAnswer(err) {
			return err
		}
		if exited == nil && !supervised(dir) {
			if exited, err = launch(dir, command); err != nil {
				return fmt.Errorf("start supervisor of %s: %w", dir, err)
			}
		}
		select {
		case end := <-exited:
			if exited = nil; supervised(dir) { // another one was faster
				continue
			}
			lines, _ := Log(dir, 3)
			return fmt.Errorf("start supervisor of %s: it ended: %w: %s", dir, end, strings.Join(lines, " | "))
		case <-ctx.Done():
			return fmt.Errorf("start supervisor of %s: %w: %w", dir, ctx.Err(), err)
		case <-time.After(5 * time.Millisecond): // until it listens
		}
	}
}

// Halt sees to it that the process of dir is described as spec says and does not run, and that nothing keeps it: a start of the machine
// starts nothing there either. Start has it run again.
func Halt(ctx context.Context, dir string, spec Spec) error {
	release, err := prepare(dir, &spec)
	if err != nil {
		return err
	}
	defer release()
	if err := Terminate(ctx, dir); err != nil { // as it was described when it was started
		return err
	}
	if have, err := readSpec(dir); err == nil && have.Same(spec) {
		return nil
	}
	return writeSpec(dir, spec)
}

// prepare checks spec, and makes the folder the caller's alone until release.
func prepare(dir string, spec *Spec) (release func(), err error) {
	spec.Version = Version
	if err := spec.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return lock(dir, "start.lock", true)
}

// launch starts the supervisor in a session, a cgroup (where possible) and an environment of its own, so that nothing of who calls
// holds it: not its terminal, not its end, not the marker it may carry.
func launch(dir string, command []string) (exited chan error, err error) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], dir)...)
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{"PATH=" + defaultPath}, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	keepFiles()
	if group := makeGroup(supervisorsGroup); group != "" {
		if g, err := os.Open(group); err == nil {
			defer g.Close()
			cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.Fd())
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited = make(chan error, 1)
	go func() {
		err := cmd.Wait() // we may live long: leave no zombie
		if err == nil {
			err = fmt.Errorf("%s", cmd.ProcessState)
		}
		exited <- err
	}()
	return exited, nil
}

// keepFiles keeps what this process was started with open, a shell's files or an installer's, from what it starts. What it opens itself
// is its own already.
func keepFiles() {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// Get says how the process of dir is; also where its supervisor is gone.
func Get(ctx context.Context, dir string) (Status, error) {
	if _, err := os.Stat(filepath.Join(dir, "spec.json")); err != nil {
		if os.IsNotExist(err) {
			return Status{State: "missing"}, nil
		}
		return Status{}, err
	}
	held := supervised(dir)
	if held {
		ctx, cancel := context.WithTimeout(ctx, statusWithin)
		defer cancel()
		if status, err := ask(ctx, dir, verbStatus); !noAnswer(err) {
			return status, err
		}
	}
	s := readState(dir) // where it does not listen yet, or is gone
	status := s.status(time.Now())
	status.Supervised = held
	if status.State != "stopped" && !s.Child.alive() {
		status.State, status.PID = "missing", 0
	}
	return status, nil
}

// Described gives the spec on disk; false where there is none that can be read.
func Described(dir string) (Spec, bool) {
	s, err := readSpec(dir)
	return s, err == nil
}

// Stop ends the process; its supervisor stays. Restart starts it anew, Reload sends SIGHUP.
func Stop(ctx context.Context, dir string) error    { return tell(ctx, dir, verbStop) }
func Restart(ctx context.Context, dir string) error { return tell(ctx, dir, verbRestart) }
func Reload(ctx context.Context, dir string) error  { return tell(ctx, dir, verbReload) }

// Signal sends the process one of Signals.
func Signal(ctx context.Context, dir, name string) error { return tell(ctx, dir, verbSignal+name) }

func tell(ctx context.Context, dir, verb string) error { _, err := ask(ctx, dir, verb); return err }

// Terminate ends the process with all it started, and its supervisor. It does so itself where the supervisor is gone.
func Terminate(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	for {
		if _, err := ask(ctx, dir, verbTerminate); err != nil && !noAnswer(err) {
			return err
		}
		release, err := lock(dir, "lock", false)
		if err == nil {
			defer release()
			return endUnsupervised(dir)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("terminate process in %s: %w", dir, ctx.Err())
		case <-time.After(5 * time.Millisecond): // until the supervisor has let go of the lock
		}
	}
}

func endUnsupervised(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	spec, _ := readSpec(dir)
	s := readState(dir)
	group := s.Group
	if root := groupRoot(); group == "" && root != "" {
		if at := filepath.Join(root, groupName(dir)); len(groupPIDs(at)) > 0 {
			group = at
		}
	}
	if _, err := stopChild(dir, group, spec.stopAfter(), takeOver(s.Child), s.Child); err != nil {
		return err
	}
	s.Child, s.Stopped, s.Since = identity{}, true, time.Now()
	return s.write(dir)
}

// Remove terminates and deletes the folder.
func Remove(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return nil
	}
	release, err := lock(dir, "start.lock", true)
	if err != nil {
		return err
	}
	defer release()
	if err := Terminate(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// lock takes one of the folder's locks; the kernel releases it with its holder.
func lock(dir, name string, wait bool) (release func(), err error) {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.F_OFD_SETLK
	if wait {
		how = unix.F_OFD_SETLKW
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.FcntlFlock(f.Fd(), how, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		f.Close()
		return nil, appliance.Errorf(appliance.Conflict, "lock %s: a supervisor runs already: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// supervised says whether somebody holds the folder's lock. It takes none, so it is never in a supervisor's way.
func supervised(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	held := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &held) == nil && held.Type != unix.F_UNLCK
}
