package bus

import (
	"testing"
	"time"
)

var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// run fails message 1 every step until it is let go, and says how long that took; each is called in between.
func run(w *Window, step time.Duration, each func(elapsed time.Duration) *Window) time.Duration {
	for elapsed := time.Duration(0); elapsed < 24*time.Hour; elapsed += step {
		if w.Failed(1, start, start.Add(elapsed), step) {
			return elapsed
		}
		if each != nil {
			w = each(elapsed)
		}
	}
	return -1
}

// BUS-12: a message that keeps failing is let go after the window, no sooner.
func TestWindowLetsGo(t *testing.T) {
	if got := run(&Window{}, time.Minute, nil); got != Limit {
		t.Errorf("let go after %s, want %s", got, Limit)
	}
}

// BUS-12: while the store is away no window runs, for any message.
func TestWindowStandsStillWhileTheStoreIsAway(t *testing.T) {
	var w Window
	got := run(&w, time.Minute, func(elapsed time.Duration) *Window {
		if elapsed >= 5*time.Minute && elapsed < 65*time.Minute {
			w.Away()
		}
		return &w
	})
	// The failure after the outage begins a run; the ones before it count.
	if want := Limit + time.Hour; got != want {
		t.Errorf("let go after %s, want %s", got, want)
	}
	// Away all the time: never.
	w = Window{}
	if got := run(&w, time.Minute, func(time.Duration) *Window { w.Away(); return &w }); got != -1 {
		t.Errorf("let go after %s with the store away", got)
	}
}

// BUS-12: the account survives a restart, and a long absence counts as one delay at most.
func TestWindowSurvivesARestart(t *testing.T) {
	w := &Window{}
	got := run(w, time.Minute, func(time.Duration) *Window {
		data, err := w.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseWindow(data)
		if err != nil {
			t.Fatal(err)
		}
		*w = again
		return w
	})
	if got != Limit {
		t.Errorf("let go after %s, want %s", got, Limit)
	}
	w = &Window{}
	w.Failed(1, start, start, time.Second)
	if w.Failed(1, start, start.Add(30*24*time.Hour), time.Second) {
		t.Error("let go for having been away")
	}
	if w.failing[0].Spent != time.Second+lateness {
		t.Errorf("a month away counts as %s", w.failing[0].Spent)
	}
	// A clock set back takes nothing away and adds nothing.
	w.Failed(1, start, start, time.Second)
	if w.failing[0].Spent != time.Second+lateness {
		t.Errorf("a clock set back counts as %s", w.failing[0].Spent)
	}
}

// BUS-12, SAFE-2: messages are told apart, also in a stream made anew; the account is bounded.
func TestWindowKeepsMessagesApart(t *testing.T) {
	var w Window
	w.Failed(1, start, start, time.Minute)
	w.Failed(1, start.Add(1), start, time.Minute)
	w.Failed(2, start, start, time.Minute)
	if len(w.failing) != 3 {
		t.Errorf("%d accounts for 3 messages", len(w.failing))
	}
	if !w.Settled(1, start) || w.Settled(1, start) || len(w.failing) != 2 {
		t.Errorf("settled once: %+v", w.failing)
	}
	for i := range uint64(2 * maxFailing) {
		w.Failed(i+10, start, start, time.Minute)
	}
	if len(w.failing) != maxFailing {
		t.Errorf("%d accounts, at most %d", len(w.failing), maxFailing)
	}
	data, err := w.Bytes()
	if err != nil || len(data) > 1<<20-4096 {
		t.Errorf("a full account is %d bytes: it does not fit one message (%v)", len(data), err)
	}
	if _, err := ParseWindow(data); err != nil {
		t.Error(err)
	}
}

func FuzzParseWindow(f *testing.F) {
	f.Add([]byte(`[{"sequence":1,"stored":"2026-12-01T00:00:00Z","spent":1,"delay":2}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if w, err := ParseWindow(data); err == nil {
			w.Failed(1, start, start, time.Minute)
			w.Away()
			w.Settled(1, start)
		}
	})
}

// BUS-4: from 1 s to 60 s with jitter; quick only while the link is new, and from the bottom after that.
func TestDelay(t *testing.T) {
	for n, ceiling := range map[int64]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 6: time.Minute, 1 << 40: time.Minute} {
		if low := delay(n, 0); low != minDelay {
			t.Errorf("try %d: at least %s", n, low)
		}
		if high := delay(n, 0.999999); high > ceiling || high < ceiling-time.Second/10 {
			t.Errorf("try %d: at most %s, want %s", n, high, ceiling)
		}
	}
	l := &Link{since: time.Now()}
	for range 100 {
		if d := l.pause(); d != fastDelay {
			t.Fatalf("a new link waits %s", d)
		}
	}
	l.since = time.Now().Add(-fastWithin)
	if d := l.pause(); d < time.Second || d > 2*time.Second {
		t.Errorf("the first pause of a link that is not new any more is %s", d)
	}
	if n := l.count.retries.Load(); n != 101 {
		t.Errorf("%d retries counted", n)
	}
}
