package engine

import (
	"cmp"
	"context"
	"io"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/wire"
)

// Exec runs a command inside, as the container's user. What has not ended with ctx is killed: the engine would let it go on.
func (e *Engine) Exec(ctx context.Context, r wire.Resource, a host.Attachment) (int, error) {
	if len(a.Command) == 0 {
		return 0, appliance.Errorf(appliance.Invalid, "run inside %s: no command", r.ID)
	}
	c, _, have, err := e.one(ctx, r)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if have == nil || have.State.Status != container.StateRunning {
		return 0, appliance.Errorf(appliance.NotReady, "run inside %s: the container does not run", r.ID)
	}
	fail := func(err error) (int, error) { return 0, failed("run inside "+r.ID, err) }
	options := client.ExecCreateOptions{Cmd: a.Command, AttachStdin: a.Stdin != nil, AttachStdout: true, AttachStderr: true}
	var size client.ConsoleSize
	if a.Terminal != nil {
		size = client.ConsoleSize{Height: uint(a.Terminal.Rows), Width: uint(a.Terminal.Columns)}
		options.TTY, options.ConsoleSize, options.Env = true, size, []string{"TERM=" + a.Term}
	}
	made, err := c.ExecCreate(ctx, have.ID, options)
	if err != nil {
		return fail(err)
	}
	attached, err := c.ExecAttach(ctx, made.ID, client.ExecAttachOptions{TTY: options.TTY, ConsoleSize: size})
	if err != nil {
		return fail(err)
	}
	defer attached.Close()
	defer context.AfterFunc(ctx, attached.Close)()
	if a.Stdin != nil {
		go func() {
			_, _ = io.Copy(attached.Conn, a.Stdin) // it ends with the command, at the latest
			_ = attached.CloseWrite()
		}()
	}
	over := make(chan struct{})
	defer close(over)
	go c.resize(ctx, made.ID, a.Resize, over)
	if options.TTY {
		_, err = io.Copy(a.Stdout, attached.Reader)
	} else {
		_, err = stdcopy.StdCopy(a.Stdout, a.Stderr, attached.Reader)
	}
	if ctx.Err() != nil || err != nil { // the end of ctx, or nobody who takes what it says
		c.kill(made.ID)
		return fail(cmp.Or(ctx.Err(), err))
	}
	for {
		ended, err := c.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
		if err != nil {
			return fail(err)
		}
		if !ended.Running {
			return ended.ExitCode, nil
		}
		select { // it has closed its output, and goes on
		case <-ctx.Done():
			c.kill(made.ID)
			return fail(ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *connection) resize(ctx context.Context, exec string, sizes <-chan wire.TerminalSize, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case s := <-sizes:
			_, _ = c.ExecResize(ctx, exec, client.ExecResizeOptions{Height: uint(s.Rows), Width: uint(s.Columns)}) // it may be over
		}
	}
}

// kill ends a command that was begun inside, and all it started: they are a session of their own.
func (c *connection) kill(exec string) {
	ctx, cancel := context.WithTimeout(context.Background(), glance)
	defer cancel()
	is, err := c.ExecInspect(ctx, exec, client.ExecInspectOptions{})
	if err == nil && is.Running {
		run.KillSession(is.PID)
	}
}
