package supervise

import (
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// lookHome is how often a supervisor looks whether its folder is still its own.
const lookHome = time.Second

// home is the hold on a folder: its lock and its socket. The open lock keeps its inode from being given to another file.
type home struct {
	release  func()
	lock     os.FileInfo
	listener net.Listener
}

// take locks the folder.
func (h *home) take(dir string) error {
	release, err := lock(dir, "lock", false)
	if err != nil {
		return err
	}
	info, err := os.Stat(filepath.Join(dir, "lock"))
	if err != nil {
		release()
		return err
	}
	h.leave()
	h.release, h.lock = release, info
	return nil
}

// leave gives up what is held.
func (h *home) leave() {
	if h.listener != nil {
		h.listener.Close()
	}
	if h.release != nil {
		h.release()
	}
	*h = home{}
}

// hold sees to it that the folder is still ours. Where somebody removed it, it is made anew around the process, which goes on; what the
// process writes is kept again from its next start. It is false where another supervisor was faster, and where our own program is gone
// too, so that nobody could ever ask for an end: then the process has ended.
func (s *supervisor) hold() bool {
	if info, err := os.Stat(filepath.Join(s.dir, "lock")); err == nil && os.SameFile(info, s.home.lock) {
		return true
	}
	program, err := os.Executable()
	if err == nil {
		_, err = os.Stat(program)
	}
	removed := os.IsNotExist(err)
	if !removed {
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = s.home.take(s.dir)
		}
	}
	if removed || appliance.KindOf(err) == appliance.Conflict {
		if s.child != nil { // by its session alone: the group's name may be the other one's by now
			stopChild("", "", s.spec.stopAfter(), s.child, s.child.identity)
		}
		return false
	}
	if err == nil {
		err = s.furnish()
	}
	if err != nil {
		s.log.note("%v", err) // into a file that is gone, or a disk that is full; the next look tries again
		return true
	}
	s.record(func(*state) {})
	s.log.note("made the folder anew, which was removed")
	return true
}

// furnish puts log, description and socket into the folder.
func (s *supervisor) furnish() error {
	log, err := openLog(s.dir)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := unix.Dup3(int(log.Fd()), int(s.log.Fd()), unix.O_CLOEXEC); err != nil {
		return err
	}
	if _, err := readSpec(s.dir); err != nil {
		if err := writeSpec(s.dir, s.spec); err != nil {
			return err
		}
	}
	return s.answer()
}

// answer opens the socket and answers there until the hold is left.
func (s *supervisor) answer() (err error) {
	if s.home.listener, err = listen(s.dir); err == nil {
		go s.serve(s.home.listener)
	}
	return err
}
