package postgres

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is a program of PostgreSQL's that gets sig if we die. Its environment
// is empty but for the language, so that what it says can be read.
func (s *Server) command(sig syscall.Signal, bin, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"} // initdb asks a shell for the time zone
	cmd.WaitDelay = 2 * time.Second                      // backends may hold the log a little longer
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cfg.Credential, Pdeathsig: sig}
	return cmd
}

// spawn starts cmd. The kernel ties the parent's death signal to the thread
// that forked, so one is kept for as long as the child lives.
func spawn(cmd *exec.Cmd) (exited <-chan error, err error) {
	started, exit := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exit <- cmd.Wait()
		}
	}()
	return exit, <-started
}

// tool runs a program of the server's own to its end and gives what it said.
func (s *Server) tool(ctx context.Context, name string, args ...string) (string, error) {
	return s.run(ctx, s.cfg.Bin, name, args...)
}

// run is tool with a program from anywhere.
func (s *Server) run(ctx context.Context, bin, name string, args ...string) (string, error) {
	cmd := s.command(syscall.SIGKILL, bin, name, args...)
	out := &tail{max: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, out
	exited, err := spawn(cmd)
	if err != nil {
		return "", err
	}
	select {
	case err = <-exited:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-exited
		err = ctx.Err()
	}
	return out.String(), err
}

// tail passes on what is written and remembers the end of it.
type tail struct {
	to  io.Writer // nil: nowhere
	max int

	mu  sync.Mutex
	end []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if extra := len(t.end) - t.max; extra > 0 {
		t.end = bytes.Clone(t.end[extra:])
	}
	if t.to != nil {
		// A full disk under the log must not stop the server.
		_, _ = t.to.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}

// last is the line that says what went wrong, for an error.
func last(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.Contains(lines[i], "FATAL") || strings.Contains(lines[i], "error:") {
			return fmt.Sprintf("%.500s", lines[i])
		}
	}
	return fmt.Sprintf("%.500s", lines[len(lines)-1])
}

// pause waits a little, or less if ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
