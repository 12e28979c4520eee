package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

// OP-2: every request has a row in the authorization table, and every row a request.
func TestVerbsAreTheTable(t *testing.T) {
	if d := cmp.Diff(operators.Verbs(), slices.Sorted(maps.Keys(verbs))); d != "" {
		t.Errorf("authorization table (-) and requests (+):\n%s", d)
	}
}

// NODE-6: a restart is no clone, a replay is nothing, two in turn are, and one of them alone is not for long.
func TestRuns(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	var r runs
	step := func(run string, sequence uint64, fresh, clone bool) {
		t.Helper()
		at = at.Add(20 * time.Second)
		if got := r.take(run, sequence, at); got != fresh || r.clone(at) != clone {
			t.Errorf("%s %d: fresh %v, clone %v; want %v, %v", run, sequence, got, r.clone(at), fresh, clone)
		}
	}
	step("a", 1, true, false)
	step("a", 2, true, false)
	step("a", 2, false, false) // replayed
	step("a", 1, false, false)
	step("a", 9, true, false)
	step("b", 1, true, false)  // restarted
	step("a", 9, false, false) // an old one replayed is no second machine
	step("a", 3, false, false)
	step("b", 2, true, false)
	step("a", 10, true, true) // a second machine
	step("b", 3, true, true)
	step("a", 11, true, true)
	for i := range uint64(3) { // b was stopped
		step("a", 12+i, true, true)
	}
	step("a", 15, true, true)
	step("a", 16, true, false)
	for i := range 3 * maxRuns {
		step(fmt.Sprint("r", i), 1, true, false)
	}
	if len(r.last) > maxRuns {
		t.Errorf("%d runs remembered, at most %d", len(r.last), maxRuns)
	}
}

// SAFE-2: a node that keeps changing the version it understands is listened to again later.
func TestVersionTurns(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	var v versionTurns
	for range 2 {
		for i := range maxTurns + 3 {
			if got := v.take(at); got != (i < maxTurns) {
				t.Errorf("turn %d: %v", i, got)
			}
		}
		at = at.Add(turnsPer)
	}
}

// SAFE-2: one operator's requests are bounded, and do not bound another's.
func TestTurns(t *testing.T) {
	turns := newTurns()
	for range maxPerOperator {
		if err := turns.enter("o1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := turns.enter("o1"); appliance.KindOf(err) != appliance.NotReady || appliance.AsError(err).Hint == "" {
		t.Errorf("one too many: %v", err)
	}
	if err := turns.enter("o2"); err != nil {
		t.Error(err)
	}
	turns.leave("o1")
	if err := turns.enter("o1"); err != nil {
		t.Error(err)
	}
	for range maxPerOperator {
		turns.leave("o1")
	}
	turns.leave("o2")
	if len(turns.per) != 0 {
		t.Errorf("left over: %v", turns.per)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range maxRequests {
		if !turns.wait(ctx) {
			t.Fatal("no slot")
		}
	}
	cancel()
	if turns.wait(ctx) {
		t.Error("more slots than there are")
	}
}

// SAFE-2: what one token may ask is bounded, and what is remembered of tokens too.
func TestLimits(t *testing.T) {
	var l limits
	allowed := 0
	for range 10 * triesAtOnce {
		if l.allow("t") {
			allowed++
		}
	}
	if allowed < triesAtOnce || allowed > 2*triesAtOnce {
		t.Errorf("%d tries at once, want about %d", allowed, triesAtOnce)
	}
	for range maxLimits + 10 {
		l.allow(appliance.NewTokenID())
	}
	if len(l.per) > maxLimits {
		t.Errorf("%d tokens remembered, at most %d", len(l.per), maxLimits)
	}
}

// due keeps what is added while it is worked on.
func TestDue(t *testing.T) {
	d := newDue()
	d.add("n1", "n2")
	d.add("n2")
	<-d.wake
	if got := d.take(); len(got) != 2 {
		t.Errorf("due %v", got)
	}
	d.add("n1")
	<-d.wake
	if got := d.take(); len(got) != 1 {
		t.Errorf("due %v", got)
	}
	d.add()
	<-d.wake
	if got := d.take(); len(got) != 0 {
		t.Errorf("due %v", got)
	}
}
