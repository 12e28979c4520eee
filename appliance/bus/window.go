package bus

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
)

// Limit is how long a message may keep failing while the store answers (BUS-12).
const Limit = 15 * time.Minute

const (
	maxFailing = maxAckPending // a consumer hands out no more before one is settled
	// lateness is what a redelivery may take beyond its delay and still count: longer means that broker or controller was away.
	lateness = 30 * time.Second
)

// Window keeps account of the messages of one consumer that keep failing. Only time in which the store answered counts: an outage
// breaks every run, and so does a redelivery that came much later than it was asked for. The zero Window is empty.
type Window struct {
	failing []failing // by the time of the last failure, newest last
}

// failing is one message's account. Stored tells it from another with its sequence in a stream made anew.
type failing struct {
	Sequence uint64        `json:"sequence"`
	Stored   time.Time     `json:"stored"`
	Spent    time.Duration `json:"spent"`
	Last     time.Time     `json:"last,omitzero"` // zero: the run is broken
	Delay    time.Duration `json:"delay"`         // after Last
}

func (w *Window) find(sequence uint64, stored time.Time) int {
	return slices.IndexFunc(w.failing, func(f failing) bool { return f.Sequence == sequence && f.Stored.Equal(stored) })
}

// Failed notes a failure at now, after which the message is asked for again with delay. It says whether the message is to be let go.
func (w *Window) Failed(sequence uint64, stored, now time.Time, delay time.Duration) (letGo bool) {
	f := failing{Sequence: sequence, Stored: stored}
	if i := w.find(sequence, stored); i >= 0 {
		f = w.failing[i]
		w.failing = slices.Delete(w.failing, i, i+1)
	}
	if !f.Last.IsZero() {
		f.Spent += min(max(now.Sub(f.Last), 0), f.Delay+lateness)
	}
	if f.Spent >= Limit {
		return true
	}
	f.Last, f.Delay = now, delay
	w.failing = append(w.failing, f)
	if len(w.failing) > maxFailing {
		w.failing = slices.Delete(w.failing, 0, len(w.failing)-maxFailing)
	}
	return false
}

// Away notes that the store did not answer.
func (w *Window) Away() {
	for i := range w.failing {
		w.failing[i].Last = time.Time{}
	}
}

// Settled forgets a message; it says whether there was something to forget.
func (w *Window) Settled(sequence uint64, stored time.Time) bool {
	i := w.find(sequence, stored)
	if i >= 0 {
		w.failing = slices.Delete(w.failing, i, i+1)
	}
	return i >= 0
}

// Bytes and ParseWindow carry the account over a restart.
func (w *Window) Bytes() ([]byte, error) { return json.Marshal(w.failing) }

func ParseWindow(data []byte) (Window, error) {
	var w Window
	if err := json.Unmarshal(data, &w.failing); err != nil {
		return Window{}, fmt.Errorf("read window: %w", err)
	}
	if len(w.failing) > maxFailing {
		return Window{}, appliance.Errorf(appliance.Invalid, "read window: %d messages, at most %d", len(w.failing), maxFailing)
	}
	return w, nil
}
