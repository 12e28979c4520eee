package appliancetest_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// UPG-3, DEC-1: a node for which no declaration can be made is named, and keeps neither others from theirs nor the controller from starting.
func TestOneNodesFailureStaysItsOwn(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	poor := m.Enrol("poor")
	can := poor.Machine.Host().Capabilities()
	can.Kinds = []wire.ResourceKind{wire.User, wire.Overlay, wire.Directory}
	poor.Machine.SetCapabilities(can)
	poor.Start()
	m.Current("poor")
	rich := m.AddNode("rich")
	register(m, "one")
	assign(m, "poor")
	assign(m, "rich")
	settled := func() string {
		for _, n := range must(m.Store.Nodes(t.Context()))(t) {
			if n.Name == "poor" && len(n.Capabilities.Kinds) != 3 {
				return "its kinds are not known"
			}
		}
		return ""
	}
	m.Wait("its alive is recorded", settled)
	err := m.Call(operators.PlanPush, operators.Scope{}, nil)
	if err == nil || !strings.Contains(err.Error(), "poor") || strings.Contains(err.Error(), "rich") || !strings.Contains(err.Error(), "app/file/conf") {
		t.Errorf("push: %v, want the node and the resource named", err)
	}
	m.Current("rich", "hub")
	if c := rich.Machine.String(); !strings.Contains(c, "systemctl start app-web") {
		t.Errorf("rich has:\n%s", c)
	}
	if c := poor.Machine.String(); strings.Contains(c, "app") {
		t.Errorf("poor has:\n%s", c)
	}
	if s := m.Node("poor"); s.Unpushed == 0 || !s.Current {
		t.Errorf("what could not be sent was approved: %+v", s)
	}
	m.StopController()
	m.StartController()
	m.AddNode("another")
}

// BUS-4, SAFE-5: users that could not be put in force are, without anybody asking again.
func TestUsersAreComposedAgain(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	var broken atomic.Bool
	m.StopController()
	m.SetUsers = func(file []byte) error {
		if broken.Load() {
			return errors.New("no space left on device")
		}
		return m.Broker.SetUsers(file)
	}
	m.StartController()
	broken.Store(true)
	token := m.Token(2)
	tried := m.Log.Count("no space left on device")
	m.Wait("it is tried again", func() string { return count(min(m.Log.Count("no space left on device")-tried, 1), 1) })
	broken.Store(false)
	n := must(m.Join(t.Context(), token, "n1", newKeys(t)))(t) // its bus user comes when it comes
	broken.Store(true)
	second := must(m.Join(t.Context(), token, "n2", newKeys(t)))(t) // the answer waits for no users file
	m.Wait("its user is tried for", func() string { return count(min(m.Log.Count("compose, trying again", string(second.ID)), 1), 1) })
	second.Start()
	broken.Store(false)
	n.Start()
	m.Current("n1", "n2")
}

// SAFE-5: a declaration whose recording came through although the controller was told otherwise is sent all the same.
func TestRecordedAndNotSent(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	register(m, "one")
	assign(m, "n1")
	ctx := t.Context()
	plans := must(resolve.Resolve(must(m.Store.Intent(ctx))(t)))(t)
	if err := m.Store.ApprovePlans(ctx, store.By{Who: "test", At: time.Now()}, map[appliance.NodeID]resolve.Plan{n.ID: plans[n.ID]}); err != nil {
		t.Fatal(err)
	}
	content := must(render.Render(plans[n.ID], must(m.Store.Facts(ctx))(t)))(t)
	body, digest := render.Bytes(content)
	number, issued, err := m.Store.IssueDeclaration(ctx, n.ID, digest, wire.Version, func(number appliance.Number) ([]byte, error) {
		return wire.Seal(wire.Header{Kind: wire.KindDeclaration, Version: wire.Version, Mesh: m.ID, From: string(m.ID), To: string(n.ID),
			Epoch: number.Epoch, Counter: number.Counter, Time: time.Now()}, body, m.Keys.Signing)
	})
	if err != nil || !issued {
		t.Fatal(issued, err)
	}
	for _, p := range m.Push().Nodes {
		if p.Node == "n1" && (p.Number != number || !p.Sent) {
			t.Errorf("pushed %+v, recorded is %s", p, number)
		}
	}
	m.Current("n1")
	for _, p := range m.Push().Nodes {
		if p.Sent {
			t.Errorf("sent again: %+v", p)
		}
	}
}

// BUS-12, GEN-8, SAFE-5: with the store away nodes stay connected, and what they say waits and is recorded afterwards.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	register(m, "one")
	assign(m, "n1")
	m.Push()
	m.Current()
	said := sequence(t, n)
	m.Database.Away(t)
	n.Machine.SetRunning("app/process/web", host.Running{State: "stopped"})
	m.Wait("the node reports", func() string { return count(min(int(sequence(t, n)-said), 1), 1) })
	m.Wait("the controller holds it", func() string {
		if m.Bus().LetGo != 0 {
			t.Fatal("a report was let go")
		}
		if !strings.Contains(m.Log.String(), "reach") {
			return "it has not noticed"
		}
		return ""
	})
	m.Database.Back(t)
	m.Wait("the report is recorded", func() string {
		var s operators.Status
		if err := m.Call(operators.StatusShow, struct{}{}, &s); err != nil {
			return err.Error()
		}
		for _, node := range s.Nodes {
			if node.Name == "n1" && node.Health == wire.Stopped {
				return ""
			}
		}
		return fmt.Sprint(s.Nodes)
	})
	if dead := m.DeadLetters(); len(dead) > 0 {
		t.Errorf("set aside: %+v", dead)
	}
}
