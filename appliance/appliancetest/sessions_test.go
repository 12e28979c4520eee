package appliancetest_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// attached is a mesh with app on n1, whose process a test can attach to.
func attached(t *testing.T, prepare func(*appliancetest.Node)) (*appliancetest.Mesh, *appliancetest.Node) {
	t.Helper()
	m := appliancetest.New(t)
	n1 := m.Enrol("n1")
	prepare(n1)
	n1.Start()
	m.Current("n1")
	register(m, "one")
	assign(m, "n1")
	m.Push()
	m.Current()
	return m, n1
}

const web = "app/process/web"

// TOOL-2, SEC-3: logs come over the bus, the past and what follows, in order and whole; a reader that does not read makes them wait and
// loses nothing; delivered secrets are struck out. A viewer may read them.
func TestLogs(t *testing.T) {
	t.Parallel()
	m, n1 := attached(t, func(n *appliancetest.Node) {
		n.Secrets = func() []string { return []string{"correct horse", "short"} }
	})
	said := make([]string, 5)
	for i := range said {
		said[i] = fmt.Sprintf("line %d", i)
	}
	said[4] += " of correct horse, and short"
	n1.Machine.SetLog(web, said...)
	viewer := m.Dial(m.AddOperator("eva", operators.Viewer))
	read := func(open wire.Opening, enough int, slow time.Duration) (lines []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := viewer.Attach(ctx, "n1", open)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = s.Each(ctx, func(o wire.Output) error {
			if o.Part != "web" {
				t.Errorf("part %q", o.Part)
			}
			for line := range strings.Lines(string(o.Data)) {
				lines = append(lines, strings.TrimSuffix(line, "\n"))
			}
			if len(lines) >= enough {
				return io.EOF
			}
			time.Sleep(slow)
			return nil
		})
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return lines
	}
	got := read(wire.Opening{Instance: "app", Logs: &wire.Logs{Lines: 2}}, 1000, 0)
	if len(got) != 2 || got[0] != "line 3" || got[1] != "line 4 of [secret], and short" {
		t.Errorf("the last two lines read %q", got)
	}
	// Three MiB, while the reader is slow.
	long := strings.Repeat("x", 1000)
	for i := range 3000 {
		said = append(said, fmt.Sprintf("%06d %s", i, long))
	}
	n1.Machine.SetLog(web, said...)
	got = read(wire.Opening{Instance: "app", Logs: &wire.Logs{Lines: 3000, Follow: true}}, 3000, 5*time.Millisecond)
	for i := range 3000 {
		if i >= len(got) || got[i] != fmt.Sprintf("%06d %s", i, long) {
			t.Fatalf("of %d lines, line %d is not what was written", len(got), i)
		}
	}
}

// OPS-2: a command runs beside the instance with its input, outputs and code; the operator's end ends it; every use is audited; a viewer
// may not; a machine may refuse.
func TestExec(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var ran [][]string
	ended := make(chan struct{}, 10)
	m, n1 := attached(t, func(n *appliancetest.Node) {
		n.Machine.Exec = func(ctx context.Context, id string, a host.Attachment) (int, error) {
			mu.Lock()
			ran = append(ran, a.Command)
			mu.Unlock()
			switch a.Command[0] {
			case "cat":
				if _, err := io.Copy(a.Stdout, a.Stdin); err != nil {
					return 0, err
				}
				fmt.Fprintln(a.Stderr, "done at", id)
				return 7, nil
			case "size":
				for {
					select {
					case s := <-a.Resize:
						fmt.Fprintf(a.Stdout, "%s %dx%d\n", a.Term, s.Rows, s.Columns)
						return 0, nil
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				}
			}
			<-ctx.Done()
			ended <- struct{}{}
			return 0, ctx.Err()
		}
	})
	admin := m.Dial(m.Admin)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	s, err := admin.Attach(ctx, "n1", wire.Opening{Instance: "app", Command: []string{"cat", "$(reboot)"}, Input: true})
	if err != nil {
		t.Fatal(err)
	}
	input := bytes.Repeat([]byte("0123456789abcdef"), 150_000) // 2.4 MB, more than is on its way at once
	go func() {
		if err := s.Input(ctx, input); err != nil {
			t.Error(err)
		}
		if err := s.End(ctx); err != nil {
			t.Error(err)
		}
	}()
	var out, errs bytes.Buffer
	code, err := s.Each(ctx, func(o wire.Output) error {
		to := &out
		if o.Stderr {
			to = &errs
		}
		to.Write(o.Data)
		return nil
	})
	s.Close()
	if err != nil || code != 7 || !bytes.Equal(out.Bytes(), input) || errs.String() != "done at app/process/web\n" {
		t.Errorf("code %d, %v, %d bytes of %d, %q", code, err, out.Len(), len(input), errs.String())
	}

	s, err = admin.Attach(ctx, "n1", wire.Opening{Instance: "app", Command: []string{"size"}, Terminal: &wire.TerminalSize{Rows: 1, Columns: 2}, Term: "vt100"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Resize(ctx, wire.TerminalSize{Rows: 33, Columns: 44}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if _, err := s.Each(ctx, func(o wire.Output) error { out.Write(o.Data); return nil }); err != nil || out.String() != "vt100 33x44\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	s.Close()

	// The operator goes away.
	s, err = admin.Attach(ctx, "n1", wire.Opening{Instance: "app", Command: []string{"wait"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the command goes on without anybody attached")
	}

	var log []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{Limit: 3}, &log)
	for i, want := range []string{`"wait"`, `"size"`, `"cat"`} {
		if log[i].What != "module exec" || log[i].Who != "operator admin" || !strings.Contains(string(log[i].After), want) {
			t.Errorf("audit %d: %+v %s", i, log[i], log[i].After)
		}
	}

	for name, tc := range map[string]struct {
		open wire.Opening
		by   operators.Credential
		node appliance.NodeName
		kind appliance.Kind
	}{
		"viewer":      {wire.Opening{Instance: "app", Command: []string{"cat"}}, m.AddOperator("eva", operators.Viewer), "n1", appliance.Denied},
		"no node":     {wire.Opening{Instance: "app", Command: []string{"cat"}}, m.Admin, "n9", appliance.NotFound},
		"no command":  {wire.Opening{Instance: "app"}, m.Admin, "n1", appliance.Invalid},
		"strange run": {wire.Opening{Instance: "app", Command: []string{"cat"}, Logs: &wire.Logs{}}, m.Admin, "n1", appliance.Invalid},
	} {
		if _, err := m.Dial(tc.by).Attach(ctx, tc.node, tc.open); appliance.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := func(what string, open wire.Opening, kind appliance.Kind, hint string) {
		t.Helper()
		s, err := admin.Attach(ctx, "n1", open)
		if err != nil {
			t.Fatal(what, err)
		}
		defer s.Close()
		if _, err := s.Each(ctx, func(wire.Output) error { return nil }); appliance.KindOf(err) != kind || !strings.Contains(appliance.AsError(err).Hint, hint) {
			t.Errorf("%s: %v", what, err)
		}
	}
	before := len(ran)
	refused("no instance", wire.Opening{Instance: "nothing", Command: []string{"cat"}}, appliance.NotFound, "mesh-controller")
	refused("no part", wire.Opening{Instance: "app", Part: "nothing", Command: []string{"cat"}}, appliance.NotFound, "there is: web")
	if err := os.WriteFile(filepath.Join(n1.Dir, agent.RefuseExec), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("refused by the machine", wire.Opening{Instance: "app", Command: []string{"cat"}}, appliance.Denied, agent.RefuseExec)
	if mu.Lock(); len(ran) != before {
		t.Errorf("ran %q", ran[before:])
	}
	mu.Unlock()
}

// BUS-14, SAFE-1: nothing of a session is taken from anybody else, or twice.
func TestSessionsAreTheirOwners(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	runs := 0
	m, n1 := attached(t, func(n *appliancetest.Node) {
		n.Machine.Exec = func(ctx context.Context, _ string, a host.Attachment) (int, error) {
			mu.Lock()
			runs++
			mu.Unlock()
			<-ctx.Done()
			return 0, ctx.Err()
		}
	})
	ran := func() int { mu.Lock(); defer mu.Unlock(); return runs }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n2 := m.AddNode("n2")
	taps := make(chan []byte, 100)
	tap := n1.Connect()
	defer tap.Close()
	stop, err := tap.Subscribe(wire.AskSubject(n1.ID), func(msg bus.Message) { taps <- msg.Data })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s, err := m.Dial(m.Admin).Attach(ctx, "n1", wire.Opening{Instance: "app", Command: []string{"x"}, Input: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	opened := <-taps
	h, err := wire.Peek(opened)
	if err != nil || h.Kind != wire.KindAsk {
		t.Fatal(h, err)
	}
	_, body, err := wire.Open(opened, wire.KindAsk, n1.Believes().Signing)
	if err != nil {
		t.Fatal(err)
	}
	ask, err := wire.ParseAsk(body)
	if err != nil {
		t.Fatal(err)
	}
	// Another operator, with the name of the session.
	eva := m.Dial(m.AddOperator("eva", operators.Viewer))
	err = eva.Call(ctx, operators.SessionSend, operators.SendSession{Session: ask.Session, Input: []byte("x")}, nil)
	if appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("another operator's frame: %v", err)
	}
	// To close what is over is no mistake, and closes nothing of another's: the next frame still finds its session.
	if err := eva.Call(ctx, operators.SessionSend, operators.SendSession{Session: ask.Session, Close: true}, nil); err != nil {
		t.Errorf("closed by another operator: %v", err)
	}
	// The operator's own, with a frame that came before.
	if err := s.Resize(ctx, wire.TerminalSize{Rows: 2, Columns: 2}); err != nil {
		t.Fatal(err)
	}
	admin := m.Dial(m.Admin)
	err = admin.Call(ctx, operators.SessionSend, operators.SendSession{Session: ask.Session, Sequence: 1, Input: []byte("x")}, nil)
	if appliance.KindOf(err) != appliance.Denied {
		t.Errorf("a frame that came before: %v", err)
	}
	// Another node, with its name, under its own key: nothing reaches the operator.
	frame, err := wire.Encode(wire.Output{Version: wire.Version, Session: ask.Session, Sequence: 2, End: &wire.End{Code: 0}})
	if err != nil {
		t.Fatal(err)
	}
	forged, err := wire.Seal(wire.Header{Kind: wire.KindOutput, Version: wire.Version, Mesh: m.ID, From: string(n2.ID), To: string(m.ID), Sequence: 2, Time: time.Now()}, frame, n2.Keys.Identity)
	if err != nil {
		t.Fatal(err)
	}
	other := n2.Connect()
	defer other.Close()
	if err := other.Publish(wire.OutputSubject(n2.ID), forged); err != nil {
		t.Fatal(err)
	}
	// The opening played again, now and after the agent was started anew.
	impostor := m.Impostor()
	defer impostor.Close()
	for range 3 {
		if err := impostor.Publish(wire.AskSubject(n1.ID), opened); err != nil {
			t.Fatal(err)
		}
	}
	m.Wait("the replays to be refused", func() string {
		if n := m.Log.Count("session", "came before"); n < 3 {
			return fmt.Sprintf("%d are", n)
		}
		return ""
	})
	if err := s.Resize(ctx, wire.TerminalSize{Rows: 1, Columns: 1}); err != nil { // it is still there
		t.Error(err)
	}
	if n := ran(); n != 1 {
		t.Errorf("run %d times", n)
	}
	n1.Restart()
	m.Current("n1")
	before := m.Log.Count("session", "came before")
	m.Wait("the replay to the next run to be refused", func() string {
		if err := impostor.Publish(wire.AskSubject(n1.ID), opened); err != nil { // again: it is there before it listens
			return err.Error()
		}
		if m.Log.Count("session", "came before") == before {
			return "nothing was said of it"
		}
		return ""
	})
	if n := ran(); n != 1 {
		t.Errorf("run %d times after the restart", n)
	}
	if _, err := s.Each(ctx, func(wire.Output) error { return nil }); err == nil {
		t.Error("the session ended well with its agent gone")
	}
}

// OPS-2, SAFE-2: who opens all the sessions that one may leaves some to others.
func TestSessionsForOthers(t *testing.T) {
	t.Parallel()
	m, _ := attached(t, func(*appliancetest.Node) {})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follow := func(by operators.Credential) error {
		return m.Dial(by).Call(ctx, operators.SessionLogs, operators.OpenSession{Session: rand.Text(), Node: "n1",
			Output: wire.InboxPrefix(wire.OperatorUser(by.Operator)) + ".x", Credit: 1, Open: wire.Opening{Instance: "app", Logs: &wire.Logs{Follow: true}}}, nil)
	}
	greedy := m.AddOperator("greedy", operators.Viewer)
	opened := 0
	err := follow(greedy)
	for ; err == nil && opened < 100; err = follow(greedy) {
		opened++
	}
	if appliance.KindOf(err) != appliance.NotReady || opened != 16 {
		t.Errorf("after %d sessions: %v", opened, err)
	}
	if err := follow(m.Admin); err != nil {
		t.Errorf("another operator's session then: %v", err)
	}
}
