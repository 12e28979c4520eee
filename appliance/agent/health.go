package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/wire"
)

// Three starts within ten minutes are a loop.
const loopingAfter = 3

// watch follows the processes and containers of the present declaration, acts on their alive checks, and tells transitions, not samples (DEC-12).
type watch struct {
	machine host.Machine
	changed func() // called after a transition, from any goroutine

	mu      sync.Mutex
	held    bool              // nothing is restarted (OPS-3)
	probes  map[string]*probe // by resource id
	present []appliance.InstanceName
}

// probe watches one of them.
type probe struct {
	resource wire.Resource
	stop     context.CancelFunc
	again    chan struct{} // look now
	health   wire.Health
}

func newWatch(machine host.Machine, changed func()) *watch {
	return &watch{machine: machine, changed: changed, probes: map[string]*probe{}}
}

// set makes what is watched what runs in desired; a probe whose resource did not change goes on undisturbed.
func (w *watch) set(ctx context.Context, desired []wire.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.present = instances(desired)
	want := map[string]wire.Resource{}
	for _, r := range desired {
		if r.Kind.Runs() && w.machine.Runner(r.Kind) != nil {
			want[r.ID] = r
		}
	}
	for id, p := range w.probes {
		if r, ok := want[id]; !ok || !sameResource(r, p.resource) {
			p.stop()
			delete(w.probes, id)
		}
	}
	for id, r := range want {
		if w.probes[id] != nil {
			continue
		}
		var spec wire.Run
		if json.Unmarshal(r.Spec, &spec) != nil {
			continue
		}
		ctx, stop := context.WithCancel(ctx)
		p := &probe{resource: r, stop: stop, again: make(chan struct{}, 1), health: wire.Health{Instance: r.Instance, State: wire.Starting, Since: now()}}
		w.probes[id] = p
		go w.follow(ctx, p, spec)
	}
}

// running gives what runs of an instance, by id; with a part only the process or container of that name.
func (w *watch) running(instance appliance.InstanceName, name string) (out []wire.Resource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(w.probes)) {
		if r := w.probes[id].resource; r.Instance == instance && (name == "" || part(r) == name) {
			out = append(out, r)
		}
	}
	return out
}

// part is what a resource is called within its instance and kind.
func part(r wire.Resource) string { return r.ID[strings.LastIndexByte(r.ID, '/')+1:] }

// rest has what is unhealthy left as it is, or not; still says which.
func (w *watch) rest(held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = held
}

func (w *watch) still() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.held
}

// report gives the health of every instance: the worst of its processes; an instance without one is healthy.
func (w *watch) report() []wire.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	worst := map[appliance.InstanceName]wire.Health{}
	for _, name := range w.present {
		worst[name] = wire.Health{Instance: name, State: wire.Healthy}
	}
	for _, id := range slices.Sorted(maps.Keys(w.probes)) {
		h := w.probes[id].health
		if have, ok := worst[h.Instance]; ok && (wire.Worse(have.State, h.State) != have.State || have.Since.IsZero()) {
			worst[h.Instance] = h
		}
	}
	out := make([]wire.Health, 0, len(worst))
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		out = append(out, worst[name])
	}
	return out
}

// follow is one probe's life: ready first, then alive for as long as the process stays the same one.
func (w *watch) follow(ctx context.Context, p *probe, spec wire.Run) {
	var ready bool
	var started time.Time // of the process seen ready
	failures, pause := 0, 20*time.Millisecond
	begun := time.Now()
	for {
		run, err := w.machine.Runner(p.resource.Kind).Status(ctx, p.resource)
		if ctx.Err() != nil {
			return
		}
		if !run.Since.Equal(started) {
			ready, failures, started, begun, pause = false, 0, run.Since, time.Now(), 20*time.Millisecond
		}
		state, why := wire.Starting, ""
		switch {
		case err != nil:
			state, why = wire.Unhealthy, err.Error()
		case spec.Stopped && run.State != "running":
			state, why = wire.Stopped, "stopped by an operator"
		case spec.Stopped:
			state, why = wire.Unhealthy, "it runs, although an operator stopped it"
		case run.Restarts >= loopingAfter && time.Since(run.Since) < time.Minute:
			state, why = wire.Looping, fmt.Sprintf("started %d times in ten minutes", run.Restarts+1)
		case run.State != "running":
			if state, why = wire.Stopped, "the process is "+run.State; run.State == "backoff" {
				state = wire.Starting
			}
		case !ready:
			if why = w.attempt(ctx, p.resource, spec.Ready, time.Second); why == "" {
				ready, state = true, wire.Healthy
			} else if time.Since(begun) > duration(spec.Ready, func(c wire.Check) string { return c.Within }, 30*time.Second) {
				state = wire.Unhealthy
			}
		default:
			state = wire.Healthy
			if why = w.attempt(ctx, p.resource, spec.Alive, duration(spec.Alive, func(c wire.Check) string { return c.Within }, 5*time.Second)); why == "" {
				failures = 0
			} else if failures++; failures >= max(1, failuresOf(spec.Alive)) {
				if state = wire.Unhealthy; w.still() {
					break
				}
				failures = 0
				w.tell(ctx, p, state, why)
				if err := w.machine.Runner(p.resource.Kind).Act(ctx, p.resource, "restart"); err != nil {
					why = err.Error()
				}
			}
		}
		w.tell(ctx, p, state, why)
		if ready {
			pause = duration(spec.Alive, func(c wire.Check) string { return c.Every }, 10*time.Second)
		} else {
			pause = min(2*pause, time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.again:
		case <-time.After(pause):
		}
	}
}

// restarted tells that a process was started anew, or that this failed, and looks how it is now.
func (w *watch) restarted(ctx context.Context, id string, err error) {
	w.mu.Lock()
	p := w.probes[id]
	w.mu.Unlock()
	if p == nil {
		return
	}
	if err != nil {
		w.tell(ctx, p, wire.Unhealthy, "restart: "+err.Error())
		return
	}
	w.tell(ctx, p, wire.Starting, "")
	select {
	case p.again <- struct{}{}:
	default:
	}
}

// tell records a state and says so when it is another one than before.
func (w *watch) tell(ctx context.Context, p *probe, state wire.HealthState, why string) {
	if ctx.Err() != nil {
		return
	}
	var lines []string
	w.mu.Lock()
	same := p.health.State == state
	w.mu.Unlock()
	if same {
		return
	}
	if state == wire.Unhealthy || state == wire.Looping {
		lines, _ = w.machine.Runner(p.resource.Kind).Log(ctx, p.resource, logLines)
	}
	w.mu.Lock()
	p.health.State, p.health.Since, p.health.Why, p.health.Log = state, now(), why, lines
	w.mu.Unlock()
	w.changed()
}

// attempt makes one try of a check; the empty string means that it passed, or that there is none.
func (w *watch) attempt(ctx context.Context, r wire.Resource, c *wire.Check, within time.Duration) string {
	if c == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	switch {
	case c.HTTP != "":
		return attemptHTTP(ctx, c.HTTP)
	case c.TCP != "":
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.TCP)
		if err != nil {
			return err.Error()
		}
		conn.Close()
	case len(c.Command) > 0:
		if err := w.machine.Runner(r.Kind).Check(ctx, r, c.Command); err != nil {
			return err.Error()
		}
	}
	return ""
}

// checks go to the node itself: no proxy, no redirect, no connection kept.
var checks = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func attemptHTTP(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	res, err := checks.Do(req)
	if err != nil {
		return err.Error()
	}
	res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Sprintf("%s answered %s", url, res.Status)
	}
	return ""
}

func duration(c *wire.Check, of func(wire.Check) string, otherwise time.Duration) time.Duration {
	if c != nil {
		if d, err := time.ParseDuration(of(*c)); err == nil && d > 0 {
			return d
		}
	}
	return otherwise
}

func failuresOf(c *wire.Check) int {
	if c == nil {
		return 0
	}
	return c.Failures
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
