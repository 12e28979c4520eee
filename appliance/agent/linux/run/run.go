// Package run is the one place from which the agent starts programs that end: an argument list, never a shell, a bounded output, and
// the last lines in the error. Processes that stay belong to systemd or supervise.
package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// Path is where programs are looked for, whatever the environment says.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	maxOutput = 64 << 10 // kept of a program's output: the end of it
	lastLines = 5        // of it in an error
)

// Command is a program to run.
type Command struct {
	Program   string   // required: an absolute path, or a name to find in Path
	Arguments []string // without the program's name
	// Environment is added to PATH, LC_ALL=C and nothing else.
	Environment []string
	Directory   string              // empty: /
	As          *syscall.Credential // nil: as the caller; another user can gain no privileges
	Group       string              // folder of the cgroup it runs in; empty: the caller's
}

// Find gives the absolute path of a program in Path; NotFound where it is not there.
func Find(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	for dir := range strings.SplitSeq(Path, ":") {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", appliance.Errorf(appliance.NotFound, "find program %s: not in %s", appliance.Quote(name), Path)
}

// Output runs c to its end and gives what it wrote. The end of ctx kills it with all it started.
func Output(ctx context.Context, c Command) ([]byte, error) {
	path, err := Find(c.Program)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, c.Arguments...)
	cmd.Dir = c.Directory
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Env = append([]string{"PATH=" + Path, "LC_ALL=C"}, c.Environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.As}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // not reaped yet: the group is ours
	cmd.WaitDelay = time.Second                                                          // for a grandchild that holds the output
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	if err = start(cmd, c); err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return out.data, nil
	}
	return out.data, fmt.Errorf("run %s: %w%s", filepath.Base(path), err, out.words())
}

// start is cmd.Start in the command's cgroup, for another user with no new privileges and no better a place than others have when memory
// runs out. The first belongs to a thread and cannot be taken back, so the thread ends with it.
func start(cmd *exec.Cmd, c Command) error {
	if c.Group != "" {
		group, err := os.Open(c.Group)
		if err != nil {
			return err
		}
		defer group.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	if c.As == nil {
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
	err := <-done
	if err == nil {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("0"), 0) // it may be over already
	}
	return err
}

// ExitCode is what the program ended with; -1 when it did not get that far.
func ExitCode(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

// tail keeps the end of what is written.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if over := len(t.data) - maxOutput; over > 0 {
		t.data = t.data[:copy(t.data, t.data[over:])]
	}
	return len(p), nil
}

func (t *tail) words() string {
	text := strings.ToValidUTF8(string(bytes.TrimSpace(t.data)), "�")
	if text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	return ": " + strings.Join(lines[max(0, len(lines)-lastLines):], " | ")
}
