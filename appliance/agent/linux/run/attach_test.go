package run_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/wire"
)

// OPS-2: a command has its input, its two outputs and its own exit code.
func TestAttach(t *testing.T) {
	var out, errs bytes.Buffer
	code, err := run.Attach(t.Context(), run.Attached{Command: run.Command{Program: "sh", Arguments: []string{"-c", "cat; echo wrong >&2; exit 7"}, Directory: "/"},
		Stdin: strings.NewReader("a\nb\n"), Stdout: &out, Stderr: &errs})
	if err != nil || code != 7 || out.String() != "a\nb\n" || errs.String() != "wrong\n" {
		t.Errorf("code %d, %v, out %q, errors %q", code, err, out.String(), errs.String())
	}
	if code, err := run.Attach(t.Context(), run.Attached{Command: run.Command{Program: "sh", Arguments: []string{"-c", "kill -9 $$"}}, Stdout: &out, Stderr: &errs}); err != nil || code != 137 {
		t.Errorf("killed: code %d, %v", code, err)
	}
	if _, err := run.Attach(t.Context(), run.Attached{Command: run.Command{Program: "no-such-program"}}); err == nil {
		t.Error("a program that is not there was run")
	}
	// An input that never ends keeps no program that has ended.
	never, w := io.Pipe()
	defer w.Close()
	if code, err := run.Attach(t.Context(), run.Attached{Command: run.Command{Program: "true"}, Stdin: never, Stdout: &out, Stderr: &errs}); err != nil || code != 0 {
		t.Errorf("with an input that never ends: code %d, %v", code, err)
	}
}

// OPS-2: with a terminal the program is on one, of the size that was said, and hears of another.
func TestAttachTerminal(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root runs as others: run the tests as root")
	}
	sizes := make(chan wire.TerminalSize, 1)
	in, type_ := io.Pipe()
	out := output{pieces: make(writes, 10_000)}
	done := make(chan int, 1)
	ctx, end := context.WithCancel(t.Context())
	var over sync.WaitGroup
	defer over.Wait() // also after a failure: what it writes must not outlive the test
	defer end()
	over.Go(func() {
		code, err := run.Attach(ctx, run.Attached{Command: run.Command{Program: "sh", Environment: []string{"PS1=", "TERM=dumb"}, As: &syscall.Credential{Uid: 65534, Gid: 65534}}, Stdin: in,
			Stdout: out.pieces, Terminal: &wire.TerminalSize{Rows: 30, Columns: 90}, Resize: sizes})
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		done <- code
	})
	fmt.Fprintln(type_, "stty -echo; tty; id -u; stty size")
	out.until(t, "/dev/pts/")
	out.until(t, "65534")
	out.until(t, "30 90")
	sizes <- wire.TerminalSize{Rows: 11, Columns: 22}
	for end := time.Now().Add(30 * time.Second); ; {
		fmt.Fprintln(type_, "stty size")
		if out.within(t, "11 22", 500*time.Millisecond) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("another size was not heard of")
		}
	}
	fmt.Fprintln(type_, "exit 3")
	if code := <-done; code != 3 {
		t.Errorf("code %d", code)
	}
}

// OPS-2: the end of the asker ends everything that was started, also what a shell keeps in groups of their own.
func TestAttachEnds(t *testing.T) {
	t.Run("pipes", func(t *testing.T) { attachEnds(t, "sleep 1000 & echo $!; wait", nil) })
	t.Run("terminal", func(t *testing.T) {
		attachEnds(t, "set -m; sleep 1000 & echo $!; wait", &wire.TerminalSize{Rows: 30, Columns: 90})
	})
}

func attachEnds(t *testing.T, script string, terminal *wire.TerminalSize) {
	ctx, cancel := context.WithCancel(t.Context())
	out := make(writes, 100)
	done := make(chan error)
	go func() {
		_, err := run.Attach(ctx, run.Attached{Command: run.Command{Program: "sh", Arguments: []string{"-c", script}}, Stdout: out, Stderr: out, Terminal: terminal})
		done <- err
	}()
	pid := strings.TrimSpace(<-out)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("process %s lives on: %s", pid, stat)
		}
	}
}

func TestLines(t *testing.T) {
	var got []string
	long := strings.Repeat("x", 40<<10)
	emit := func(line []byte) error { got = append(got, string(line)); return nil }
	if err := run.Lines(t.Context(), run.Command{Program: "printf", Arguments: []string{"a\n" + long + "\n\nno end"}}, emit); err != nil || len(got) != 5 || got[0] != "a" || got[1]+got[2] != long || got[4] != "no end" {
		t.Errorf("%d lines, %v", len(got), err)
	}
	enough := errors.New("enough")
	if err := run.Lines(t.Context(), run.Command{Program: "yes"}, func([]byte) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
}

// writes is a program's output, piece by piece.
type writes chan string

func (w writes) Write(p []byte) (int, error) { w <- string(p); return len(p), nil }

// output is what was written and not looked at yet.
type output struct {
	pieces writes
	text   string
}

func (o *output) until(t *testing.T, want string) {
	t.Helper()
	if !o.within(t, want, 30*time.Second) {
		t.Fatalf("%q was not written, but %q", want, o.text)
	}
}

// within looks for want, and goes on behind it.
func (o *output) within(t *testing.T, want string, d time.Duration) bool {
	t.Helper()
	for late := time.After(d); ; {
		if _, rest, found := strings.Cut(o.text, want); found {
			o.text = rest
			return true
		}
		select {
		case p := <-o.pieces:
			o.text += p
		case <-late:
			return false
		}
	}
}
