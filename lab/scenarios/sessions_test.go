package scenarios

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
)

// OPS-2, TOOL-2: from the hub a command runs where hello runs, as its user and in its folder, with its own exit code, input and terminal;
// what hello writes is read and followed; a key of the node that gets into a log is struck out.
func (l *life) attached(t *testing.T) {
	out, _ := command(t, l.hub, 3, "exec", "hello@n2", "--no-stdin", "--", "sh", "-c", "id -un; pwd; echo $MESH_INSTANCE; exit 3")
	if want := "hello\n/var/lib/mesh/modules/hello\nhello\n"; out != want {
		t.Errorf("the command said %q, not %q", out, want)
	}
	cmd := l.hub.Command(t.Context(), beds.Binary, "exec", "hello@n2", "--", "wc", "-c")
	cmd.Stdin = bytes.NewReader(make([]byte, 1<<20))
	counted, err := cmd.Output()
	if err != nil || strings.TrimSpace(string(counted)) != "1048576" {
		t.Errorf("a MiB of input was counted as %q: %v", counted, err)
	}
	// A terminal at both ends: script gives this end one.
	out = run(t, l.hub, "script", "-qec", beds.Binary+" exec hello@n2 -- tty", "/dev/null")
	if !strings.Contains(out, "/dev/pts/") { // behind what script echoes of an input that has ended
		t.Errorf("on a terminal tty says %q", out)
	}
	_, errs := command(t, l.hub, 3, "exec", "hello@n9", "--", "true")
	if !strings.Contains(errs, "there is no node") {
		t.Errorf("on a node that is not there: %s", errs)
	}

	// Its log, with a key of the node in it, as a careless program would write it.
	seed := strings.TrimSpace(run(t, l.n2, "cat", "/var/lib/mesh/node/keys/bus.key"))
	const log = "/var/lib/mesh/run/process/hello.web/log"
	run(t, l.n2, "sh", "-c", "echo careless "+seed+" >> "+log)
	follow := l.hub.Command(t.Context(), beds.Binary, "logs", "hello@n2", "-f", "-n", "1")
	var said lockedBuffer
	follow.Stdout = &said
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = follow.Process.Kill()
		_ = follow.Wait()
	}()
	has := func(text string) {
		t.Helper()
		waitFor(t, "the log followed from the hub", 10*time.Second, func() string {
			if strings.Contains(said.String(), text) {
				return ""
			}
			return "no " + text + " in " + said.String()
		})
	}
	has("careless [secret]")
	run(t, l.n2, "sh", "-c", "echo later >> "+log)
	has("later")
	if strings.Contains(said.String(), seed) {
		t.Error("a key left the machine in a log")
	}
	out, _ = command(t, l.hub, 0, "logs", "hello", "-n", "1", "-o", "json")
	if out != `{"instance":"hello","node":"n2","part":"web","line":"later"}`+"\n" {
		t.Errorf("the last line as JSON: %s", out)
	}
}

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
