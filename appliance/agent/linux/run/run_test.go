package run

import (
	"context"
	"errors"
	"strings"
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
