package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

// loop is an agent that runs inside a bubble of time, with no bus: documents are put where the bus would put them.
type loop struct {
	*Agent
	machine *hosttest.Machine
	key     ed25519.PrivateKey
	t       *testing.T
}

func newLoop(t *testing.T, change ...func(*Config)) *loop {
	_, signing, _ := ed25519.GenerateKey(rand.Reader)
	_, identity, _ := ed25519.GenerateKey(rand.Reader)
	machine := hosttest.New()
	machine.Now = time.Now
	cfg := Config{
		Believes: Believes{Mesh: appliance.NewMeshID(), Node: appliance.NewNodeID(), Signing: signing.Public().(ed25519.PublicKey)}, Identity: identity,
		Dir: t.TempDir(), Machine: machine.Host(), Log: slog.New(slog.DiscardHandler),
		Connect: func(ctx context.Context, _ func()) (*bus.Link, error) { <-ctx.Done(); return nil, ctx.Err() },
	}
	for _, f := range change {
		f(&cfg)
	}
	a, err := start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &loop{a, machine, signing, t}
}

// run lets the loop go while f advances the time.
func (l *loop) run(f func()) {
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			l.step(ctx)
		}
	}()
	f()
	synctest.Wait()
	cancel()
	<-done
	l.watch.set(context.Background(), nil)
}

// declare puts a declaration into the queue.
func (l *loop) declare(counter uint64, resources []wire.Resource) {
	l.t.Helper()
	l.declareAll(counter, wire.Content{Resources: resources})
}

func (l *loop) declareAll(counter uint64, content wire.Content) {
	l.t.Helper()
	content.Version = wire.Version
	body, err := wire.Encode(content)
	if err != nil {
		l.t.Fatal(err)
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindDeclaration, Version: wire.Version, Mesh: l.cfg.Mesh, From: string(l.cfg.Mesh), To: string(l.cfg.Node),
		Epoch: 1, Counter: counter, Time: time.Now()}, body, l.key)
	if err != nil {
		l.t.Fatal(err)
	}
	l.verified(wire.KindDeclaration, string(l.cfg.Node), l.declarations)(data)
}

// box is the outbox, once everything has settled.
func (l *loop) box() pending {
	synctest.Wait()
	l.outbox.mu.Lock()
	defer l.outbox.mu.Unlock()
	return l.state.outbox
}

// account is the pending report's, as one line each; warnings are its.
func (l *loop) account() []string {
	if r := l.box().Report; r != nil {
		return lines(r.Outcomes)
	}
	return nil
}

func (l *loop) warns() []wire.Warning {
	if r := l.box().Report; r != nil {
		return r.Warnings
	}
	return nil
}

// carriedOut is the declaration that an alive would name.
func (l *loop) carriedOut() uint64 {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alive.Number.Counter
}

// inTheWay makes the agent's file unwritable until the function is called.
func (l *loop) inTheWay(name string) (away func()) {
	path := filepath.Join(l.cfg.Dir, name+".tmp")
	if err := errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "x"), nil, 0o600)); err != nil {
		l.t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			l.t.Fatal(err)
		}
	}
}

var user = []wire.Resource{resource("a/user/a", wire.UserSpec{Name: "a"})}

// DEC-5: what failed is tried again, after pauses that grow to five minutes, whatever else goes on, and then reported.
func TestRetryWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		var tries []time.Duration
		begun := time.Now()
		l.machine.Hook = func(_ context.Context, step, id string) error {
			if step == "do" {
				tries = append(tries, time.Since(begun))
			}
			return nil
		}
		l.machine.Fail("a/user/a", "do", errors.New("no"), 0)
		l.run(func() {
			l.declare(1, user)
			for range 40 * 4 { // health transitions now and then move no retry
				time.Sleep(15 * time.Second)
				select {
				case l.health <- struct{}{}:
				default:
				}
			}
			if got := l.account(); len(got) != 1 || got[0] != "failed a/user/a do no" {
				t.Errorf("account %q", got)
			}
			l.machine.Heal("a/user/a")
			time.Sleep(7 * time.Minute)
			if got := l.account(); len(got) != 1 || got[0] != "applied a/user/a" {
				t.Errorf("account after it was mended %q", got)
			}
			n := len(tries)
			time.Sleep(time.Hour)
			synctest.Wait()
			if len(tries) != n {
				t.Error("it is tried again although all is well")
			}
		})
		for i := 1; i < len(tries); i++ {
			pause := tries[i] - tries[i-1]
			least := min(time.Second<<(i-1), 5*time.Minute)
			if pause < least || pause > least+least/4+time.Second {
				t.Errorf("pause %d was %s, want %s and up to a quarter more", i, pause, least)
			}
		}
		if len(tries) < 10 {
			t.Errorf("%d tries in 40 minutes", len(tries))
		}
	})
}

// What stands on the machine itself is told when it begins and when it ends, and once.
func TestStandingConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, user)
			synctest.Wait()
			l.machine.SetWarnings(wire.Warning{Code: "c", Severity: "warning", Text: "t"})
			time.Sleep(6 * time.Minute)
			if w := l.warns(); len(w) != 1 || w[0].Code != "c" {
				t.Errorf("warnings %+v", w)
			}
			told := l.box().Sequence
			time.Sleep(20 * time.Minute)
			if n := l.box().Sequence; n != told {
				t.Errorf("told %d times more", n-told)
			}
			l.machine.SetWarnings()
			time.Sleep(6 * time.Minute)
			if w := l.warns(); len(w) != 0 {
				t.Errorf("warnings %+v", w)
			}
		})
	})
}

// DEC-3, DEC-14: a declaration that cannot be stored is not begun, and the node says so once it can say anything.
func TestDeclarationThatCannotBeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, nil)
			synctest.Wait()
			declaration, outbox := l.inTheWay("declaration"), l.inTheWay("outbox.json")
			l.declare(2, user)
			time.Sleep(time.Minute)
			synctest.Wait()
			if c := l.machine.Commands(); len(c) > 0 {
				t.Errorf("begun without being stored: %q", c)
			}
			if n := l.carriedOut(); n != 1 {
				t.Errorf("says that it has carried out %d", n)
			}
			outbox()
			time.Sleep(10 * time.Second)
			if w := l.warns(); len(w) != 1 || w[0].Code != "declaration-refused" {
				t.Errorf("warnings %+v", w)
			}
			declaration()
			l.declare(2, user) // the controller sends it after each alive
			if got := l.account(); len(got) != 1 || got[0] != "applied a/user/a" || len(l.warns()) != 0 {
				t.Errorf("account %q, warnings %+v", got, l.warns())
			}
		})
	})
}

// BUS-13: a report that could not be kept is said later, and a sequence that is not on disk is not used.
func TestReportThatCannotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			away := l.inTheWay("outbox.json")
			l.declare(1, user)
			time.Sleep(20 * time.Second)
			if got := l.account(); got != nil || l.box().Sequence != 0 {
				t.Errorf("pending %q under sequence %d", got, l.box().Sequence)
			}
			away()
			time.Sleep(10 * time.Second)
			if got := l.account(); len(got) != 1 || l.box().Sequence != 1 {
				t.Errorf("pending %q under sequence %d", got, l.box().Sequence)
			}
		})
	})
}

// SAFE-5: an acknowledgement that never comes, as when the broker ends in between, holds up neither this report nor the next.
func TestLostAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		var sent []time.Duration
		begun := time.Now()
		l.outbox.send = func(ctx context.Context, _ string, _ []byte) error {
			if sent = append(sent, time.Since(begun)); len(sent) < 4 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		go l.outbox.run(ctx)
		l.run(func() {
			l.declare(1, user)
			time.Sleep(2 * time.Minute)
		})
		cancel()
		synctest.Wait()
		if len(sent) != 4 || l.state.outbox.Report != nil {
			t.Errorf("sent at %v, pending %v", sent, l.state.outbox.Report)
		}
	})
}

// DEC-3: while the loop is busy, an older declaration takes no newer one's place, and a second one under the same number raises an alarm.
func TestQueueKeepsTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		busy := make(chan struct{})
		l.machine.Hook = func(context.Context, string, string) error { <-busy; return nil }
		l.run(func() {
			l.declare(1, user)
			synctest.Wait()
			second := slices.Concat(user, []wire.Resource{resource("b/user/b", wire.UserSpec{Name: "b"})})
			l.declare(3, second)
			l.declare(2, nil)
			l.declare(1, user)
			l.declare(3, user)
			close(busy)
			if got := l.account(); len(got) != 2 || l.carriedOut() != 3 {
				t.Errorf("account %q of %d", got, l.carriedOut())
			}
			if w := l.warns(); len(w) != 1 || !strings.Contains(w[0].Text, "signed twice") {
				t.Errorf("warnings %+v", w)
			}
		})
	})
}

// NODE-6: who can send rubbish does not make the node say something for each.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, user)
			before := l.box().Sequence
			for range 120 {
				for range 100 {
					l.verified(wire.KindDeclaration, string(l.cfg.Node), l.declarations)([]byte("rubbish"))
				}
				time.Sleep(time.Second)
			}
			if said := l.box().Sequence - before; said < 1 || said > 3 {
				t.Errorf("%d reports in two minutes", said)
			}
		})
	})
}

// members makes memberships.
type members struct {
	*loop
	wire.Membership
}

func newMembers(l *loop) *members {
	return &members{l, wire.Membership{Version: wire.Version, Range: netip.MustParsePrefix("10.64.0.0/16"), Port: 51820, Broker: []string{"192.0.2.1:4222"}}}
}

func (m *members) add(id appliance.NodeID, name appliance.NodeName, hub bool) {
	m.t.Helper()
	keys, err := identity.GenerateNode()
	if err != nil {
		m.t.Fatal(err)
	}
	m.Members = append(m.Members, wire.Member{ID: id, Name: name, Hub: hub, Key: keys.Public().Overlay, Address: netip.MustParseAddr(fmt.Sprintf("10.64.0.%d", len(m.Members)+1))})
}

func (m *members) publish(counter uint64) {
	m.t.Helper()
	body, err := wire.Encode(m.Membership)
	if err != nil {
		m.t.Fatal(err)
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindMembership, Version: wire.Version, Mesh: m.cfg.Mesh, From: string(m.cfg.Mesh), To: wire.Everybody,
		Epoch: 1, Counter: counter, Time: time.Now()}, body, m.key)
	if err != nil {
		m.t.Fatal(err)
	}
	m.verified(wire.KindMembership, wire.Everybody, m.memberships)(data)
	synctest.Wait()
}

// NET-11: an overlay that could not be set is set again, without another membership.
func TestOverlayIsSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		members := newMembers(l)
		add, publish := members.add, members.publish
		add(appliance.NewNodeID(), "hub", true)
		l.run(func() {
			l.declare(1, []wire.Resource{resource("net/overlay/device", wire.OverlaySpec{})})
			time.Sleep(30 * time.Second)
			if got := l.account(); len(got) != 1 || !strings.Contains(got[0], "no membership has arrived yet") {
				t.Errorf("account %q", got)
			}
			add(l.cfg.Node, "me", false)
			publish(1)
			if got := l.account(); len(got) != 1 || got[0] != "unchanged net/overlay/device" {
				t.Errorf("account %q", got)
			}
			add(appliance.NewNodeID(), "other", false)
			l.machine.Fail("overlay", "set", errors.New("device busy"), 3)
			publish(2)
			if n := len(l.machine.Overlay().Hosts); n != 2 {
				t.Errorf("%d hosts although it failed", n)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(l.machine.Overlay().Hosts); n != 3 {
				t.Errorf("%d hosts a minute later", n)
			}
		})
	})
}
