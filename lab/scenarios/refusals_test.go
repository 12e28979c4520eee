package scenarios

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// A refusal is a command that must be refused, and how.
type refusal struct {
	argv   []string
	code   int           // of `mesh exit-codes`
	says   []string      // pieces of what is said, on stderr
	within time.Duration // zero: three seconds
}

// secret is a password that a refused command was given.
const secret = "geheim"

// line is a command line of mesh.
func line(args ...string) []string { return beds.Line(args...) }

// unprivileged runs the rest as nobody.
func unprivileged(argv []string) []string {
	return append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}, argv...)
}

// refused gives the command, and wants it to say what is wrong and the way out, in time and with its exit code.
func refused(t *testing.T, host *netns.Host, r refusal) {
	t.Helper()
	within := r.within
	if within == 0 {
		within = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), within+20*time.Second) // to be told how much too long it took
	defer cancel()
	begun := time.Now()
	out, said, code, err := host.Run(ctx, r.argv...)
	took := time.Since(begun)
	if err != nil {
		t.Fatalf("after %s: %v\n%s", took, err, said)
	}
	t.Logf("exit code %d after %.1f s\n%s", code, took.Seconds(), said)
	if code != r.code {
		t.Errorf("exit code %d, want %d", code, r.code)
	}
	if took > within {
		t.Errorf("took %s, allowed are %s", took, within)
	}
	if out != "" {
		t.Errorf("answers %q", out)
	}
	if !strings.Contains(said, "error: ") || !strings.Contains(said, "\nhint:  ") && !strings.Contains(said, "\nnext:  ") {
		t.Error("names no error and way out")
	}
	if strings.Contains(said, secret) {
		t.Error("says a secret")
	}
	for _, piece := range r.says {
		if !strings.Contains(said, piece) {
			t.Errorf("does not say %q", piece)
		}
	}
}

// footing is all that a command could leave on a host: files, processes, links, routes.
func footing(t *testing.T, bed *netns.Running, host *netns.Host) []string {
	t.Helper()
	var found []string
	upper := filepath.Join(bed.Dir, "hosts", host.Name, "upper")
	err := filepath.WalkDir(upper, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, upper)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if there, err := os.Lstat("/" + name); info.Mode()&fs.ModeCharDevice != 0 || info.IsDir() && err == nil && there.IsDir() {
			return nil // hidden, or a folder of the machine's in which something was touched
		}
		line := fmt.Sprintf("%s %s", info.Mode(), name)
		if info.Mode().IsRegular() {
			line += fmt.Sprintf(" %d bytes of %s", info.Size(), info.ModTime())
		}
		found = append(found, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	host.Pids(func(cmdline []string) bool {
		found = append(found, "process "+strings.Join(cmdline, " "))
		return false
	})
	for _, argv := range [][]string{{"find", "/run", "/tmp", "/dev", "-mindepth", "1", "-not", "-path", "/dev/pts/*"}, {"ls", "/sys/class/net"}, {"ip", "route"}} {
		found = append(found, sortedLines(run(t, host, argv...))...)
	}
	return found
}

// changesNothing runs f and wants the host to be afterwards what it was before.
func changesNothing(t *testing.T, bed *netns.Running, host *netns.Host, f func()) {
	t.Helper()
	before := footing(t, bed, host)
	f()
	// What has ended needs a moment to be gone.
	waitFor(t, host.Name+" is as before", 2*time.Second, func() string { return cmp.Diff(before, footing(t, bed, host)) })
}

// testBuild puts a mesh binary that was built with a variable set on a host.
func testBuild(t *testing.T, host *netns.Host, path, variable, value string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "mesh")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-X "+variable+"="+value, "-o", binary, "./cmd/mesh")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build mesh: %v\n%s", err, out)
	}
	put(t, host, binary, path)
}

// put copies a file of the machine to a host.
func put(t *testing.T, host *netns.Host, file, path string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Put(t.Context(), path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// bare puts the mesh on every host of the bed, and founds none.
func bare(t *testing.T, bed *netns.Running) {
	t.Helper()
	binary, err := meshBinary()
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range bed.Hosts() {
		put(t, host, binary, beds.Binary)
	}
}
