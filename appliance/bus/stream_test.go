package bus_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/wire"
)

var mesh = appliance.NewMeshID()

// envelope is a signed message of the kind; the link looks at its form only.
func envelope(t testing.TB, kind wire.Kind, from, body string) []byte {
	t.Helper()
	return seal(t, wire.Header{Kind: kind, From: from}, body)
}

// asking is an envelope that names where the answer goes.
func asking(t testing.TB, kind wire.Kind, from, reply string) []byte {
	t.Helper()
	return seal(t, wire.Header{Kind: kind, From: from, Reply: reply}, "{}")
}

func seal(t testing.TB, h wire.Header, body string) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	h.Version, h.Mesh, h.To, h.Time = wire.Version, mesh, string(mesh), time.Now()
	data, err := wire.Seal(h, []byte(body), key)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// eventually polls for what another process or goroutine brings about.
func eventually(t testing.TB, what func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if err = what(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// heard collects what a handler was given.
type heard struct {
	mu       sync.Mutex
	messages []bus.Message
}

func (h *heard) add(m bus.Message) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, m)
	return len(h.messages)
}

func (h *heard) list() []bus.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]bus.Message(nil), h.messages...)
}

func (h *heard) want(n int) func() error {
	return func() error {
		if got := len(h.list()); got != n {
			return fmt.Errorf("heard %d messages, want %d", got, n)
		}
		return nil
	}
}

// follow runs a Follow until stop is called or the test ends.
func follow(t testing.TB, l *bus.Link, consumer string, handle func(context.Context, bus.Message) bus.Verdict) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Follow(ctx, consumer, handle) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// BUS-7, BUS-12: a message stays until it is recorded; a nak with delay brings it back after the delay.
func TestLaterBringsBack(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	var h heard
	var times []time.Time
	follow(t, controller, "reports", func(_ context.Context, m bus.Message) bus.Verdict {
		times = append(times, time.Now())
		if h.add(m) < 3 {
			return bus.StoreAway(300 * time.Millisecond)
		}
		return bus.Done()
	})
	data := envelope(t, wire.KindReport, string(c.Hub), "{}")
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), data); err != nil {
		t.Fatal(err)
	}
	eventually(t, h.want(3))
	eventually(t, func() error { return settled(t, controller) })
	for i, m := range h.list() {
		if m.Delivered != i+1 || m.Header.From != string(c.Hub) || string(m.Data) != string(data) {
			t.Errorf("message %d: delivered %d, header %+v", i, m.Delivered, m.Header)
		}
		if i > 0 && times[i].Sub(times[i-1]) < 290*time.Millisecond {
			t.Errorf("came back after %s, asked for 300ms", times[i].Sub(times[i-1]))
		}
	}
}

func settled(t testing.TB, controller *bus.Link) error {
	list, err := bus.Backlogs(t.Context(), controller)
	if err != nil {
		return err
	}
	for _, b := range list {
		if b.Waiting != 0 || b.Open != 0 {
			return fmt.Errorf("consumer %+v is not settled", b)
		}
	}
	return nil
}

// BUS-11: what cannot be decoded, or does not belong on its subject, and what makes a handler panic is set aside and disturbs nobody.
func TestSetAside(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	var h heard
	follow(t, controller, "reports", func(_ context.Context, m bus.Message) bus.Verdict {
		h.add(m)
		if strings.HasSuffix(string(m.Data), "panic") {
			panic("on purpose")
		}
		if strings.HasSuffix(string(m.Data), "dead") {
			return bus.Dead("as the handler said")
		}
		return bus.Done()
	})
	if _, err := controller.Subscribe(wire.SubjectAlives, func(m bus.Message) {
		if strings.HasSuffix(string(m.Data), "panic") {
			panic("on purpose")
		}
		h.add(m)
	}); err != nil {
		t.Fatal(err)
	}
	me := string(c.Hub)
	for _, data := range [][]byte{
		[]byte("garbage"), nil, envelope(t, wire.KindAlive, me, "wrong kind"), envelope(t, wire.KindReport, me, "panic"),
		envelope(t, wire.KindReport, me, "dead"), envelope(t, wire.KindReport, me, "fine"),
	} {
		if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), data); err != nil {
			t.Fatal(err)
		}
	}
	for _, data := range [][]byte{[]byte("garbage"), envelope(t, wire.KindAlive, me, "panic"), envelope(t, wire.KindAlive, me, "fine")} {
		if err := node.Publish(wire.AliveSubject(c.Hub), data); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, h.want(4))
	eventually(t, func() error { return settled(t, controller) })
	var dead []bus.DeadLetter
	eventually(t, func() (err error) {
		if dead, err = bus.DeadLetters(t.Context(), controller, 100); err == nil && len(dead) != 7 {
			err = fmt.Errorf("%d dead letters, want 7", len(dead))
		}
		return err
	})
	reasons := map[string]int{}
	for _, d := range dead {
		reasons[d.Subject+": "+d.Reason]++
		if d.Size != len(d.Data) || d.Time.IsZero() {
			t.Errorf("dead letter %+v", d)
		}
	}
	report, alive := wire.ReportSubject(c.Hub), wire.AliveSubject(c.Hub)
	for reason, n := range map[string]int{
		report + ": open envelope: not an envelope":                          2,
		report + ": kind \"alive\" does not belong on mesh.control.*.report": 1,
		report + ": handler panicked: on purpose":                            1,
		report + ": as the handler said":                                     1,
		alive + ": open envelope: not an envelope":                           1,
		alive + ": handler panicked: on purpose":                             1,
	} {
		if reasons[reason] != n {
			t.Errorf("%d dead letters say %q, want %d (all: %v)", reasons[reason], reason, n, reasons)
		}
	}
	if st := controller.Status(); st.Panics != 2 || st.Undecodable != 4 || st.LetGo != 5 {
		t.Errorf("status %+v", st)
	}
}

// clock goes forward by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// BUS-12: a message that keeps failing while the store answers others is let go after the window, over restarts of the controller;
// while the store is away nothing is.
func TestLetGoAfterTheWindow(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	me := string(c.Hub)
	clk := &clock{now: time.Now()}
	const step = 25 * time.Second // less than a delay and what it may be late
	var mu sync.Mutex
	away, flaky, failures, others, flakes := false, true, 0, 0, 0
	handle := func(_ context.Context, m bus.Message) bus.Verdict {
		mu.Lock()
		defer mu.Unlock()
		clk.forward(step)
		switch {
		case flaky && flakes%2 == 1:
			flakes++
			return bus.StoreAway(0)
		case flaky:
			flakes++
			return bus.Later(0, "on purpose")
		case away:
			return bus.StoreAway(0)
		case strings.HasSuffix(string(m.Data), "poison"):
			failures++
			return bus.Later(0, "on purpose")
		}
		others++
		return bus.Done()
	}
	count := func() (int, int) {
		mu.Lock()
		defer mu.Unlock()
		return failures, others
	}
	run := func() (l *bus.Link, stop func()) {
		l = s.Controller(t, c)
		bus.SetClock(l, clk.read)
		return l, follow(t, l, "reports", handle)
	}
	reached := func(n int) func() error {
		return func() error {
			if f, _ := count(); f < n {
				return fmt.Errorf("%d failures, want %d", f, n)
			}
			return nil
		}
	}

	controller, stop := run()
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), envelope(t, wire.KindReport, me, "poison")); err != nil {
		t.Fatal(err)
	}
	// A store that is away every other time gives no window any time to run.
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if flaky = flakes < 3*int(bus.Limit/step); flaky {
			return fmt.Errorf("asked %d times", flakes)
		}
		return nil
	})
	eventually(t, reached(10))
	// An outage of the store much longer than the window.
	mu.Lock()
	away = true
	mu.Unlock()
	from := clk.read()
	eventually(t, func() error {
		if got := clk.read().Sub(from); got < 10*step {
			return fmt.Errorf("store away for %s", got)
		}
		return nil
	})
	clk.forward(10 * bus.Limit)
	mu.Lock()
	away = false
	mu.Unlock()
	eventually(t, reached(15))
	// A restart of the controller.
	stop()
	controller.Close()
	clk.forward(10 * bus.Limit)
	controller, _ = run()
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), envelope(t, wire.KindReport, me, "fine")); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return settled(t, controller) })
	// 36 steps of 25 s are the window; the first failure and the one after the outage only begin a run, the restart may count 30 s.
	got, fine := count()
	if want := int(bus.Limit/step) + 2; got < want-1 || got > want {
		t.Errorf("let go after %d failures, want about %d", got, want)
	}
	if fine != 1 {
		t.Errorf("%d others were recorded meanwhile", fine)
	}
	dead, err := bus.DeadLetters(t.Context(), controller, 10)
	if err != nil || len(dead) != 1 || !strings.Contains(dead[0].Reason, "on purpose") || !strings.Contains(dead[0].Reason, "15m") {
		t.Errorf("dead letters %+v, %v", dead, err)
	}
	if st := controller.Status(); st.LetGo != 1 {
		t.Errorf("status %+v", st)
	}
}
