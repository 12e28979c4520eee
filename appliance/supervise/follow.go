package supervise

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookAgain = 100 * time.Millisecond // between two looks at a log that is followed
	maxFollow = 32 << 10               // of a line that Follow gives; a longer one comes in parts
	maxKept   = 64 << 20               // of a log that grew faster than it was cut
	memory    = 512                    // bytes by which the place is found again in log.1
)

// Follow gives the last n lines that the process wrote, and with follow those that it writes, until ctx ends. The log is cut while it is
// followed (see logFile); what was written just before is then read from log.1.
func Follow(ctx context.Context, dir string, n int, follow bool, emit func(line []byte) error) error {
	f := follower{dir: dir, emit: emit}
	if err := f.begin(n); err != nil {
		return err
	}
	if !follow {
		return f.flush()
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if err := f.more(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// follower reads a log from a place on.
type follower struct {
	dir  string
	emit func([]byte) error
	at   int64  // the place in log
	last []byte // what lies before it
	rest []byte // a line that is not whole yet
}

// begin gives the last n lines of log.1 and log together.
func (f *follower) begin(n int) error {
	old, err := readTail(filepath.Join(f.dir, "log.1"), maxOld)
	if err != nil {
		return err
	}
	now, err := readTail(filepath.Join(f.dir, "log"), maxKept)
	if err != nil {
		return err
	}
	f.at = int64(len(now)) // the log is never longer
	f.remember(now)
	text := append(old, now...)
	whole := bytes.LastIndexByte(text, '\n') + 1
	f.rest = bytes.Clone(text[whole:])
	lines := bytes.SplitAfter(text[:whole], []byte("\n"))
	lines = lines[:len(lines)-1] // behind the last newline is nothing
	for _, line := range lines[max(0, len(lines)-n):] {
		if err := f.emit(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
	return nil
}

// more gives what was written since.
func (f *follower) more() error {
	file, err := os.OpenFile(filepath.Join(f.dir, "log"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() < f.at {
		if err := f.missed(); err != nil {
			return err
		}
		f.at = 0
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := file.ReadAt(buffer, f.at)
		f.at += int64(n)
		if e := f.take(buffer[:n]); e != nil {
			return e
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// missed gives what lies in log.1 behind the place.
func (f *follower) missed() error {
	old, err := readTail(filepath.Join(f.dir, "log.1"), maxOld)
	if err != nil {
		return err
	}
	if at := int(f.at); len(old) < maxOld && at <= len(old) && bytes.HasSuffix(old[:at], f.last) { // it holds the log from its beginning
		return f.take(old[at:])
	}
	if i := bytes.LastIndex(old, f.last); i >= 0 {
		return f.take(old[i+len(f.last):])
	}
	return f.take(old) // more was written than log.1 holds
}

func (f *follower) take(data []byte) error {
	f.remember(data)
	f.rest = append(f.rest, data...)
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole && len(line) < maxFollow {
			return nil
		}
		if len(line) > maxFollow {
			line, rest = f.rest[:maxFollow], f.rest[maxFollow:]
		}
		if err := f.emit(line); err != nil {
			return err
		}
		f.rest = bytes.Clone(rest)
	}
}

func (f *follower) flush() error {
	if len(f.rest) == 0 {
		return nil
	}
	return f.emit(f.rest)
}

func (f *follower) remember(data []byte) {
	f.last = append(f.last, data...)
	f.last = bytes.Clone(f.last[max(0, len(f.last)-memory):])
}

// readTail is tailOf; nothing where there is no file.
func readTail(path string, most int64) ([]byte, error) {
	data, err := tailOf(path, most)
	if os.IsNotExist(err) {
		return nil, nil
	}
	return data, err
}
