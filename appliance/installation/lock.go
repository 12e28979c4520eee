package installation

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/novox/mesh/appliance"
)

// holder is what the lock file says of who holds the lock; the lock itself is the kernel's and ends with the process.
type holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
}

// Lock makes the caller the only one that changes the installation; what names its command to others ("mesh genesis"). It makes the state
// folder where there is none. Held by another: Conflict, at once.
func (i Installation) Lock(what string) (release func(), err error) {
	if err := os.MkdirAll(i.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("lock installation: %w", err)
	}
	return Hold(i.LockFile(), what)
}

// Hold locks one file until release, or the end of the process. Held by another: Conflict, at once, naming the holder.
func Hold(path, what string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, held(f)
	}
	// Who it is, is for people: a full disk leaves it unsaid and keeps nobody from starting.
	if text, err := json.Marshal(holder{os.Getpid(), what}); err == nil {
		_ = f.Truncate(0)
		_, _ = f.WriteAt(append(text, '\n'), 0)
	}
	return func() {
		_ = f.Truncate(0) // only for people: closing is what lets go
		f.Close()
	}, nil
}

func held(f *os.File) error {
	by := "another process"
	var h holder
	if text, err := io.ReadAll(io.LimitReader(f, 4096)); err == nil && json.Unmarshal(text, &h) == nil && h.PID > 0 {
		by = fmt.Sprintf("process %d, %s", h.PID, appliance.Quote(h.Command))
	}
	return appliance.Errorf(appliance.Conflict, "lock %s: %s holds it", f.Name(), by).
		WithHint("one command at a time changes an installation; wait for it to end")
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
