package appliancetest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

// within is how long anything may take; far more than it does, so that a slow machine is no failure.
const within = 20 * time.Second

// running is something that goes on until it is stopped, or the test ends.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func run(t testing.TB, f func(context.Context) error) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = f(ctx)
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	select {
	case <-r.done:
		if r.err != nil && !errors.Is(r.err, context.Canceled) {
			t.Error(r.err)
		}
	case <-time.After(2 * within):
		t.Error("it does not stop")
	}
}

// Wait asks again and again until what is not yet so is empty.
func (m *Mesh) Wait(what string, notYet func() string) {
	m.t.Helper()
	deadline := time.Now().Add(within)
	for {
		reason := notYet()
		if reason == "" {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: after %s still: %s", what, within, reason)
		}
		select {
		case <-m.t.Context().Done():
			m.t.Fatal(m.t.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Status asks for the mesh's.
func (m *Mesh) Status() operators.Status {
	m.t.Helper()
	var s operators.Status
	m.Must(operators.StatusShow, struct{}{}, &s)
	return s
}

// Node is one node's part of the status.
func (m *Mesh) Node(name appliance.NodeName) operators.NodeStatus {
	m.t.Helper()
	s := m.Status()
	i := slices.IndexFunc(s.Nodes, func(n operators.NodeStatus) bool { return n.Name == name })
	if i < 0 {
		m.t.Fatalf("no node %s in the status", name)
	}
	return s.Nodes[i]
}

// Current waits until the nodes are current, clean and healthy.
func (m *Mesh) Current(nodes ...appliance.NodeName) {
	m.t.Helper()
	m.Wait("nodes are current", func() string {
		_, bad, waiting := m.Status().Settled(nodes...)
		return strings.Join(slices.Concat(bad, waiting), "; ")
	})
}

// Push approves and sends everything recorded.
func (m *Mesh) Push(nodes ...appliance.NodeName) (p operators.Pushed) {
	m.t.Helper()
	m.Must(operators.PlanPush, operators.Scope{Nodes: nodes}, &p)
	return p
}

// Log keeps what was said.
type Log struct {
	attrs []slog.Attr
	up    *Log

	mu    sync.Mutex
	lines []string
}

func (l *Log) Enabled(context.Context, slog.Level) bool { return true }

func (l *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	up := l
	if l.up != nil {
		up = l.up
	}
	return &Log{attrs: slices.Concat(l.attrs, attrs), up: up}
}

func (l *Log) WithGroup(string) slog.Handler { return l }

func (l *Log) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Level.String() + " " + r.Message)
	add := func(a slog.Attr) bool {
		b.WriteString(" " + a.Key + "=" + a.Value.String())
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	up := l
	if l.up != nil {
		up = l.up
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	up.lines = append(up.lines, b.String())
	return nil
}

// Count says in how many lines all the words stand.
func (l *Log) Count(words ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			n++
		}
	}
	return n
}

// String is everything said so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
