package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance/wire"
)

// removal is removed.json: this machine is a node no more, since then.
type removal struct {
	Version int       `json:"version"`
	At      time.Time `json:"at"`
}

// Removed says since when the machine whose agent's folder is dir is a node no more; zero where it is one. It serves commands on the
// machine itself.
func Removed(dir string) (time.Time, error) {
	var r removal
	err := (&state{dir: dir}).read("removed.json", &r)
	return r.At, err
}

// isOwn says whether a notice's key is this machine's.
func (a *Agent) isOwn(identity string) bool {
	public, _ := a.cfg.Identity.Public().(ed25519.PublicKey)
	return identity == base64.StdEncoding.EncodeToString(public)
}

// hearRemoval keeps that the mesh has removed this node. What cannot be kept is told again.
func (a *Agent) hearRemoval() {
	if err := a.state.write("removed.json", removal{stateVersion, now()}); err != nil {
		a.cfg.Log.Error("keep that this node was removed", "err", err)
		return
	}
	a.removed = true
}

// rest stops what runs here for the mesh, and does nothing more until the end. What was made stays, and so do data, until somebody has
// the machine leave (NODE-8).
func (a *Agent) rest(ctx context.Context) {
	a.watch.set(ctx, nil)
	for pause := time.Second; ; pause = min(2*pause, 5*time.Minute) {
		err := a.engine.rest(ctx)
		if err == nil {
			break
		}
		a.cfg.Log.Error("stop what runs here", "again in", pause, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
	a.cfg.Log.Warn("the mesh has removed this node: its modules are stopped, their data stay", "next", "mesh leave")
	<-ctx.Done()
}

// rest stops processes and containers, and takes the overlay down, last made first.
func (e *Engine) rest(ctx context.Context) error {
	var failed []error
	for _, rec := range slices.Backward(slices.Clone(e.state.applied.Records)) {
		r := rec.Resource
		if !r.Kind.Runs() && r.Kind != wire.Overlay {
			continue
		}
		effector, err := e.effector(r.Kind)
		if err == nil {
			_, err = effector.Undo(ctx, r, rec.Undo)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("stop %s: %w", r.ID, err))
			continue
		}
		e.state.forget(r.ID)
	}
	return errors.Join(append(failed, e.state.saveApplied())...)
}
