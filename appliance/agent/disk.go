package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/wire"
)

// diskEvery is the time between two looks at the free space, which cost next to nothing.
const diskEvery = 10 * time.Second

// room says why nothing new is made here now (DEC-14): whatever is begun has to be stored, and has to leave space for what the modules
// here write.
func (a *Agent) room() error {
	space, err := a.cfg.Machine.Space()
	if err != nil {
		return err
	}
	if space.Level(a.cfg.LeastFree) != disk.Full {
		return nil
	}
	_, stop := space.Bounds(a.cfg.LeastFree)
	return appliance.Errorf(appliance.Unavailable, "%s; below %s nothing new is made", space, stop)
}

// lookAtDisk follows the free space: what waited for it is tried again at once.
func (a *Agent) lookAtDisk(ctx context.Context) {
	was := a.level
	if !a.judgeDisk() {
		return
	}
	a.report(nil)
	if was == disk.Full && !rests(a.state.applied.Outcomes) {
		a.reapply(ctx)
	}
}

// judgeDisk warns of a disk that is, or is nearly, too full; it says whether that is news.
func (a *Agent) judgeDisk() (news bool) {
	a.spaceDue = time.Now().Add(diskEvery)
	space, err := a.cfg.Machine.Space()
	if err != nil {
		a.cfg.Log.Error("look at the disk", "err", err)
		return false
	}
	if space.Free > 2*a.cfg.Reserve {
		if err := a.state.reserve.Hold(); err != nil {
			a.cfg.Log.Warn("keep the reserve", "err", err)
		}
	}
	level := space.Level(a.cfg.LeastFree)
	if level == a.level {
		return false
	}
	a.level = level
	const code = "disk-low"
	switch warn, stop := space.Bounds(a.cfg.LeastFree); level {
	case disk.Full:
		a.warn(code, wire.Warning{Code: code, Severity: "error", Text: fmt.Sprintf("%s on the disk of %s: only removals and revocations are carried out", space, a.cfg.Dir),
			Remedy: fmt.Sprintf("free space there; from %s on, what was refused is made by itself", stop)})
	case disk.Low:
		a.warn(code, wire.Warning{Code: code, Severity: "warning", Text: fmt.Sprintf("%s on the disk of %s", space, a.cfg.Dir),
			Remedy: fmt.Sprintf("free space there: %s or more; below %s nothing new is made", warn, stop)})
	default:
		a.warn(code)
	}
	return true
}
