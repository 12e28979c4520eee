package hosttest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

type process struct {
	spec    wire.ProcessSpec // what it is made of
	running host.Running
	halted  bool // on demand
	log     []string
}

// SetRunning says how a process is from now on: a crash, a backoff, an end. The id is the resource's.
func (m *Machine) SetRunning(id string, r host.Running) { m.with(func() { m.process(id).running = r }) }

// SetLog says what a process wrote.
func (m *Machine) SetLog(id string, lines ...string) { m.with(func() { m.process(id).log = lines }) }

// Running says how a process is.
func (m *Machine) Running(id string) (r host.Running) {
	m.with(func() { r = m.status(id) })
	return
}

func (m *Machine) process(id string) *process {
	if m.processes[id] == nil {
		m.processes[id] = &process{}
	}
	return m.processes[id]
}

func (m *Machine) status(id string) host.Running {
	if p := m.processes[id]; p != nil {
		return p.running
	}
	return host.Running{State: "missing"}
}

func (m *Machine) start(p *process) {
	m.nextPID++
	p.halted = false
	p.running = host.Running{State: "running", PID: m.nextPID, Since: m.now(), Restarts: p.running.Restarts}
}

// madeOf leaves out what can change without a restart: checks and what changes mean.
func madeOf(s wire.ProcessSpec) wire.ProcessSpec {
	s.Ready, s.Alive, s.OnChange, s.Signal, s.Stopped = nil, nil, nil, "", false
	return s
}

type processes struct{ m *Machine }

func (e processes) Observe(ctx context.Context, r wire.Resource) (o host.Observation, err error) {
	err = e.m.step(ctx, "observe", r.ID, func() error {
		s, err := read[wire.ProcessSpec](r)
		if err != nil {
			return err
		}
		p := e.m.processes[r.ID]
		switch {
		case p == nil:
		case !reflect.DeepEqual(p.spec, madeOf(s)):
			o = host.Observation{Present: true, Differs: "definition"}
		case s.Stopped && p.running.State != "stopped":
			o = host.Observation{Present: true, Differs: p.running.State + ", want stopped"}
		case s.Stopped:
			o = host.Observation{Present: true, Matches: true}
		case p.running.State == "missing", p.running.State == "stopped" && (s.Restart == "always" || p.halted):
			o = host.Observation{Present: true, Differs: p.running.State + ", want running"}
		default:
			o = host.Observation{Present: true, Matches: true}
		}
		return nil
	})
	return o, err
}

func (e processes) Before(ctx context.Context, r wire.Resource) (json.RawMessage, error) {
	return nil, e.m.step(ctx, "before", r.ID, func() error { return nil })
}

func (e processes) Do(ctx context.Context, r wire.Resource) error {
	return e.m.step(ctx, "do", r.ID, func() error {
		s, err := read[wire.ProcessSpec](r)
		if err != nil {
			return err
		}
		if _, ok := e.m.users[s.User]; !ok {
			return appliance.Errorf(appliance.NotFound, "start %s: no user %q", r.ID, s.User)
		}
		p, word := e.m.processes[r.ID], "start"
		switch {
		case s.Stopped:
			p = e.m.process(r.ID)
			if p.running.State == "running" || p.running.State == "backoff" {
				e.m.ran("systemctl stop %s", unit(r.ID))
			}
			p.spec, p.halted, p.running = madeOf(s), true, host.Running{State: "stopped", Since: e.m.now()}
			return nil
		case p == nil:
			p = e.m.process(r.ID)
		case !reflect.DeepEqual(p.spec, madeOf(s)):
			word = "restart"
		case p.running.State == "running" || p.running.State == "backoff", p.running.State == "stopped" && s.Restart != "always" && !p.halted:
			return nil
		}
		p.spec = madeOf(s)
		e.m.start(p)
		e.m.ran("systemctl %s %s # %s", word, unit(r.ID), p.line())
		return nil
	})
}

func (e processes) Undo(ctx context.Context, r wire.Resource, _ json.RawMessage) (bool, error) {
	return false, e.m.step(ctx, "undo", r.ID, func() error {
		if e.m.processes[r.ID] != nil {
			delete(e.m.processes, r.ID)
			e.m.ran("systemctl stop %s", unit(r.ID))
		}
		return nil
	})
}

func (e processes) Status(ctx context.Context, r wire.Resource) (s host.Running, err error) {
	err = e.m.step(ctx, "status", r.ID, func() error { s = e.m.status(r.ID); return nil })
	return s, err
}

func (e processes) Act(ctx context.Context, r wire.Resource, action string) error {
	return e.m.step(ctx, "act", r.ID, func() error {
		p := e.m.processes[r.ID]
		if p == nil {
			return appliance.Errorf(appliance.NotFound, "%s %s: no such process", action, r.ID)
		}
		if action != "restart" && action != "reload" && action != "signal" {
			return appliance.Errorf(appliance.Invalid, "process %s: unknown action %q", r.ID, action)
		}
		if action == "restart" {
			e.m.start(p)
		}
		if action == "signal" {
			action = "kill --signal=" + cmp.Or(p.spec.Signal, "HUP")
		}
		e.m.ran("systemctl %s %s", action, unit(r.ID))
		return nil
	})
}

// Check passes while the process runs; Fail with step check makes it fail.
func (e processes) Check(ctx context.Context, r wire.Resource, command []string) error {
	return e.m.step(ctx, "check", r.ID, func() error {
		if s := e.m.status(r.ID); s.State != "running" {
			return appliance.Errorf(appliance.NotReady, "check %s: process is %s", r.ID, s.State)
		}
		return nil
	})
}

func (e processes) Log(ctx context.Context, r wire.Resource, n int) (lines []string, err error) {
	err = e.m.step(ctx, "log", r.ID, func() error {
		if p := e.m.processes[r.ID]; p != nil {
			lines = slices.Clone(p.log[max(0, len(p.log)-n):])
		}
		return nil
	})
	return lines, err
}

// Exec is the test's.
func (e processes) Exec(ctx context.Context, r wire.Resource, a host.Attachment) (int, error) {
	if e.m.Exec == nil {
		return 127, nil
	}
	return e.m.Exec(ctx, r.ID, a)
}

// Follow gives what SetLog said last, and what it says later.
func (e processes) Follow(ctx context.Context, r wire.Resource, n int, follow bool, emit func([]byte) error) error {
	given := 0
	for {
		lines, err := e.Log(ctx, r, 1<<20)
		if err != nil {
			return err
		}
		if given == 0 {
			given = max(0, len(lines)-n)
		}
		for ; given < len(lines); given++ {
			if err := emit([]byte(lines[given])); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *process) line() string { return fmt.Sprintf("%s: %q", p.spec.User, p.spec.Command) }
