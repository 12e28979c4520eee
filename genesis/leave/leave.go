// Package leave takes an installation off its machine: what was made is undone from its records, the installation's own files go, and what
// stays is told with the reason. It is resumable: killed anywhere, the same command goes on. The record of what the machine is goes last.
// What undoing means is the agent's and its machine's.
package leave

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/services"
)

// Options are what a person decides, and who is told.
type Options struct {
	Install installation.Installation
	Purge   bool
	Tell    func(ctx context.Context) error // tells the mesh that this node leaves; nil: nobody is to be told
}

// Machine makes the machine that the installation's effects are on.
type Machine func(mesh appliance.MeshID, node appliance.NodeName) (host.Machine, error)

// Result says how it ended.
type Result struct {
	Told   bool        `json:"told"`             // the mesh knows, and removes the node
	Untold string      `json:"untold,omitempty"` // why it could not be told
	Kept   []host.Left `json:"kept"`
}

// tellWithin is how long the mesh may take to hear it.
const tellWithin = 10 * time.Second

// leaving is one run.
type leaving struct {
	Options
	mark    Mark
	machine host.Machine
	service services.Services
	tell    func(string)
	result  Result
}

// Run takes the installation off. Mark is what Find gave. Tell says what is being done.
func Run(ctx context.Context, o Options, mark Mark, machine Machine, s services.Services, tell func(string)) (Result, error) {
	release, err := o.Install.Lock("mesh leave")
	if err != nil {
		return Result{}, err
	}
	defer release()
	l := &leaving{Options: o, mark: mark, service: s, tell: tell, result: Result{Told: mark.Told, Kept: []host.Left{}}}
	if l.machine, err = machine(mark.Mesh, mark.Name); err != nil {
		return l.result, err
	}
	for _, step := range []struct {
		says string
		do   func(context.Context) error
	}{
		{"begin", func(context.Context) error { return l.mark.write(o.Install) }},
		{"tell the mesh", l.tellMesh},
		{"stop the agent", s.Remove},
		{"undo what was made", l.undo},
		{"take the overlay down", l.down},
		{"remove the installation", l.wipe},
	} {
		tell(step.says)
		if err := step.do(ctx); err != nil {
			return l.result, fmt.Errorf("%s: %w", step.says, err)
		}
	}
	return l.result, nil
}

// tellMesh says it once. A mesh that cannot be reached is told by a person, on the hub.
func (l *leaving) tellMesh(ctx context.Context) error {
	removed, err := agent.Removed(l.Install.Node())
	if err != nil {
		return err
	}
	if l.Tell == nil || l.mark.Told || !removed.IsZero() {
		l.result.Told = l.Tell != nil
		return nil
	}
	within, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	if err := l.Tell(within); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.result.Untold = err.Error()
		l.tell("the mesh is not reached: " + err.Error())
		return nil
	}
	l.mark.Told, l.result.Told = true, true
	return l.mark.write(l.Install)
}

func (l *leaving) undo(ctx context.Context) error {
	o := agent.Leaving{Carried: l.mark.Hub, Purge: l.Purge}
	if l.mark.Hub && l.Purge {
		o.BeforeUsers = func() error { return os.RemoveAll(l.Install.Hub()) }
	}
	kept, err := agent.Leave(ctx, l.machine, l.Install.Node(), o, func(o wire.Outcome) {
		if o.Status != wire.StatusKept {
			l.tell(fmt.Sprintf("%s %s", o.Status, o.ID))
		}
	})
	l.result.Kept = append(l.result.Kept, kept...)
	if err != nil {
		return appliance.Errorf(appliance.Unavailable, "%w", err).WithHint("mend what stands against it; the same command goes on from there")
	}
	return nil
}

// down also takes down what no record tells of.
func (l *leaving) down(ctx context.Context) error {
	if err := l.machine.Overlay.Set(ctx, host.OverlayState{}); err != nil {
		return err
	}
	if l.machine.Tidy == nil {
		return nil
	}
	return l.machine.Tidy(ctx)
}

// wipe removes the installation's own files, but for what data need to be of use again: their records, and on a hub the keys of the mesh
// and of its node. What is in the folder and not the mesh's stays.
func (l *leaving) wipe(context.Context) error {
	i := l.Install
	records, _, _, err := agent.Records(i.Node())
	if err != nil {
		return err
	}
	gone := []string{filepath.Dir(i.Binary()), i.Run(), i.Artifacts(), i.Hub(), filepath.Dir(i.Operator())}
	kept := len(records) > 0
	if l.mark.Database {
		l.result.Kept = append(l.result.Kept, host.Left{What: "the records of mesh " + l.mark.MeshName, Why: "they are in a database that was there before"})
	}
	if l.mark.Hub && !l.Purge {
		kept, gone = true, gone[:3]
		l.result.Kept = append(l.result.Kept,
			host.Left{What: "folder " + i.Hub(), Why: "the keys of the mesh: without them the data are worth little, and nothing makes them again"},
			host.Left{What: "folder " + i.Node(), Why: "the keys of the hub's node, and what it has done"},
			host.Left{What: "folder " + filepath.Dir(i.Operator()), Why: "the first operator's credential"})
	} else if kept {
		if err := ClearNode(i); err != nil {
			return err
		}
	} else {
		gone = append(gone, i.Node())
	}
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	l.result.Kept = append(l.result.Kept, l.strangers(records)...)
	last := []string{i.File()}
	if !kept {
		last = append(last, i.LeavingFile())
	}
	for _, path := range append(last, i.LockFile()) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	_ = os.Remove(i.Dir) // stays where something is in it
	return nil
}

// strangers are what is left in the folder and nobody's who is known.
func (l *leaving) strangers(records []agent.Record) (left []host.Left) {
	i := l.Install
	modules := filepath.Dir(i.Module("x"))
	_ = os.Remove(modules)
	entries, _ := os.ReadDir(i.Dir)
	for _, e := range entries {
		path := filepath.Join(i.Dir, e.Name())
		switch path {
		case i.File(), i.LockFile(), i.LeavingFile(), i.Node(), i.Hub(), filepath.Dir(i.Operator()):
			continue
		case modules:
			if len(records) > 0 {
				continue
			}
		}
		left = append(left, host.Left{What: path, Why: "the mesh knows nothing of it"})
	}
	return left
}

// ClearNode empties the agent's folder, but for the records of what was kept.
func ClearNode(i installation.Installation) error {
	entries, err := os.ReadDir(i.Node())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	failed := []error{err}
	for _, e := range entries {
		if !slices.Contains(agent.KeptFiles, e.Name()) {
			failed = append(failed, os.RemoveAll(filepath.Join(i.Node(), e.Name())))
		}
	}
	_ = os.Remove(i.Node()) // stays where something is in it
	return errors.Join(failed...)
}
