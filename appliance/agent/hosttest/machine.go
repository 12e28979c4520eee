// Package hosttest is a machine that exists in memory only and prints itself as the commands one would type, for tests of what decides.
// It holds no behaviour that a real machine lacks; how a real one is changed belongs in linux.
package hosttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/wire"
)

// Machine is the fake. Everything exported may be called while an agent uses it.
type Machine struct {
	// Hook, when set before use, is called before each step outside of the lock; an error from it is the step's. It may block.
	Hook func(ctx context.Context, step, id string) error
	// Exec, when set before use, stands for every command that an operator runs beside a process; it holds no lock.
	Exec func(ctx context.Context, id string, a host.Attachment) (code int, err error)
	// Now gives the time that processes start at; nil: a fixed one.
	Now func() time.Time

	mu           sync.Mutex
	packages     map[string]bool
	users        map[string]string // name -> home
	paths        map[string]Entry
	keys         map[string]certified        // by the certificate's folder
	trees        map[string]appliance.Digest // by path
	trusts       bool                        // the mesh's authority
	processes    map[string]*process
	overlay      host.OverlayState
	peers        map[string]host.OverlayPeerState
	handshakes   int
	closed       int
	nextPID      int
	commands     []string
	steps        []string
	failures     []*failure
	held         map[string]string      // by resource id
	remains      map[string][]host.Left // by resource id
	capabilities wire.Capabilities
	warnings     []wire.Warning
	machineID    string
	space        disk.Space
}

// Entry is what is at a path. Folder says which of the two it is.
type Entry struct {
	Folder             bool
	Owner, Group, Mode string
	Content            string `json:",omitempty"`
	data               bool   // made for a directory of class data
}

type failure struct {
	id, step string
	err      error
	times    int // left; below zero: for ever
	after    bool
}

// New gives a machine with nothing on it but root.
func New() *Machine {
	kinds := slices.Clone(wire.ResourceKinds)
	return &Machine{
		packages: map[string]bool{}, users: map[string]string{"root": "/root"}, paths: map[string]Entry{}, keys: map[string]certified{}, trees: map[string]appliance.Digest{},
		processes: map[string]*process{}, peers: map[string]host.OverlayPeerState{}, held: map[string]string{}, remains: map[string][]host.Left{}, nextPID: 100,
		space:     disk.Space{Free: 60 << 30, Total: 100 << 30},
		machineID: string(appliance.DigestOf([]byte("fake machine"))),
		capabilities: wire.Capabilities{Wire: wire.Version, Binary: "fake", Digest: appliance.DigestOf([]byte("fake binary")),
			OS: "linux", Architecture: "amd64", Distribution: "debian", Init: "none", Kinds: kinds},
	}
}

// Host gives what an agent is handed.
func (m *Machine) Host() host.Machine {
	return host.Machine{
		Effectors: map[wire.ResourceKind]host.Effector{
			wire.Package: effector{m, packageThing}, wire.User: effector{m, userThing},
			wire.Directory: effector{m, directoryThing}, wire.File: effector{m, fileThing}, wire.Certificate: effector{m, certificateThing},
			wire.Artifact: effector{m, artifactThing}, wire.Trust: effector{m, trustThing},
		},
		Processes: processes{m}, Overlay: overlay{m}, Request: m.request, Collect: m.collect, Size: m.size,
		Capabilities: func() wire.Capabilities { m.mu.Lock(); defer m.mu.Unlock(); return m.capabilities },
		Warnings:     func() []wire.Warning { m.mu.Lock(); defer m.mu.Unlock(); return m.warnings },
		MachineID:    func() string { m.mu.Lock(); defer m.mu.Unlock(); return m.machineID },
		Space:        func() (disk.Space, error) { m.mu.Lock(); defer m.mu.Unlock(); return m.space, nil },
	}
}

// SetCapabilities changes what the machine says of itself.
func (m *Machine) SetCapabilities(c wire.Capabilities) { m.with(func() { m.capabilities = c }) }

// SetWarnings changes what stands on the machine.
func (m *Machine) SetWarnings(w ...wire.Warning) { m.with(func() { m.warnings = w }) }

// SetSpace says how much of its disk is free.
func (m *Machine) SetSpace(s disk.Space) { m.with(func() { m.space = s }) }

// SetMachineID makes it another machine.
func (m *Machine) SetMachineID(id string) { m.with(func() { m.machineID = id }) }

// Fail makes a step of a resource fail before it has any effect: step is observe, before, do, undo, status, act, check, log, or set for id "overlay".
// Zero times: until Heal.
func (m *Machine) Fail(id, step string, err error, times int) { m.fail(id, step, err, times, false) }

// FailAfter makes a step fail although its effect is there, as when the agent is killed right after it.
func (m *Machine) FailAfter(id, step string, err error, times int) {
	m.fail(id, step, err, times, true)
}

// Heal ends all failures of a resource.
func (m *Machine) Heal(id string) {
	m.with(func() { m.failures = slices.DeleteFunc(m.failures, func(f *failure) bool { return f.id == id }) })
}

// Put lays something at a path as a person would, unseen by the agent.
func (m *Machine) Put(path string, e Entry) { m.with(func() { m.paths[path] = e }) }

// Remove takes a path away as a person would.
func (m *Machine) Remove(path string) { m.with(func() { delete(m.paths, path) }) }

// Path says what is at a path.
func (m *Machine) Path(path string) (e Entry, ok bool) {
	m.with(func() { e, ok = m.paths[path] })
	return
}

// Hold says what of others needs a resource.
func (m *Machine) Hold(id, why string) { m.with(func() { m.held[id] = why }) }

// Remain has a resource leave something behind when it is undone.
func (m *Machine) Remain(id string, left ...host.Left) { m.with(func() { m.remains[id] = left }) }

// AddUser and AddPackage make a machine on which something was before the mesh.
func (m *Machine) AddUser(name, home string) { m.with(func() { m.users[name] = home }) }
func (m *Machine) AddPackage(name string)    { m.with(func() { m.packages[name] = true }) }

// RemoveUser takes a user away as a person would.
func (m *Machine) RemoveUser(name string) { m.with(func() { delete(m.users, name) }) }

// Commands gives what changed the machine since the last call, as one would have typed it.
func (m *Machine) Commands() (c []string) {
	m.with(func() { c, m.commands = m.commands, nil })
	return
}

// Steps gives every call since the last call of Steps: "observe hello/user/hello".
func (m *Machine) Steps() (s []string) {
	m.with(func() { s, m.steps = m.steps, nil })
	return
}

func (m *Machine) with(f func()) { m.mu.Lock(); defer m.mu.Unlock(); f() }

func (m *Machine) fail(id, step string, err error, times int, after bool) {
	if times == 0 {
		times = -1
	}
	m.with(func() { m.failures = append(m.failures, &failure{id, step, err, times, after}) })
}

// step runs f under the lock between the failures asked for.
func (m *Machine) step(ctx context.Context, step, id string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.Hook != nil {
		if err := m.Hook(ctx, step, id); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps = append(m.steps, step+" "+id)
	if err := m.failing(id, step, false); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return m.failing(id, step, true)
}

func (m *Machine) failing(id, step string, after bool) error {
	for _, f := range m.failures {
		if f.id == id && f.step == step && f.after == after && f.times != 0 {
			f.times--
			return f.err
		}
	}
	return nil
}

func (m *Machine) ran(format string, args ...any) {
	m.commands = append(m.commands, fmt.Sprintf(format, args...))
}

func (m *Machine) now() time.Time {
	if m.Now != nil {
		return m.Now()
	}
	return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
}
