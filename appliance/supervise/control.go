package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// What a supervisor can be asked for, one per connection.
const (
	verbStatus    = "status"
	verbApply     = "apply"     // read the spec, be running, restart if the child is made of something else
	verbRestart   = "restart"   // whatever it is made of
	verbReload    = "reload"    // SIGHUP
	verbSignal    = "signal/"   // followed by one of Signals
	verbStop      = "stop"      // and stay to answer
	verbTerminate = "terminate" // stop, and go
)

// Signals are those that a process can be sent.
var Signals = map[string]unix.Signal{"HUP": unix.SIGHUP, "USR1": unix.SIGUSR1, "USR2": unix.SIGUSR2, "INT": unix.SIGINT, "TERM": unix.SIGTERM}

type answer struct {
	Status Status           `json:"status"`
	Error  *appliance.Error `json:"error,omitempty"`
}

const maxMessage = 64 << 10

// address gives a name for the folder's socket that is short however deep the folder lies (a socket's name holds 107 bytes).
func address(dir string) (string, *os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/control", d.Fd()), d, nil
}

func listen(dir string) (net.Listener, error) {
	path, d, err := address(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, "control")); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	before := unix.Umask(0o177) // 0600 from its first moment
	l, err := net.Listen("unix", path)
	unix.Umask(before)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", dir, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then the descriptor may be another folder's
	return l, nil
}

// ask puts one question; NotReady with reason noSupervisor when nobody answers, or only to say that it leaves.
func ask(ctx context.Context, dir, verb string) (Status, error) {
	path, d, err := address(dir)
	if err != nil {
		return Status{}, err
	}
	defer d.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return Status{}, appliance.Errorf(appliance.NotReady, "%s process in %s: no supervisor answers: %w", verb, dir, err).WithReason(noSupervisor)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	var a answer
	if _, err = fmt.Fprintln(conn, verb); err == nil {
		err = json.NewDecoder(io.LimitReader(conn, maxMessage)).Decode(&a)
	}
	if err != nil {
		return Status{}, appliance.Errorf(appliance.NotReady, "%s process in %s: %w", verb, dir, err).WithReason(noSupervisor)
	}
	if a.Error != nil {
		return a.Status, a.Error
	}
	return a.Status, nil
}

// request is a question on its way to the loop.
type request struct {
	verb  string
	reply chan answer
}

// serve answers until the listener closes. Status is answered here, also while the loop waits for the child to stop.
func (s *supervisor) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			var verb string
			if _, err := fmt.Fscanln(io.LimitReader(conn, 64), &verb); err != nil {
				return
			}
			a := answer{Status: s.status()}
			if verb != verbStatus {
				r := request{verb, make(chan answer, 1)}
				select {
				case s.requests <- r:
					a = <-r.reply
				case <-s.over:
					a.Error = appliance.Errorf(appliance.NotReady, "%s process in %s: the supervisor is leaving", verb, s.dir).WithReason(noSupervisor)
				}
			}
			conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
			json.NewEncoder(conn).Encode(a)
		}()
	}
}
