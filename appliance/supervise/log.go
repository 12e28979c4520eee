package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The log is a file that the child itself appends to: it neither ends nor blocks with the supervisor. So it cannot be replaced under
// the child; it is copied to log.1 and cut to nothing. A line written just in between is lost.
const (
	maxLog   = 1 << 20 // of log, which is cut soon after
	maxOld   = 2 << 20 // of log.1
	maxLine  = 4 << 10 // of a line that Log gives
	lookSoon = 20 * time.Millisecond
	lookRare = time.Second
)

type logFile struct {
	*os.File
	dir string
}

func openLog(dir string) (*logFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return &logFile{f, dir}, nil
}

// note writes a line of the supervisor's own.
func (l *logFile) note(format string, args ...any) {
	fmt.Fprintf(l, "supervisor: "+format+"\n", args...)
}

// keep cuts the log whenever it is full; it looks often while much is written.
func (l *logFile) keep(ctx context.Context) {
	var before int64
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		size := l.size()
		if size > maxLog {
			l.rotate()
			size = l.size()
			timer.Reset(lookSoon)
		} else if size-before > maxLog/64 {
			timer.Reset(lookSoon)
		} else {
			timer.Reset(lookRare)
		}
		before = size
	}
}

func (l *logFile) size() int64 {
	info, err := l.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// rotate keeps the log, or its newest maxOld bytes, as log.1. Where they cannot be written, the disk may be full: then they go.
func (l *logFile) rotate() {
	size := l.size()
	data := make([]byte, min(size, maxOld))
	n, _ := l.ReadAt(data, size-int64(len(data)))
	if tmp := filepath.Join(l.dir, "log.tmp"); os.WriteFile(tmp, data[:n], 0o600) == nil {
		os.Rename(tmp, filepath.Join(l.dir, "log.1"))
	}
	l.Truncate(0)
}

// Log gives the last n lines that the process wrote, each cut after 4 KiB.
func Log(dir string, n int) ([]string, error) {
	var text []byte
	for _, name := range []string{"log.1", "log"} {
		tail, err := tailOf(filepath.Join(dir, name), int64(min(n, 256))*maxLine)
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		text = append(text, tail...)
	}
	text = bytes.TrimRight(text, "\n")
	if len(text) == 0 || n <= 0 {
		return nil, nil
	}
	lines := strings.Split(string(text), "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		lines[i] = strings.ToValidUTF8(line[:min(len(line), maxLine)], "�")
	}
	return lines, nil
}

func tailOf(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-most), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, most))
}
