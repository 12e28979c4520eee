package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

// DEC-11: restart makes it start anew, reload and signal reach the program; where a changed file is mounted by itself only a restart shows it.
func TestAct(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	file := filepath.Join(b.dir, "file")
	if err := os.WriteFile(file, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	plain := b.web(image, func(s *wire.ContainerSpec) { s.Signal = "USR1" })
	if err := b.Act(t.Context(), plain, "restart"); appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("no container: %v", err)
	}
	b.do(plain)
	b.answers("one")
	since := b.inspect("web").State.StartedAt
	act := func(r wire.Resource, action string, restarts bool, heard string) {
		t.Helper()
		if err := b.Act(t.Context(), r, action); err != nil {
			t.Errorf("%s: %v", action, err)
		}
		now := b.inspect("web").State.StartedAt
		if (now != since) != restarts {
			t.Errorf("%s: restarted %v, want %v", action, now != since, restarts)
		}
		since = now
		await(t, func() string {
			lines, err := b.Log(t.Context(), r, 10)
			if log := strings.Join(lines, "\n"); err != nil || !strings.Contains(log, heard) {
				return fmt.Sprintf("%s: %q is not in its log: %s, %v", action, heard, log, err)
			}
			return ""
		})
	}
	act(plain, "reload", false, "heard hangup")
	act(plain, "signal", false, "heard user defined signal 1")
	act(plain, "restart", true, "heard terminated")
	if err := b.Act(t.Context(), plain, "dance"); appliance.KindOf(err) != appliance.Invalid {
		t.Error(err)
	}

	mounted := b.web(image, func(s *wire.ContainerSpec) { s.Mounts = []wire.Mount{{Source: file, Target: "/etc/file"}} })
	b.do(mounted)
	b.answers("one")
	since = b.inspect("web").State.StartedAt
	act(mounted, "reload", false, "heard hangup")
	if err := durable.WriteFile(file, []byte("second"), 0o644); err != nil { // replaced whole, as the agent does
		t.Fatal(err)
	}
	act(mounted, "reload", true, "heard terminated")
	b.answers("one")
	if got := ask("file", "/etc/file"); got != "second" {
		t.Errorf("it sees %q", got)
	}
}

// DEC-12: a check runs inside as the container's user, and leaves nothing behind when it takes too long.
func TestCheck(t *testing.T) {
	b := newBench(t)
	r := b.web(b.store.push("app", nil), nil)
	if err := b.Check(t.Context(), r, []string{"/app", "end", "0"}); appliance.KindOf(err) != appliance.NotReady {
		t.Errorf("no container: %v", err)
	}
	b.do(r)
	if err := b.Check(t.Context(), r, []string{"/app", "end", "0"}); err != nil {
		t.Error(err)
	}
	if err := b.Check(t.Context(), r, []string{"/app", "end", "7"}); err == nil || !strings.Contains(err.Error(), "exit code 7: ending") {
		t.Error(err)
	}
	for _, command := range [][]string{nil, {"/none"}} {
		if err := b.Check(t.Context(), r, command); err == nil {
			t.Errorf("%q passed", command)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.Check(ctx, r, []string{"/app", "hang"}); err == nil {
		t.Error("passed")
	}
	await(t, func() string {
		if top := b.person("top", b.name("web")); strings.Contains(top, "hang") {
			return "it still runs:\n" + top
		}
		return ""
	})
}

// OPS-2: a command inside, with input, with a terminal, and ended with all it started.
func TestExec(t *testing.T) {
	b := newBench(t)
	r := b.web(b.store.push("app", nil), nil)
	b.do(r)
	var out, errs bytes.Buffer
	exec := func(ctx context.Context, a host.Attachment) (int, error) {
		out.Reset()
		errs.Reset()
		a.Stdout, a.Stderr = &out, &errs
		return b.Exec(ctx, r, a)
	}
	if code, err := exec(t.Context(), host.Attachment{Command: []string{"/app", "copy"}, Stdin: strings.NewReader("hello")}); code != 0 || err != nil || out.String() != "hello" || errs.String() != "5 bytes\n" {
		t.Errorf("%d, %v, %q, %q", code, err, out.String(), errs.String())
	}
	if code, err := exec(t.Context(), host.Attachment{Command: []string{"/app", "end", "7"}}); code != 7 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
	resize := make(chan wire.TerminalSize, 1)
	resize <- wire.TerminalSize{Rows: 33, Columns: 99}
	code, err := exec(t.Context(), host.Attachment{Command: []string{"/app", "terminal", "33 99"}, Terminal: &wire.TerminalSize{Rows: 10, Columns: 20}, Resize: resize, Term: "vt100"})
	if code != 0 || err != nil || !strings.HasSuffix(out.String(), "vt100 33 99\r\n") {
		t.Errorf("%d, %v, %q", code, err, out.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(500*time.Millisecond, cancel)
	if _, err := exec(ctx, host.Attachment{Command: []string{"/app", "children"}}); err == nil {
		t.Error("it ended by itself")
	}
	await(t, func() string {
		if top := b.person("top", b.name("web")); strings.Contains(top, "hang") || strings.Contains(top, "children") {
			return "they still run:\n" + top
		}
		return ""
	})
	b.answers("one")
}

// TOOL-2: a log is followed through restarts and over to the container that takes its place, each line once.
func TestFollow(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	r := b.web(image, nil)
	b.do(r)
	b.answers("one")
	got := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- b.Follow(ctx, r, 10, true, func(line []byte) error { got <- string(line); return nil })
	}()
	next := func(want string) {
		t.Helper()
		select {
		case line := <-got:
			if len(line) > 100 {
				line = fmt.Sprint(len(line), " bytes")
			}
			if line != want {
				t.Errorf("%q, want %q", line, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no line, want %q", want)
		}
	}
	next("serving one")
	ask("say", strings.Repeat("x", 40_000)) // the engine cuts it into pieces
	next("40000 bytes")
	ask("say", "on the other stream")
	next("on the other stream")
	if err := b.Act(t.Context(), r, "restart"); err != nil {
		t.Fatal(err)
	}
	next("heard terminated")
	next("serving one")
	b.do(b.web(image, func(s *wire.ContainerSpec) { s.Command[3] = "two" }))
	next("heard terminated")
	next("serving two")
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ended by itself")
	}
	enough := errors.New("enough")
	if err := b.Follow(t.Context(), r, 10, true, func([]byte) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
}

// SAFE-2: whatever the engine sends as a log, it is read in bounds.
func FuzzEntries(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x08T text\n\n"))
	f.Add([]byte("\x02\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_ = entries(bytes.NewReader(data), func(_ string, line []byte) error {
			if len(line) > maxLine+1<<20 {
				t.Errorf("%d bytes", len(line))
			}
			return nil
		})
	})
}

// DEC-12: how a container is, and how often it was started.
func TestStatus(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	r := b.web(image, nil)
	status := func(want string) {
		t.Helper()
		await(t, func() string {
			if s, err := b.Status(t.Context(), r); err != nil || s.State != want {
				return fmt.Sprintf("%+v, %v, want %s", s, err, want)
			}
			return ""
		})
	}
	status("missing")
	if lines, err := b.Log(t.Context(), r, 10); err != nil || lines != nil {
		t.Errorf("%q, %v", lines, err)
	}
	b.do(r)
	status("running")
	if s, _ := b.Status(t.Context(), r); s.PID == 0 || time.Since(s.Since) > time.Minute || s.Restarts != 0 {
		t.Errorf("%+v", s)
	}
	b.person("pause", b.name("web"))
	status("paused")
	b.person("unpause", b.name("web"))
	b.person("stop", b.name("web"))
	status("stopped")

	r = b.web(image, func(s *wire.ContainerSpec) { s.Command = []string{"/app", "end", "1"} })
	if err := b.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	await(t, func() string {
		if s, err := b.Status(t.Context(), r); err != nil || s.Restarts < 3 {
			return fmt.Sprintf("%+v, %v", s, err)
		}
		return ""
	})
	status("backoff")
	if o := b.observe(r); !o.Matches { // it is made right; that it does not keep running is its health
		t.Errorf("%+v", o)
	}
	lines, err := b.Log(t.Context(), r, 2)
	if err != nil || len(lines) != 2 || lines[0] != "ending" {
		t.Errorf("%q, %v", lines, err)
	}
}

// GEN-10: what pulling changes on the machine goes with the last container, and what was there before is put back.
func TestTrust(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	folder := filepath.Join(b.config.Trust, b.store.address)
	r, second := b.web(image, nil), b.web(image, func(s *wire.ContainerSpec) { s.Name, s.Ports = "second", nil })
	b.do(r)
	if err := b.Do(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(folder, "client.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	b.undo(r)
	if _, err := os.Stat(folder); err != nil {
		t.Errorf("with one left: %v", err)
	}
	b.undo(second)
	if _, err := os.Stat(b.config.Trust); !os.IsNotExist(err) {
		t.Errorf("the folder that was not there: %v", err)
	}

	// Somebody's own.
	os.MkdirAll(folder, 0o755)
	os.WriteFile(filepath.Join(folder, "ca.crt"), []byte("theirs"), 0o600)
	os.WriteFile(filepath.Join(folder, "notes"), []byte("theirs"), 0o600)
	b.person("rmi", "-f", b.store.address+"/web/"+image)
	b.do(r)
	b.Engine = New(b.config) // the next agent
	b.undo(r)
	if text, err := os.ReadFile(filepath.Join(folder, "ca.crt")); string(text) != "theirs" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 2 {
		t.Errorf("%v", entries)
	}
}

// DEC-14: images go when no plan within reach needs them, those that a person has pulled never.
func TestCollect(t *testing.T) {
	b := newBench(t)
	first, second, theirs := b.store.push("app", nil), b.store.push("app", map[string]any{"Env": []string{"V=2"}}), b.store.push("theirs", map[string]any{"Env": []string{"V=3"}})
	b.do(b.web(first, nil))
	r := b.web(second, nil)
	b.do(r)
	b.person("pull", b.store.address+"/web/"+theirs)
	digest := func(image string) appliance.Digest { _, d, _ := strings.Cut(image, "@"); return appliance.Digest(d) }
	collect := func(want string, keep ...appliance.Digest) {
		t.Helper()
		if err := b.Collect(t.Context(), keep); err != nil {
			t.Error(err)
		}
		var got []string
		for name, image := range map[string]string{"first": first, "second": second, "theirs": theirs} {
			if _, err := b.api.ImageInspect(t.Context(), b.store.address+"/web/"+image); err == nil {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if is := strings.Join(got, " "); is != want {
			t.Errorf("there are %s, want %s", is, want)
		}
	}
	collect("first second theirs", digest(first), digest(second))
	collect("second theirs", digest(second))
	if err := b.Collect(t.Context(), nil); err == nil {
		t.Error("an image in use was removed")
	}
	b.answers("one")
	b.undo(r)
	collect("theirs")
	collect("theirs")
	if _, err := os.Stat(b.config.Record); !os.IsNotExist(err) {
		t.Errorf("the record is left: %v", err)
	}
}
