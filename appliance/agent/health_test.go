package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

// DEC-12, DEC-7: transitions are told, not samples; failures in a row restart the process; a loop and its last lines are shown.
func TestHealthTellsTransitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "a/process/main"
		m := hosttest.New()
		m.Now = time.Now
		r := resource(id, wire.ProcessSpec{Name: "main", User: "root", Command: []string{"a"}, Run: wire.Run{Restart: "always",
			Ready: &wire.Check{Command: []string{"ready"}, Within: "30s"}, Alive: &wire.Check{Command: []string{"alive"}, Every: "10s", Failures: 3}}})
		h := m.Host()
		if err := h.Processes.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		m.Commands()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var told []string
		var w *watch
		w = newWatch(h, func() {
			for _, h := range w.report() {
				told = append(told, strings.TrimSpace(fmt.Sprintf("%s %s %s", h.State, h.Why, strings.Join(h.Log, "|"))))
			}
		})
		want := func(after time.Duration, lines ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if d := cmp.Diff(lines, slices.Clone(told)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			told = nil
		}
		m.Fail(id, "check", errors.New("not yet"), 5)
		w.set(ctx, []wire.Resource{r})
		want(10*time.Second, "healthy")
		want(time.Hour)
		w.set(ctx, []wire.Resource{r}) // the same again disturbs nothing
		want(time.Hour)

		m.Fail(id, "check", errors.New("no answer"), 2)
		want(time.Hour)
		m.Fail(id, "check", errors.New("no answer"), 3)
		m.SetLog(id, "last words")
		want(time.Minute, "unhealthy no answer last words", "healthy")
		if d := cmp.Diff([]string{"systemctl restart a-main"}, m.Commands()); d != "" {
			t.Error(d)
		}

		m.Fail(id, "check", errors.New("never ready"), 0)
		m.SetRunning(id, host.Running{State: "running", PID: 2, Since: time.Now()})
		want(time.Minute, "starting never ready", "unhealthy never ready last words")
		m.Heal(id)
		want(time.Minute, "healthy")

		m.SetRunning(id, host.Running{State: "backoff", Since: time.Now(), Restarts: 4})
		want(20*time.Second, "crash-looping started 5 times in ten minutes last words")
		m.SetRunning(id, host.Running{State: "stopped"})
		want(20*time.Second, "stopped the process is stopped")
		w.set(ctx, nil)
		want(time.Hour)
		if got := w.report(); len(got) != 0 {
			t.Errorf("health of what is not declared: %+v", got)
		}
	})
}

// DEC-7: an instance is as its worst process, and well without one.
func TestHealthIsTheWorst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := hosttest.New()
		m.Now = time.Now
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		process := func(id string) wire.Resource {
			return resource(id, wire.ProcessSpec{User: "root", Command: []string{"a"}, Run: wire.Run{Restart: "always"}})
		}
		list := []wire.Resource{process("a/process/one"), process("a/process/two"), resource("b/user/b", wire.UserSpec{Name: "b"})}
		for _, r := range list[:2] {
			if err := m.Host().Processes.Do(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
		m.SetRunning("a/process/two", host.Running{State: "stopped"})
		w := newWatch(m.Host(), func() {})
		w.set(ctx, list)
		time.Sleep(time.Minute)
		synctest.Wait()
		got := map[string]wire.HealthState{}
		for _, h := range w.report() {
			got[string(h.Instance)] = h.State
		}
		if d := cmp.Diff(map[string]wire.HealthState{"a": wire.Stopped, "b": wire.Healthy}, got); d != "" {
			t.Error(d)
		}
	})
}
