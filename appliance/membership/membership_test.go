package membership_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/wire"
)

var (
	now     = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	signing = ed25519.NewKeyFromSeed(make([]byte, 32))
	byValue = cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
)

const (
	hub = appliance.NodeID("naaaaaaaaaaaaaaa")
	box = appliance.NodeID("nbbbbbbbbbbbbbbb")
	pi  = appliance.NodeID("nccccccccccccccc")
)

func overlayKey(b byte) string {
	return base64.StdEncoding.EncodeToString(append([]byte{b}, make([]byte, 31)...))
}

func three() wire.Membership {
	return wire.Membership{Version: wire.Version, Range: netip.MustParsePrefix("10.64.0.0/16"), Port: 51820, Broker: []string{"hub.example.org:4222", "10.64.0.1:4222"},
		Members: []wire.Member{
			{ID: pi, Name: "pi", Address: netip.MustParseAddr("10.64.0.10"), Key: overlayKey(3)},
			{ID: hub, Name: "hub", Address: netip.MustParseAddr("10.64.0.1"), Key: overlayKey(1), Hub: true},
			{ID: box, Name: "box", Address: netip.MustParseAddr("10.64.0.2"), Key: overlayKey(2), Endpoint: "192.0.2.7:41641"},
		}}
}

// NET-11, DEC-10: the same members give the same bytes, in whatever order they come.
func TestSignAndOpen(t *testing.T) {
	m := three()
	m.Revoked = []string{"2", "1", "2"}
	body, err := membership.Body(m)
	if err != nil {
		t.Fatal(err)
	}
	if m.Members[0].Name != "pi" || m.Revoked[0] != "2" {
		t.Error("the caller's lists were changed")
	}
	slices.Reverse(m.Members)
	m.Revoked = []string{"1", "2"}
	if again, err := membership.Body(m); err != nil || !bytes.Equal(body, again) {
		t.Errorf("another order gives other bytes: %v\n%s\n%s", err, body, again)
	}
	mesh, n := appliance.NewMeshID(), appliance.Number{Epoch: 1, Counter: 5}
	data, err := membership.Sign(mesh, n, now, body, signing)
	if err != nil {
		t.Fatal(err)
	}
	got, h, err := membership.Open(data, mesh, signing.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	if h.Number() != n || !h.Time.Equal(now) || h.To != wire.Everybody || len(got.Members) != 3 || got.Members[0].Name != "box" {
		t.Errorf("%+v, %+v", h, got)
	}
	if _, _, err := membership.Open(data, appliance.NewMeshID(), signing.Public().(ed25519.PublicKey)); err == nil || appliance.KindOf(err) != appliance.Denied {
		t.Errorf("of another mesh: %v", err)
	}
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32))
	if _, _, err := membership.Open(data, mesh, other.Public().(ed25519.PublicKey)); err == nil || appliance.KindOf(err) != appliance.Denied {
		t.Errorf("by another key: %v", err)
	}
	to, err := wire.Seal(wire.Header{Kind: wire.KindMembership, Mesh: mesh, From: string(mesh), To: string(box), Epoch: 1, Counter: 5}, body, signing)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := membership.Open(to, mesh, signing.Public().(ed25519.PublicKey)); err == nil {
		t.Error("one for a single node")
	}
}

// SAFE-1, NET-8: what is no mesh is refused, by name.
func TestCheckRefuses(t *testing.T) {
	if err := membership.Check(three()); err != nil {
		t.Fatal(err)
	}
	for says, spoil := range map[string]func(*wire.Membership){
		"no hub":                      func(m *wire.Membership) { m.Members[1].Hub = false },
		"two hubs, pi and hub":        func(m *wire.Membership) { m.Members[0].Hub = true },
		"pi and box share the key":    func(m *wire.Membership) { m.Members[2].Key = m.Members[0].Key },
		"share the address 10.64.0.1": func(m *wire.Membership) { m.Members[2].Address = m.Members[1].Address },
		"share the name":              func(m *wire.Membership) { m.Members[2].Name = "pi" },
		"share the id":                func(m *wire.Membership) { m.Members[2].ID = pi },
		"is outside 10.64.0.0/16":     func(m *wire.Membership) { m.Members[0].Address = netip.MustParseAddr("10.65.0.1") },
		"the overlay key of pi":       func(m *wire.Membership) { m.Members[0].Key = "x" },
		"the id of pi":                func(m *wire.Membership) { m.Members[0].ID = "pi" },
		"does not fit the grammar":    func(m *wire.Membership) { m.Members[0].Name = "pi\n127.0.0.1 bank" },
		"no overlay port":             func(m *wire.Membership) { m.Port = 0 },
		"broker endpoints":            func(m *wire.Membership) { m.Broker = nil },
		"is not host:port":            func(m *wire.Membership) { m.Broker[0] = "hub" },
		"endpoint \"1.2.3.4\"":        func(m *wire.Membership) { m.Members[0].Endpoint = "1.2.3.4" },
		"endpoint \"a b:1\"":          func(m *wire.Membership) { m.Members[0].Endpoint = "a b:1" },
		"not an IPv4 network":         func(m *wire.Membership) { m.Range = netip.MustParsePrefix("fd00::/64") },
		"at most 4000":                func(m *wire.Membership) { m.Members = make([]wire.Member, 4001) },
	} {
		m := three()
		spoil(&m)
		if err := membership.Check(m); err == nil || appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want it to say %s", err, says)
		}
		if _, err := membership.Body(m); err == nil {
			t.Errorf("%s: made a body all the same", says)
		}
		if _, err := membership.Peers(m, hub); err == nil {
			t.Errorf("%s: derived peers all the same", says)
		}
	}
	// a name may look like another member's id
	m := three()
	m.Members[0].Name = appliance.NodeName(box)
	if err := membership.Check(m); err != nil {
		t.Error(err)
	}
}

// NET-4, NET-11
func TestPeers(t *testing.T) {
	hosts := map[appliance.NodeName]netip.Addr{"hub": netip.MustParseAddr("10.64.0.1"), "box": netip.MustParseAddr("10.64.0.2"), "pi": netip.MustParseAddr("10.64.0.10")}
	all := netip.MustParsePrefix("10.64.0.0/16")
	placed := three()
	placed.Members[1].Endpoint = "[2001:db8::1]:7000"
	unplaced := host.OverlayPeer{Key: overlayKey(1), Allowed: []netip.Prefix{all}, Endpoint: "hub.example.org:51820", Keepalive: 25 * time.Second}
	atPlace := unplaced
	atPlace.Endpoint = "[2001:db8::1]:7000"
	for name, c := range map[string]struct {
		m    wire.Membership
		self appliance.NodeID
		want host.OverlayState
	}{
		"hub": {three(), hub, host.OverlayState{Address: netip.MustParsePrefix("10.64.0.1/16"), Port: 51820, Relay: true, Hosts: hosts, Peers: []host.OverlayPeer{
			{Key: overlayKey(2), Allowed: []netip.Prefix{netip.MustParsePrefix("10.64.0.2/32")}, Endpoint: "192.0.2.7:41641"},
			{Key: overlayKey(3), Allowed: []netip.Prefix{netip.MustParsePrefix("10.64.0.10/32")}},
		}}},
		"spoke":             {three(), box, host.OverlayState{Address: netip.MustParsePrefix("10.64.0.2/16"), Hosts: hosts, Peers: []host.OverlayPeer{unplaced}}},
		"spoke, hub placed": {placed, pi, host.OverlayState{Address: netip.MustParsePrefix("10.64.0.10/16"), Hosts: hosts, Peers: []host.OverlayPeer{atPlace}}},
	} {
		got, err := membership.Peers(c.m, c.self)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got, byValue); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, err := membership.Peers(three(), "nzzzzzzzzzzzzzzz"); err == nil || appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("a node that is not in it: %v", err)
	}
}

// NET-1
func TestHostsBlock(t *testing.T) {
	block := membership.HostsBlock(membership.Hosts(three()), membership.Domain)
	want := "# mesh: begin, written by the mesh; changes here are lost\n10.64.0.2 box.internal\n10.64.0.1 hub.internal\n10.64.0.10 pi.internal\n# mesh: end\n"
	if diff := cmp.Diff(want, string(block)); diff != "" {
		t.Error(diff)
	}
	if got := membership.HostsBlock(nil, membership.Domain); got != nil {
		t.Errorf("no hosts give %q", got)
	}
}

// NET-1, GEN-10: the block lies among lines of others that stay as they are, and goes without a trace.
func TestReplaceHosts(t *testing.T) {
	block := string(membership.HostsBlock(membership.Hosts(three()), membership.Domain))
	begin, _, _ := strings.Cut(block, "\n")
	old := begin + "\n10.64.0.9 gone.internal\n# mesh: end\n"
	afterBegin := begin + "; the line above had no end"
	after := strings.Replace(block, begin, afterBegin, 1)
	for name, c := range map[string]struct{ existing, block, want string }{
		"empty file":              {"", block, block},
		"at the end":              {"127.0.0.1 localhost\n", block, "127.0.0.1 localhost\n" + block},
		"no newline at the end":   {"127.0.0.1 localhost", block, "127.0.0.1 localhost\n" + after},
		"and in its place":        {"127.0.0.1 localhost\n" + strings.Replace(old, begin, afterBegin, 1) + "b\n", block, "127.0.0.1 localhost\n" + after + "b\n"},
		"and removed":             {"127.0.0.1 localhost\n" + after, "", "127.0.0.1 localhost"},
		"removed before others":   {"127.0.0.1 localhost\n" + after + "b\n", "", "127.0.0.1 localhost\nb\n"},
		"in its place":            {"a\n" + old + "\t b \r\n\n", block, "a\n" + block + "\t b \r\n\n"},
		"no newline behind it":    {"a\n" + old + "b", block, "a\n" + block + "b"},
		"removed":                 {"a\n" + old + "b\n", "", "a\nb\n"},
		"nothing to remove":       {"a", "", "a"},
		"end without newline":     {"a\n" + strings.TrimSuffix(old, "\n"), block, "a\n" + block},
		"Windows line ends":       {"a\r\n" + strings.ReplaceAll(old, "\n", "\r\n") + "b\r\n", block, "a\r\n" + block + "b\r\n"},
		"two blocks":              {old + "a\n" + old, block, block + "a\n"},
		"cut short":               {"a\n" + begin + "\n10.64.0.9 gone.internal\n10.64", block, "a\n" + block + "10.64"},
		"end lost, others behind": {begin + "\n10.64.0.9 gone.internal\n127.0.0.1 localhost\n192.168.1.1 nas.lan\n", block, block + "127.0.0.1 localhost\n192.168.1.1 nas.lan\n"},
		"end lost before another": {begin + "\n10.64.0.9 gone.internal\nb\n" + old + "c\n", block, block + "b\nc\n"},
		"end alone":               {"a\n# mesh: end\nb\n", block, "a\n# mesh: end\nb\n" + block},
		"a comment like the mark": {begin + " not\n", block, begin + " not\n" + block},
		"bytes that are no text":  {"\xff\xfe\x00\n", block, "\xff\xfe\x00\n" + block},
	} {
		got := membership.ReplaceHosts([]byte(c.existing), []byte(c.block))
		if diff := cmp.Diff(c.want, string(got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if again := membership.ReplaceHosts(got, []byte(c.block)); !bytes.Equal(got, again) {
			t.Errorf("%s: twice gives %q, once %q", name, again, got)
		}
	}
}

// SAFE-2
func FuzzParse(f *testing.F) {
	body, err := membership.Body(three())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"range":"10.64.0.0/16","port":1,"broker":["a:1"],"members":[{"hub":true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := membership.Parse(data)
		if err != nil {
			return
		}
		for _, n := range m.Members {
			state, err := membership.Peers(m, n.ID)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(m.Members) - 1; n.Hub && len(state.Peers) != want || !n.Hub && len(state.Peers) != 1 {
				t.Errorf("%s has %d peers of %d members", n.Name, len(state.Peers), len(m.Members))
			}
		}
		block := membership.HostsBlock(membership.Hosts(m), membership.Domain)
		if bytes.Count(block, []byte("\n")) != len(m.Members)+2 {
			t.Errorf("the block has other lines than its members: %q", block)
		}
	})
}

func FuzzReplaceHosts(f *testing.F) {
	block := membership.HostsBlock(membership.Hosts(three()), membership.Domain)
	f.Add([]byte("127.0.0.1 localhost\n"))
	f.Add(append([]byte("a"), block...))
	f.Fuzz(func(t *testing.T, existing []byte) {
		once := membership.ReplaceHosts(existing, block)
		_, names, _ := bytes.Cut(block, []byte("\n"))
		if !bytes.Contains(once, names) || !bytes.Equal(once, membership.ReplaceHosts(once, block)) {
			t.Errorf("%q gives %q", existing, once)
		}
		if !bytes.Contains(existing, []byte("# mesh: begin")) && !bytes.HasPrefix(once, existing) {
			t.Errorf("a line of others was changed: %q gives %q", existing, once)
		}
		if without := membership.ReplaceHosts(once, nil); !bytes.Contains(existing, []byte("# mesh: begin")) && !bytes.Equal(existing, without) {
			t.Errorf("a block that came and went makes %q of %q", without, existing)
		}
	})
}
