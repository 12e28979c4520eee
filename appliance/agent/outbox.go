package agent

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"sync"
	"time"

	"github.com/novox/mesh/appliance/wire"
)

// outbox delivers reports: at most one is pending, on disk until the bus acknowledged it. A newer account takes the place of one that
// was not delivered yet; facts of the older one that the newer does not state go along.
type outbox struct {
	believes Believes
	key      ed25519.PrivateKey
	send     func(ctx context.Context, subject string, data []byte) error // acknowledged
	log      *slog.Logger

	mu    sync.Mutex
	state *state
	wake  chan struct{}
}

// add puts a report on disk under the next sequence. After an error nothing of it is pending.
func (o *outbox) add(r wire.Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.state.outbox
	if before.Report != nil {
		r.Facts = mergeFacts(before.Report.Facts, r.Facts)
	}
	r, err := fit(r)
	if err != nil {
		return err
	}
	o.state.outbox.Sequence++
	o.state.outbox.Report = &r
	if err := o.state.saveOutbox(); err != nil {
		o.state.outbox = before // a sequence that is not on disk would be used again after a restart
		return err
	}
	o.hurry()
	return nil
}

func mergeFacts(older, newer *wire.Facts) *wire.Facts {
	if older == nil || newer == nil {
		if newer == nil {
			return older
		}
		return newer
	}
	merged := *newer
	if merged.Carried == nil {
		merged.Carried = older.Carried
	}
	if merged.Requests == nil {
		merged.Requests = older.Requests
	}
	return &merged
}

// run sends what is pending, again and again until it is acknowledged.
func (o *outbox) run(ctx context.Context) {
	pause := time.Second
	for {
		sequence, envelope, err := o.pending()
		switch {
		case err != nil:
			o.log.Error("seal report", "err", err)
		case envelope != nil:
			if err = o.try(ctx, envelope); err == nil {
				o.delivered(sequence)
				pause = time.Second
				continue
			}
			o.log.Warn("report not delivered, trying again", "sequence", sequence, "in", pause, "err", err)
		}
		var again <-chan time.Time
		if envelope != nil {
			again = time.After(pause)
			pause = min(2*pause, 30*time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-o.wake: // something is different now
			pause = time.Second
		case <-again:
		}
	}
}

// acknowledgedWithin is how long one try waits: an acknowledgement gets lost where the broker ends right after it took the report.
const acknowledgedWithin = 10 * time.Second

func (o *outbox) try(ctx context.Context, envelope []byte) error {
	ctx, cancel := context.WithTimeout(ctx, acknowledgedWithin)
	defer cancel()
	return o.send(ctx, wire.ReportSubject(o.believes.Node), envelope)
}

// hurry tries at once what waits for its next try.
func (o *outbox) hurry() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) pending() (uint64, []byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	box := o.state.outbox
	if box.Report == nil {
		return 0, nil, nil
	}
	body, err := wire.Encode(box.Report)
	if err != nil {
		return 0, nil, err
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindReport, Version: wire.Version, Mesh: o.believes.Mesh, From: string(o.believes.Node),
		To: string(o.believes.Mesh), Sequence: box.Sequence, Time: now()}, body, o.key)
	return box.Sequence, data, err
}

// delivered forgets the report unless a newer one took its place meanwhile.
func (o *outbox) delivered(sequence uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state.outbox.Sequence != sequence {
		return
	}
	o.state.outbox.Report = nil
	if err := o.state.saveOutbox(); err != nil {
		o.log.Error("keep outbox", "err", err) // it is sent once more after a restart; the controller knows the sequence
	}
}
