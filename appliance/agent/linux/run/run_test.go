package run

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
)

// SAFE-3: an argument stays one argument, whatever is in it.
func TestArgumentsAreNoShell(t *testing.T) {
	out, err := Output(t.Context(), Command{Program: "printf", Arguments: []string{"%s.", "$(id); *", "a b"}})
	if err != nil || string(out) != "$(id); *.a b." {
		t.Errorf("%q, %v", out, err)
	}
}

func TestErrors(t *testing.T) {
	_, err := Output(t.Context(), Command{Program: "ls", Arguments: []string{"/no/such"}})
	if ExitCode(err) != 2 || !strings.Contains(err.Error(), "run ls: exit status 2: ") || !strings.Contains(err.Error(), "No such file") {
		t.Error(err)
	}
	if _, err := Output(t.Context(), Command{Program: "no-such-program"}); appliance.KindOf(err) != appliance.NotFound {
		t.Error(err)
	}
}

// SAFE-2: neither endless output nor a program that does not end.
func TestBounds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	out, err := Output(ctx, Command{Program: "yes"})
	if !errors.Is(err, context.DeadlineExceeded) || len(out) != maxOutput || time.Since(began) > 5*time.Second {
		t.Errorf("%d bytes after %s, %v", len(out), time.Since(began), err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET", "of the caller")
	out, err := Output(t.Context(), Command{Program: "env", Environment: []string{"A=b"}})
	if err != nil || string(out) != "PATH="+Path+"\nLC_ALL=C\nA=b\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// What runs as another user, a module's check, gains no privileges by a program that would give them.
func TestOthersGainNoPrivileges(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("starting programs of others needs root: run the tests as root, as .ci/run does")
	}
	status := Command{Program: "cat", Arguments: []string{"/proc/self/status"}}
	for as, want := range map[*syscall.Credential]string{nil: "NoNewPrivs:\t0", {Uid: 65534, Gid: 65534}: "NoNewPrivs:\t1"} {
		status.As = as
		out, err := Output(t.Context(), status)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("as %v: no %q in %s, %v", as, want, out, err)
		}
	}
}
