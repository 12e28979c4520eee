package serve

import (
	"os"
	"sync"
)

// maxLog bounds each of a log's two files, in bytes.
const maxLog = 4 << 20

// logFile is a log that never grows beyond its bound: when it is full it becomes path.1, in the place of the one before.
type logFile struct {
	path string
	max  int64

	mu   sync.Mutex
	file *os.File
	size int64
}

func openLog(path string, most int64) (*logFile, error) {
	l := &logFile{path: path, max: most}
	return l, l.open()
}

func (l *logFile) open() (err error) {
	if l.file, err = os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	info, err := l.file.Stat()
	if err == nil {
		l.size = info.Size()
	}
	return err
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > l.max {
		if err := l.turn(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// turn begins anew. Where the full one cannot be put aside, it is emptied.
func (l *logFile) turn() error {
	if os.Rename(l.path, l.path+".1") != nil {
		l.size = 0
		return l.file.Truncate(0)
	}
	l.file.Close()
	return l.open()
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
