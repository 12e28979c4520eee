package appliancetest_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// app is a module whose process a machine in memory can run.
const app = `{
  "module": "app", "description": "for tests",
  "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}},
  "resources": [
    {"kind": "user", "name": "app"},
    {"kind": "directory", "path": "${dir}/data", "class": "data", "owner": "app", "mode": "0750"},
    {"kind": "file", "path": "${dir}/conf", "owner": "app", "mode": "0640", "content": "VALUE\nlisten ${node:address}:${port:http}\n"},
    {"kind": "process", "name": "web", "user": "app", "command": ["app", "${dir}/conf"], "ready": {"command": ["ready"]}, "alive": {"command": ["alive"]}}
  ]
}`

func register(m *appliancetest.Mesh, value string) {
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(strings.ReplaceAll(app, "VALUE", value))}, nil)
}

func assign(m *appliancetest.Mesh, node appliance.NodeName) {
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "app", Node: node}, nil)
}

// sent are the numbers of the last declarations by name.
func sent(t *testing.T, m *appliancetest.Mesh) map[appliance.NodeName]string {
	t.Helper()
	out := map[appliance.NodeName]string{}
	for _, n := range m.Status().Nodes {
		out[n.Name] = n.Number
	}
	return out
}

// NODE-3, NET-11, DEC-1: nodes join and are current; each derives from the one membership what it is; a push changes only the node it
// touches; what is only recorded is sent by no join, no restart and nothing else; an unchanged digest sends nothing.
func TestMeshFromJoinToPush(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1 := m.AddNode("n1")
	if at := m.Node("n1").Machine; at.Platform != "linux/amd64" || at.Distribution != "debian" || at.Version != "fake" || !appliancetest.Range.Contains(at.Address) {
		t.Errorf("the status says of n1's machine: %+v", at)
	}
	register(m, "one")
	assign(m, "n1")
	if c := n1.Machine.String(); strings.Contains(c, "app") {
		t.Fatalf("recorded only, and yet there:\n%s", c)
	}
	before := sent(t, m)
	n2 := m.AddNode("n2") // DEC-1: carries nothing unapproved
	if s := m.Node("n1"); s.Unpushed == 0 || s.Number != before["n1"] {
		t.Errorf("after a join n1 has declaration %s with %d changes waiting; before it was %s", s.Number, s.Unpushed, before["n1"])
	}
	if c := n1.Machine.String(); strings.Contains(c, "app") {
		t.Errorf("a join sent what was not pushed:\n%s", c)
	}
	before = sent(t, m)
	for _, p := range m.Push().Nodes {
		if p.Sent != (p.Node == "n1") {
			t.Errorf("push to all: sent to %s: %v", p.Node, p.Sent)
		}
	}
	m.Current()
	after := sent(t, m)
	if after["n1"] == before["n1"] || after["n2"] != before["n2"] || after["hub"] != before["hub"] {
		t.Errorf("numbers before %v and after %v a push that concerns n1", before, after)
	}
	if c := n1.Machine.String(); !strings.Contains(c, "systemctl start app-web") {
		t.Errorf("n1 after the push:\n%s", c)
	}
	n1.Machine.Commands()
	for _, p := range m.Push().Nodes {
		if p.Sent {
			t.Errorf("nothing changed, and yet %s was sent declaration %s", p.Node, p.Number)
		}
	}

	for _, verb := range []operators.Verb{operators.PlanShow, operators.PlanPush} { // a slip is not taken for nothing to do
		if err := m.Call(verb, operators.Scope{Only: "ap"}, nil); appliance.KindOf(err) != appliance.NotFound {
			t.Errorf("%s of a module that runs nowhere: %v", verb, err)
		}
	}

	t.Run("membership", func(t *testing.T) {
		m.Wait("everybody knows everybody", func() string {
			for _, n := range []*appliancetest.Node{m.Hub, n1, n2} {
				if len(n.Machine.Overlay().Hosts) != 3 {
					return fmt.Sprintf("%s knows %v", n.Name, n.Machine.Overlay().Hosts)
				}
			}
			return ""
		})
		last, err := m.Store.LatestMembership(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		doc, _, err := membership.Open(last.Envelope, m.ID, n1.Believes().Signing)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []*appliancetest.Node{m.Hub, n1, n2} {
			want, err := membership.Peers(doc, n.ID)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, n.Machine.Overlay(), cmp.Comparer(func(a, b fmt.Stringer) bool { return a.String() == b.String() })); d != "" {
				t.Errorf("overlay of %s (-derived +made):\n%s", n.Name, d)
			}
		}
		if o := n1.Machine.Overlay(); len(o.Peers) != 1 || o.Relay || o.Peers[0].Keepalive == 0 {
			t.Errorf("n1 reaches others through the hub alone: %+v", o)
		}
		if o := m.Hub.Machine.Overlay(); len(o.Peers) != 2 || !o.Relay {
			t.Errorf("the hub turns packets between its peers: %+v", o)
		}
	})

	// SAFE-5: a controller that comes back issues nothing new, and everybody is current.
	t.Run("controller restarted", func(t *testing.T) {
		before := sent(t, m)
		last, err := m.Store.LatestMembership(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.StopController()
		m.StartController()
		m.Current()
		if d := cmp.Diff(before, sent(t, m)); d != "" {
			t.Errorf("declarations after a restart:\n%s", d)
		}
		if again, err := m.Store.LatestMembership(t.Context()); err != nil || again.Number != last.Number {
			t.Errorf("membership %s after a restart, before %s (%v)", again.Number, last.Number, err)
		}
	})

	// DEC-4: an agent that comes back changes nothing.
	t.Run("agents restarted", func(t *testing.T) {
		for _, n := range []*appliancetest.Node{m.Hub, n1, n2} {
			n.Machine.Commands()
			n.Restart()
		}
		m.Current()
		for _, n := range []*appliancetest.Node{m.Hub, n1, n2} {
			if c := n.Machine.Commands(); len(c) > 0 {
				t.Errorf("%s after a restart of its agent: %q", n.Name, c)
			}
		}
	})

	// MOD-10: unassigned, everything goes but the data, which comes back with the assignment.
	t.Run("unassigned and assigned again", func(t *testing.T) {
		m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "app", Node: "n1"}, nil)
		m.Push("n1")
		m.Current()
		if c := n1.Machine.String(); strings.Contains(c, "systemctl") || strings.Contains(c, "conf") || !strings.Contains(c, "app/data") {
			t.Errorf("n1 after unassign:\n%s", c)
		}
		if kept := m.Node("n1").Kept; len(kept) != 1 || !strings.HasSuffix(kept[0].Path, "/app") { // the outermost folder, once
			t.Errorf("kept: %+v", kept)
		}
		assign(m, "n1")
		m.Push("n1")
		m.Current()
		if kept := m.Node("n1").Kept; len(kept) != 0 {
			t.Errorf("kept after it was taken up again: %+v", kept)
		}
	})

	// DEC-5, DEC-7: a failure is the node's, shown with its step; mended, the node retries and reports again by itself.
	t.Run("failure and retry", func(t *testing.T) {
		register(m, "two")
		n1.Machine.Fail("app/file/conf", "do", fmt.Errorf("read-only file system: %s", strings.Repeat("long ", 5000)), 0)
		m.Push()
		m.Wait("the failure is shown", func() string {
			s := m.Node("n1")
			if s.Current && s.Outcome == "failed" && len(s.Failures) > 0 && s.Failures[0].ID == "app/file/conf" {
				return ""
			}
			return fmt.Sprintf("%+v", s)
		})
		if good, bad, _ := m.Status().Settled(); good || len(bad) != 1 {
			t.Errorf("settled well %v, bad %q", good, bad)
		}
		if s := m.Node("n2"); s.Outcome != "clean" {
			t.Errorf("n2: %+v", s)
		}
		n1.Machine.Heal("app/file/conf")
		m.Current()
	})
}

// NET-11, SAFE-5: machines that join at once go together: every one is current, and memberships are fewer than joins.
func TestJoinsGoTogether(t *testing.T) {
	t.Parallel()
	const joiners = 8
	m := appliancetest.New(t)
	first, err := m.Store.LatestMembership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token := m.Token(joiners)
	var names []appliance.NodeName
	var all sync.WaitGroup
	nodes := make([]*appliancetest.Node, joiners)
	for i := range joiners {
		name := appliance.NodeName(fmt.Sprintf("n%d", i))
		names = append(names, name)
		all.Go(func() {
			n, err := m.Join(t.Context(), token, name, newKeys(t))
			if err != nil {
				t.Error(err)
				return
			}
			n.Start()
			nodes[i] = n
		})
	}
	all.Wait()
	m.Current(append(names, "hub")...)
	m.Wait("the hub peers with everybody", func() string {
		if n := len(m.Hub.Machine.Overlay().Peers); n != joiners {
			return fmt.Sprintf("%d peers", n)
		}
		return ""
	})
	last, err := m.Store.LatestMembership(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if issued := last.Number.Counter - first.Number.Counter; issued >= joiners {
		t.Errorf("%d memberships for %d joins", issued, joiners)
	}
	addresses := map[string]appliance.NodeName{}
	for _, n := range nodes {
		if n == nil {
			continue
		}
		a := n.Machine.Overlay().Address.String()
		if other, twice := addresses[a]; twice {
			t.Errorf("%s and %s have address %s", n.Name, other, a)
		}
		addresses[a] = n.Name
	}
}

// UPG-3: an agent that is too old gets only what replaces it, made for its own machine, not the hub's; once it understands more, the real declaration follows.
func TestOlderAgentIsReplaced(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.Enrol("old")
	m.Wait("what it was told at its enrolment is on its way to nobody", func() string {
		if m.Node("old").Number == "" {
			return "no declaration yet"
		}
		return ""
	})
	can := n.Machine.Host().Capabilities()
	newer := can
	can.Wire, can.Architecture = 0, "arm64"
	n.Machine.SetCapabilities(can)
	asked := make(chan wire.Replace, 1)
	n.Become = func(to wire.Replace) error {
		select {
		case asked <- to:
		default:
		}
		return fmt.Errorf("not now")
	}
	n.Start()
	var got wire.Replace
	m.Wait("it is told what to become", func() string {
		select {
		case got = <-asked:
			return ""
		default:
			return "not told"
		}
	})
	want, err := m.Downloads.Replace("arm64")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("told to become (-want +got):\n%s", d)
	}
	if c := n.Machine.String(); c != "" {
		t.Errorf("an old agent did more:\n%s", c)
	}
	n.Machine.SetCapabilities(newer)
	n.Restart()
	m.Current("old")
	if !slices.Contains(strings.Split(n.Machine.String(), "\n"), "wg set mesh listen-port 0") {
		t.Errorf("the newer agent takes no part:\n%s", n.Machine)
	}
}
