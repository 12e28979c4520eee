package serve

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
)

const (
	defaultBallast = disk.Size(64 << 20)
	probeEvery     = 10 * time.Second
	lookSoon       = time.Second // while something is wrong, or was said to be
	longestPause   = time.Minute // between two restarts of the broker
)

// ballast is what the hub holds in reserve, beside its streams.
func (s Settings) ballast(i installation.Installation) disk.Ballast {
	size := defaultBallast
	if s.Ballast != nil {
		size = *s.Ballast
	}
	return disk.Ballast{Path: filepath.Join(Streams(i), "ballast"), Size: size}
}

// keeper has the hub survive a full disk (GEN-9): a stream that could not be written stays silent until the broker is started anew, and
// the store needs space to come back too. So the ballast is let go, and taken up again once there is room for it.
type keeper struct {
	dir     string // of the streams
	ballast disk.Ballast
	broker  interface {
		StoreErr() error
		Restart() error
	}
	probe func(context.Context) error // writes, and says which streams are broken
	wrong atomic.Bool                 // the broker says that something is
	log   *slog.Logger

	pause  time.Duration // before the next restart
	next   time.Time     // when that may be
	rarely rate.Sometimes

	mu      sync.Mutex
	warning wire.Warning // without a code: none stands
}

func newKeeper(dir string, ballast disk.Ballast, log *slog.Logger) *keeper {
	return &keeper{dir: dir, ballast: ballast, log: log, rarely: rate.Sometimes{First: 1, Interval: time.Minute}}
}

// tell has the keeper look soon. It waits for nothing.
func (k *keeper) tell() { k.wrong.Store(true) }

// run looks when it is time, when the broker complains, and when the space runs out: not more often than once a second, whatever it is.
func (k *keeper) run(ctx context.Context) {
	for due := (time.Time{}); ctx.Err() == nil; {
		space, err := disk.Look(k.dir)
		if k.wrong.Swap(false) || err == nil && k.tight(space) || !time.Now().Before(due) {
			due = time.Now().Add(k.look(ctx))
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookSoon):
		}
	}
}

// tight says whether so little is left that the next write may fail.
func (k *keeper) tight(space disk.Space) bool { return space.Free < k.ballast.Size/16 }

// look is one step. It says when the next is due.
func (k *keeper) look(ctx context.Context) time.Duration {
	var unknown error
	broken := k.broker.StoreErr()
	if broken == nil { // else a write would only wait for an answer
		if unknown = k.probe(ctx); appliance.IsReason(unknown, bus.Broken) {
			broken = unknown
		}
	}
	space, err := disk.Look(k.dir)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		k.log.Error("look at the disk", "err", err)
	case broken != nil:
		k.mend(broken)
	case k.tight(space): // nobody has come upon it yet
		k.letGo()
		k.say(k.full(space))
	case unknown != nil:
		k.rarely.Do(func() { k.log.Warn("the streams do not say whether they can be written", "err", unknown) })
	default:
		k.pause = 0
		if err := k.hold(space); err != nil {
			k.log.Error("hold the ballast", "err", err)
		}
		return probeEvery
	}
	return lookSoon
}

// mend makes room and restarts the broker where there is some.
func (k *keeper) mend(broken error) {
	k.letGo()
	space, err := disk.Look(k.dir)
	if err != nil {
		k.log.Error("look at the disk", "err", err)
		return
	}
	if space.Free < k.room() {
		k.say(k.full(space))
		return
	}
	if time.Now().Before(k.next) {
		return
	}
	k.log.Error("the broker cannot write and is started anew", "free", space.Free, "err", fmt.Sprintf("%.500v", broken))
	k.pause = min(max(lookSoon, 2*k.pause), longestPause)
	if err := k.broker.Restart(); err != nil {
		k.log.Error("restart the broker", "err", err)
	}
	k.next = time.Now().Add(k.pause)
	if k.pause > 4*lookSoon {
		k.say(wire.Warning{Code: "hub-cannot-write", Severity: "error", Text: fmt.Sprintf("the hub's broker cannot write in %s, although %s: %.500v", k.dir, space, broken),
			Remedy: "look at that disk and at the hub's log; the broker is started anew again and again"})
	}
}

func (k *keeper) letGo() {
	if !k.ballast.Held() {
		return
	}
	k.log.Error("the hub's disk is full: the ballast is let go", "ballast", k.ballast.Size)
	if err := k.ballast.LetGo(); err != nil {
		k.log.Error("let the ballast go", "err", err)
	}
}

// room is what has to be free for a restart to be of any use.
func (k *keeper) room() disk.Size { return max(k.ballast.Size/2, 1<<20) }

// hold takes the ballast up where as much stays free beside it.
func (k *keeper) hold(space disk.Space) error {
	if !k.ballast.Held() && space.Free < 2*k.ballast.Size {
		k.say(wire.Warning{Code: "hub-disk-low", Severity: "warning",
			Text:   fmt.Sprintf("the hub has no reserve left for when its disk is full: %s in %s", space, k.dir),
			Remedy: fmt.Sprintf("free space on that disk; from %s on the hub takes its reserve up again by itself", 2*k.ballast.Size)})
		return nil
	}
	k.say(wire.Warning{})
	return k.ballast.Hold()
}

func (k *keeper) full(space disk.Space) wire.Warning {
	return wire.Warning{Code: "hub-disk-full", Severity: "error",
		Text:   fmt.Sprintf("the hub's disk is full: %s in %s; what was acknowledged is kept, and what is new waits on the nodes", space, k.dir),
		Remedy: fmt.Sprintf("free %s or more on that disk; the hub goes on by itself", k.room())}
}

// say puts a warning in the place of the one before; only another kind is news to the log.
func (k *keeper) say(w wire.Warning) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case w.Code == k.warning.Code:
	case w.Code == "":
		k.log.Info("the hub's disk is well again")
	default:
		k.log.Error(w.Text, "remedy", w.Remedy)
	}
	k.warning = w
}

// warnings are what stands, for the hub's own node in the status.
func (k *keeper) warnings() []wire.Warning {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.warning.Code == "" {
		return nil
	}
	return []wire.Warning{k.warning}
}
