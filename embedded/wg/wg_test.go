package wg

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const port = 51820

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func prefixes(text ...string) (all []netip.Prefix) {
	for _, t := range text {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// star is a hub at 10.64.0.1, never told where its spokes are, and spokes at 10.64.0.2 and on.
type star struct {
	hub    Config
	spokes []Config
}

func newStar(hubAt ...netip.Addr) star {
	hub := Config{PrivateKey: NewPrivateKey(), Address: netip.MustParsePrefix("10.64.0.1/16"), Port: port, Relay: true}
	s := star{hub: hub}
	address := hub.Address.Addr()
	for _, a := range hubAt {
		address = address.Next()
		spoke := Config{PrivateKey: NewPrivateKey(), Address: netip.PrefixFrom(address, 16), Peers: []Peer{{
			Key: hub.PrivateKey.Public(), Address: prefixes("10.64.0.0/16"), Endpoint: at(a), Keepalive: 25 * time.Second}}}
		s.spokes = append(s.spokes, spoke)
		s.hub.Peers = append(s.hub.Peers, Peer{Key: spoke.PrivateKey.Public(), Address: []netip.Prefix{netip.PrefixFrom(address, 32)}})
	}
	return s
}

// NET-1: the hub answers a peer whose address it was never told within 100 ms.
func TestHubAnswersUntold(t *testing.T) {
	b := newBed(t)
	hub, spoke := b.host("hub"), b.host("spoke")
	hubAt, spokeAt := b.connect(hub, spoke)
	s := newStar(hubAt)
	hub.start(b.options(), s.hub)
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint; got.IsValid() {
		t.Fatalf("the hub knows the spoke at %s before it was heard", got)
	}
	o := b.options()
	within(t, 100*time.Millisecond, func() time.Duration {
		spoke.ask(request{Op: "start", Options: o})
		begin := time.Now()
		spoke.set(s.spokes[0])
		spoke.ping("10.64.0.1")
		took := time.Since(begin)
		spoke.renew()
		forgotten := s.hub
		forgotten.Peers = nil
		hub.set(forgotten)
		hub.set(s.hub)
		return took
	})
	spoke.start(o, s.spokes[0])
	spoke.ping("10.64.0.1")
	hub.ping("10.64.0.2")
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint.Addr(); got != spokeAt {
		t.Errorf("the hub learned %s, want %s", got, spokeAt)
	}
}

// NET-4: spokes reach each other through the device of the hub, whose kernel forwards nothing.
func TestRelay(t *testing.T) {
	b := newBed(t)
	hub, one, two := b.host("hub"), b.host("one"), b.host("two")
	hubOne, _ := b.connect(hub, one)
	hubTwo, _ := b.connect(hub, two)
	s := newStar(hubOne, hubTwo)
	hub.start(b.options(), s.hub)
	one.start(b.options(), s.spokes[0])
	two.start(b.options(), s.spokes[1])
	one.ping("10.64.0.3")
	two.ping("10.64.0.2")
	if hub.sysctl("ipv4/ip_forward") != 0 {
		t.Error("the hub's kernel forwards: the test shows nothing")
	}
	two.ask(request{Op: "listen", From: netip.MustParseAddrPort("10.64.0.3:99")})
	if sent := one.ask(request{Op: "send", At: netip.MustParseAddr("10.64.0.3"), Within: 500 * time.Millisecond}); sent.Number < 1<<16 {
		t.Errorf("a stream through the relay carried %d bytes", sent.Number)
	}
	one.ping("10.64.0.1") // and what is for the hub still reaches it

	// A forged source dies at the hub; the same datagram with the true one arrives.
	to := netip.MustParseAddrPort("10.64.0.3:99")
	one.ask(request{Op: "forge", From: netip.MustParseAddrPort("10.64.0.1:1"), To: to})
	one.ask(request{Op: "forge", From: netip.MustParseAddrPort("10.64.0.77:1"), To: to})
	one.ask(request{Op: "forge", From: netip.MustParseAddrPort("10.64.0.2:1"), To: to})
	eventually(t, 10*time.Second, func() string {
		if n := two.ask(request{Op: "heard"}).Number; n == 0 {
			return "the genuine datagram has not arrived"
		}
		return ""
	})
	if n := two.ask(request{Op: "heard"}).Number; n != 1 { // the forged were sent first, on the same path
		t.Errorf("%d datagrams arrived, want the genuine one only", n)
	}

	// Relayed packets leave room for the hub's own.
	hub.ask(request{Op: "turns"})

	s.hub.Relay = false
	hub.set(s.hub)
	one.mute("10.64.0.3", 300*time.Millisecond)
	one.ping("10.64.0.1")
}

// NET-4: a peer reaches the address that is the device's, nothing else of the machine and nothing behind it, whatever the kernel forwards.
func TestOnlyOwnAddress(t *testing.T) {
	b := newBed(t)
	hub, one, two := b.host("hub"), b.host("one"), b.host("two")
	hubOne, _ := b.connect(hub, one)
	hubTwo, twoAt := b.connect(hub, two)
	s := newStar(hubOne)
	hub.start(b.options(), s.hub)
	s.spokes[0].Peers[0].Address = append(s.spokes[0].Peers[0].Address, netip.PrefixFrom(hubTwo, 32), netip.PrefixFrom(twoAt, 32))
	one.start(b.options(), s.spokes[0])
	one.ping("10.64.0.1")
	b.ip("netns", "exec", hub.ns, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	two.ask(request{Op: "listen", From: netip.AddrPortFrom(twoAt, 99)})
	hub.ask(request{Op: "listen", From: netip.MustParseAddrPort("0.0.0.0:99")})
	for _, to := range []netip.Addr{hubTwo, twoAt} {
		b.ip("-n", one.ns, "route", "add", to.String(), "dev", "wgt0")
		one.ask(request{Op: "forge", From: netip.MustParseAddrPort("10.64.0.2:1"), To: netip.AddrPortFrom(to, 99)})
	}
	one.ask(request{Op: "forge", From: netip.MustParseAddrPort("10.64.0.2:1"), To: netip.MustParseAddrPort("10.64.0.1:99")})
	one.ping("10.64.0.1") // on the same path: what was sent before is through
	if n := hub.ask(request{Op: "heard"}).Number; n != 1 {
		t.Errorf("the hub heard %d datagrams, want only that to the device's address", n)
	}
	if n := two.ask(request{Op: "heard"}).Number; n != 0 {
		t.Errorf("%d datagrams went through the hub to a machine behind it", n)
	}
}

// DEC-8: interface, address and route survive the process; the next one is back fast.
func TestSpokeKilled(t *testing.T) {
	b := newBed(t)
	hub, spoke := b.host("hub"), b.host("spoke")
	hubAt, _ := b.connect(hub, spoke)
	s := newStar(hubAt)
	o := b.options()
	hub.start(b.options(), s.hub)
	spoke.start(o, s.spokes[0])
	spoke.ping("10.64.0.1")
	before := b.ip("-n", spoke.ns, "-o", "addr", "show", "dev", "wgt0", "scope", "global")
	if !strings.Contains(before, "10.64.0.2/16") {
		t.Fatalf("no address on the interface: %s", before)
	}
	spoke.kill()
	if after := b.ip("-n", spoke.ns, "-o", "addr", "show", "dev", "wgt0", "scope", "global"); after != before {
		t.Error(cmp.Diff(before, after))
	}
	if routes := b.ip("-n", spoke.ns, "route"); !strings.Contains(routes, "10.64.0.0/16 dev wgt0") {
		t.Errorf("the route went with the process: %s", routes)
	}
	within(t, 250*time.Millisecond, func() time.Duration {
		begin := time.Now()
		spoke.renew()
		spoke.start(o, s.spokes[0])
		spoke.ping("10.64.0.1")
		return time.Since(begin)
	})
	spoke.ask(request{Op: "close"})
	if after := b.ip("-n", spoke.ns, "-o", "addr", "show", "dev", "wgt0", "scope", "global"); after != before {
		t.Error("Close took the address away", cmp.Diff(before, after))
	}
}

// NET-1: after a kill of the hub an idle spoke behind NAT is reachable within 3 s.
func TestHubKilled(t *testing.T) {
	b := newBed(t)
	hub, router, spoke := b.host("hub"), b.host("router"), b.host("spoke")
	hubAt, routerOut := b.connect(hub, router)
	routerIn, _ := b.connect(router, spoke)
	router.ask(request{Op: "nat", From: at(routerIn), To: at(hubAt)})
	s := newStar(routerIn) // what the spoke takes for the hub is the router
	o := b.options()
	hub.start(o, s.hub)
	spoke.start(b.options(), s.spokes[0])
	spoke.ping("10.64.0.1")
	eventually(t, 10*time.Second, func() string {
		if data, err := os.ReadFile(o.LearnedFile); err != nil || !strings.Contains(string(data), routerOut.String()) {
			return "the spoke's address is not on disk"
		}
		return ""
	})
	within(t, 3*time.Second, func() time.Duration {
		hub.kill()
		begin := time.Now()
		hub.renew()
		hub.start(o, s.hub)
		hub.ping("10.64.0.2")
		return time.Since(begin)
	})

	// Without the file the hub knows nobody; the spoke's own handshake brings both together.
	within(t, 3*time.Second, func() time.Duration {
		hub.renew()
		hub.start(Options{Interface: o.Interface}, s.hub)
		begin := time.Now()
		spoke.ask(request{Op: "handshake"})
		hub.ping("10.64.0.2")
		return time.Since(begin)
	})
}

// A peer is followed to where its packets come from.
func TestRoaming(t *testing.T) {
	b := newBed(t)
	hub, spoke := b.host("hub"), b.host("spoke")
	hubAt, spokeAt := b.connect(hub, spoke)
	s := newStar(hubAt)
	s.spokes[0].Port = port
	s.hub.Peers[0].Endpoint = at(spokeAt)
	hub.start(b.options(), s.hub)
	spoke.start(b.options(), s.spokes[0])
	spoke.ping("10.64.0.1")
	session := spoke.peer(s.spokes[0].Peers[0].Key).LastHandshake

	moved := netip.MustParseAddr("192.0.1.77")
	b.ip("-n", spoke.ns, "addr", "add", moved.String()+"/24", "dev", "cable1b")
	b.ip("-n", spoke.ns, "addr", "del", spokeAt.String()+"/24", "dev", "cable1b")
	b.ip("-n", spoke.ns, "addr", "replace", moved.String()+"/24", "dev", "cable1b") // the first may have gone as secondary
	spoke.ping("10.64.0.1")
	hub.ping("10.64.0.2")
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint.Addr(); got != moved {
		t.Errorf("the hub has the spoke at %s, want %s", got, moved)
	}
	if now := spoke.peer(s.spokes[0].Peers[0].Key).LastHandshake; !now.Equal(session) {
		t.Errorf("moving took a new handshake")
	}

	// What was told does not win over what was heard later, unless something new is told.
	hub.set(s.hub)
	hub.ping("10.64.0.2")
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint.Addr(); got != moved {
		t.Errorf("setting the same again put the spoke to %s, want %s", got, moved)
	}
	told := s.hub
	told.Peers = []Peer{s.hub.Peers[0]}
	told.Peers[0].Endpoint = netip.MustParseAddrPort("192.0.1.5:5")
	hub.set(told)
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint; got != told.Peers[0].Endpoint {
		t.Errorf("the hub has the spoke at %s, want what it was told last", got)
	}
	hub.mute("10.64.0.2", 200*time.Millisecond) // nobody is there
	spoke.ping("10.64.0.1")                     // and hears it again
	if got := hub.peer(s.hub.Peers[0].Key).Endpoint.Addr(); got != moved {
		t.Errorf("the hub has the spoke at %s, want %s", got, moved)
	}
}

// A hub with several addresses answers from the one that was called: a NAT in between lets nothing else through.
func TestSeveralAddresses(t *testing.T) {
	b := newBed(t)
	hub, router, spoke := b.host("hub"), b.host("router"), b.host("spoke")
	b.connect(hub, router)
	second := netip.MustParseAddr("192.0.1.99")
	b.ip("-n", hub.ns, "addr", "add", second.String()+"/24", "dev", "cable1a")
	routerIn, _ := b.connect(router, spoke)
	router.ask(request{Op: "nat", From: at(routerIn), To: at(second)})
	s := newStar(routerIn)
	hub.start(b.options(), s.hub)
	spoke.start(b.options(), s.spokes[0])
	spoke.ping("10.64.0.1")
}

// Both families, beneath the tunnel and inside.
func TestIPv6(t *testing.T) {
	b := newBed(t)
	hub, spoke := b.host("hub"), b.host("spoke")
	b.connect(hub, spoke)
	b.ip("-n", hub.ns, "addr", "add", "fd01::1/64", "dev", "cable1a", "nodad")
	b.ip("-n", hub.ns, "addr", "add", "fd01::2/64", "dev", "cable1a", "nodad")
	b.ip("-n", spoke.ns, "addr", "add", "fd01::9/64", "dev", "cable1b", "nodad")
	for _, called := range []string{"fd01::1", "fd01::2"} {
		s := newStar(netip.MustParseAddr(called))
		s.hub.Address, s.spokes[0].Address = netip.MustParsePrefix("fd64::1/64"), netip.MustParsePrefix("fd64::2/64")
		s.hub.Peers[0].Address, s.spokes[0].Peers[0].Address = prefixes("fd64::2/128"), prefixes("fd64::/64")
		hub.ask(request{Op: "start", Options: Options{Interface: "wgt0"}})
		hub.set(s.hub)
		spoke.ask(request{Op: "start", Options: Options{Interface: "wgt0"}})
		spoke.set(s.spokes[0])
		if called == "fd01::1" {
			hub.ask(request{Op: "serve", At: netip.MustParseAddr("fd64::1")})
		}
		spoke.ping("fd64::1")
		spoke.ask(request{Op: "send", At: netip.MustParseAddr("fd64::1"), Within: 100 * time.Millisecond})
		if got := spoke.peer(s.hub.PrivateKey.Public()).Endpoint.Addr().String(); got != called {
			t.Errorf("the hub answers %s from %s", called, got)
		}
		hub.ask(request{Op: "close"})
		spoke.ask(request{Op: "close"})
	}
}

// The same again changes nothing; another configuration changes only what differs.
func TestSet(t *testing.T) {
	b := newBed(t)
	hub, one, two := b.host("hub"), b.host("one"), b.host("two")
	hubOne, _ := b.connect(hub, one)
	hubTwo, _ := b.connect(hub, two)
	s := newStar(hubOne, hubTwo)
	hub.start(b.options(), s.hub)
	one.start(b.options(), s.spokes[0])
	two.start(b.options(), s.spokes[1])
	one.ping("10.64.0.1")
	two.ping("10.64.0.1")
	first, second := s.hub.Peers[0].Key, s.hub.Peers[1].Key
	session, link := hub.peer(first), b.ip("-n", hub.ns, "addr", "show", "dev", "wgt0")

	hub.set(s.hub)
	if diff := cmp.Diff(link, b.ip("-n", hub.ns, "addr", "show", "dev", "wgt0")); diff != "" {
		t.Errorf("setting the same again changed the interface:\n%s", diff)
	}
	if again := hub.peer(first); !again.LastHandshake.Equal(session.LastHandshake) || again.Endpoint != session.Endpoint {
		t.Errorf("setting the same again changed the peer from %v to %v", session, again)
	}

	// SAFE-1: what is refused changes nothing.
	wrong := s.hub
	wrong.Peers = append([]Peer{{Key: NewPrivateKey().Public(), Address: prefixes("10.64.0.3/32")}}, s.hub.Peers...)
	if _, err := hub.try(request{Op: "set", Config: wrong}); err == nil || !strings.Contains(err.Error(), "10.64.0.3/32 belongs to peer") {
		t.Errorf("two peers with one address: %v", err)
	}
	taken := s.hub
	taken.Port = 9999
	hub.ask(request{Op: "listen", From: netip.MustParseAddrPort("0.0.0.0:9999")})
	if _, err := hub.try(request{Op: "set", Config: taken}); err == nil || !strings.Contains(err.Error(), "UDP port 9999") {
		t.Errorf("a port in use: %v", err)
	}
	one.ping("10.64.0.1")

	// The removed peer is cut, the other does not notice.
	less := s.hub
	less.Peers = s.hub.Peers[:1]
	hub.set(less)
	two.mute("10.64.0.1", 300*time.Millisecond)
	one.ping("10.64.0.1")
	if again := hub.peer(first); !again.LastHandshake.Equal(session.LastHandshake) {
		t.Error("removing another peer took a new handshake")
	}

	// And comes back, with another address.
	more := s.hub
	more.Peers = []Peer{s.hub.Peers[0], {Key: second, Address: prefixes("10.64.0.9/32")}}
	hub.set(more)
	s.spokes[1].Address = netip.MustParsePrefix("10.64.0.9/16")
	two.set(s.spokes[1])
	two.ask(request{Op: "handshake"})
	two.ping("10.64.0.1")
	if addresses := b.ip("-n", two.ns, "-o", "addr", "show", "dev", "wgt0"); strings.Contains(addresses, "10.64.0.3") {
		t.Errorf("the old address is still there: %s", addresses)
	}
}

func TestManyPeers(t *testing.T) {
	b := newBed(t)
	hub := b.host("hub")
	before := hub.ask(request{Op: "memory"}).Number
	c := newStar().hub
	hub.ask(request{Op: "start", Options: b.options()})
	hub.set(c)
	idle := hub.ask(request{Op: "memory"}).Number
	for i := range 500 {
		c.Peers = append(c.Peers, Peer{Key: NewPrivateKey().Public(),
			Address: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(1 + i/250), byte(i % 250)}), 32)}})
	}
	first := hub.ask(request{Op: "set", Config: c}).Took
	again := hub.ask(request{Op: "set", Config: c}).Took
	full := hub.ask(request{Op: "memory"}).Number
	if n := len(hub.ask(request{Op: "state"}).States); n != 500 {
		t.Errorf("%d peers, want 500", n)
	}
	t.Logf("500 peers: set %s, again %s; PSS %d kB, with an idle device %d kB, with 500 peers %d kB", first, again, before, idle, full)
	if first > 2*time.Second || again > 500*time.Millisecond {
		t.Errorf("setting 500 peers took %s, and again %s", first, again)
	}
	if !raced && idle-before > 20<<10 {
		t.Errorf("an idle device takes %d kB", idle-before)
	}
}

// An interface that is something else, or somebody's, is refused by name; one that vanishes stops the device.
func TestInterface(t *testing.T) {
	b := newBed(t)
	machine, other := b.host("host"), b.host("other")
	b.connect(machine, other)
	refused := func(h *host, name string, want ...string) {
		t.Helper()
		_, err := h.try(request{Op: "start", Options: Options{Interface: name}})
		for _, w := range append(want, name) {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("start on %s: %v, want it to say %q", name, err, w)
			}
		}
	}
	refused(machine, "cable1a", "veth", "choose another name")
	refused(machine, "wg%d", "not a name")
	b.ip("-n", machine.ns, "tuntap", "add", "tap0", "mode", "tap")
	refused(machine, "tap0", "choose another name")

	machine.ask(request{Op: "start", Options: Options{Interface: "wgt0"}})
	first := machine.process
	machine.process = machine.spawn()
	refused(machine, "wgt0", "another live process holds it")
	machine.kill()
	machine.process = first

	machine.set(newStar().hub)
	b.ip("-n", machine.ns, "link", "del", "wgt0")
	if _, err := machine.try(request{Op: "wait", Within: 5 * time.Second}); err == nil || !strings.Contains(err.Error(), "its interface was deleted") {
		t.Errorf("after the interface was deleted: %v", err)
	}
	machine.ask(request{Op: "start", Options: Options{Interface: "wgt0"}})

	// It fits into the link that leads outside.
	b.ip("-n", machine.ns, "link", "set", "cable1a", "mtu", "1400")
	b.ip("-n", machine.ns, "route", "add", "default", "dev", "cable1a")
	machine.set(newStar().hub)
	if link := b.ip("-n", machine.ns, "link", "show", "wgt0"); !strings.Contains(link, "mtu 1320 ") {
		t.Errorf("the MTU is not 1320: %s", link)
	}

	machine.ask(request{Op: "close"})
	if _, err := machine.try(request{Op: "set", Config: newStar().hub}); err == nil || !strings.Contains(err.Error(), "device is closed") {
		t.Errorf("set on a closed device: %v", err)
	}
	for range 2 {
		machine.ask(request{Op: "remove", Options: Options{Interface: "wgt0"}})
	}
	if links := b.ip("-n", machine.ns, "link"); strings.Contains(links, "wgt0") || !strings.Contains(links, "cable1a") {
		t.Errorf("after the removal: %s", links)
	}
	if _, err := machine.try(request{Op: "remove", Options: Options{Interface: "cable1a"}}); err == nil || !strings.Contains(err.Error(), "veth") {
		t.Errorf("remove of a foreign interface: %v", err)
	}
}

// raced is set when the race detector is on: it costs a multiple in time and memory.
var raced bool

// within wants a limit held; the machine may be busy with other things, so one of five tries is enough.
func within(t testing.TB, limit time.Duration, try func() time.Duration) {
	t.Helper()
	if raced {
		limit *= 10
	}
	var took []time.Duration
	for range 5 {
		d := try().Round(time.Millisecond / 10)
		if took = append(took, d); d <= limit {
			t.Logf("took %v, limit %s", took, limit)
			return
		}
	}
	t.Errorf("took %v, limit %s", took, limit)
}

// eventually asks until there is no reason left.
func eventually(t testing.TB, within time.Duration, reason func() string) {
	t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		why := reason()
		if why == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s: %s", within, why)
		}
	}
}
