package run

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/novox/mesh/appliance/wire"
)

// Attached is a program with someone attached to it.
type Attached struct {
	Command
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer
	Terminal       *wire.TerminalSize       // nil: none; with one Stdout gets everything
	Resize         <-chan wire.TerminalSize // may be nil
}

// Attach runs a program to its end and gives its exit code. The end of ctx kills it with all it started in its session.
func Attach(ctx context.Context, a Attached) (code int, err error) {
	path, err := Find(a.Program)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, path, a.Arguments...)
	cmd.Dir, cmd.Env = a.Directory, append([]string{"PATH=" + Path}, a.Environment...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: a.As}
	cmd.Cancel = func() error { KillSession(cmd.Process.Pid); return nil } // not reaped yet: the session is ours
	cmd.WaitDelay = time.Second
	run := attachPipes
	if a.Terminal != nil {
		run = attachTerminal
	}
	err = run(ctx, cmd, a)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.As(err, &exit) && exit.ExitCode() < 0: // by a signal, as shells count
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal()), nil
	case errors.As(err, &exit):
		return exit.ExitCode(), nil
	case errors.Is(err, exec.ErrWaitDelay):
		return 0, nil
	}
	return 0, err
}

func attachPipes(_ context.Context, cmd *exec.Cmd, a Attached) error {
	cmd.Stdout, cmd.Stderr = a.Stdout, a.Stderr
	var feed io.WriteCloser
	if a.Stdin != nil {
		var err error
		if feed, err = cmd.StdinPipe(); err != nil {
			return err
		}
	}
	if err := start(cmd, a.Command); err != nil {
		return err
	}
	if feed != nil {
		go func() { // not cmd.Stdin: Wait would wait for an input that may never end
			_, _ = io.Copy(feed, a.Stdin)
			feed.Close()
		}()
	}
	return cmd.Wait()
}

func attachTerminal(ctx context.Context, cmd *exec.Cmd, a Attached) error {
	ours, theirs, err := pty.Open()
	if err != nil {
		return err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := pty.Setsize(ours, winsize(*a.Terminal)); err != nil {
		return err
	}
	if a.As != nil {
		if err := theirs.Chown(int(a.As.Uid), int(a.As.Gid)); err != nil {
			return err
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, theirs
	cmd.SysProcAttr.Setctty = true
	if err := start(cmd, a.Command); err != nil {
		return err
	}
	theirs.Close()
	done, over := make(chan struct{}), make(chan struct{})
	var resizing sync.WaitGroup
	defer resizing.Wait()
	defer close(over)
	go func() {
		_, _ = io.Copy(a.Stdout, ours) // ends with an error when the last of them has closed the terminal
		close(done)
	}()
	if a.Stdin != nil {
		go func() { _, _ = io.Copy(ours, a.Stdin) }()
	}
	resizing.Go(func() {
		for {
			select {
			case size := <-a.Resize:
				_ = pty.Setsize(ours, winsize(size))
			case <-over:
				return
			}
		}
	})
	err = cmd.Wait()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(time.Second): // something it left behind holds the terminal
	}
	return err
}

func winsize(s wire.TerminalSize) *pty.Winsize { return &pty.Winsize{Rows: s.Rows, Cols: s.Columns} }

// Lines runs a program and gives each line it writes, until it ends or ctx does.
func Lines(ctx context.Context, c Command, emit func(line []byte) error) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	out := &lineWriter{emit: emit, end: end}
	code, err := Attach(ctx, Attached{Command: c, Stdout: out, Stderr: io.Discard})
	switch {
	case out.err != nil:
		return out.err
	case err != nil:
		return err
	case code != 0:
		return &os.SyscallError{Syscall: c.Program, Err: errors.New("it ended with an error")}
	}
	return out.flush()
}
