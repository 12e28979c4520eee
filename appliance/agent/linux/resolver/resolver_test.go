package resolver

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/novox/mesh/appliance"
)

var (
	overlay = netip.MustParsePrefix("10.64.0.1/16")
	hosts   = map[appliance.NodeName]netip.Addr{"hub": overlay.Addr(), "n1": netip.MustParseAddr("10.64.0.2"), "six": netip.MustParseAddr("fd00::6")}
)

func question(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, kind) }

// said is an answer in a few words.
func said(a *dns.Msg) string {
	if a == nil {
		return "not ours"
	}
	words := []string{dns.RcodeToString[a.Rcode]}
	for _, r := range a.Answer {
		words = append(words, strings.Fields(r.String())[4])
	}
	return strings.Join(words, " ")
}

// NET-1: every node's name, and what is beneath it, whatever the case; nothing else that is internal.
func TestNames(t *testing.T) {
	n := names{"internal", hosts}
	for _, c := range []struct {
		name string
		kind uint16
		want string
	}{
		{"n1.internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{"N1.Internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{"web.n1.internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{"n1.internal.", dns.TypeAAAA, "NOERROR"},
		{"n1.internal.", dns.TypeMX, "NOERROR"},
		{"six.internal.", dns.TypeAAAA, "NOERROR fd00::6"},
		{"six.internal.", dns.TypeA, "NOERROR"},
		{"internal.", dns.TypeA, "NOERROR"},
		{"n2.internal.", dns.TypeA, "NXDOMAIN"},
		{"a.web.n1.internal.", dns.TypeA, "NXDOMAIN"},
		{"_x.n1.internal.", dns.TypeA, "NXDOMAIN"},
		{".n1.internal.", dns.TypeA, "NXDOMAIN"},
		{"n1.internal.example.", dns.TypeA, "not ours"},
		{"xinternal.", dns.TypeA, "not ours"},
		{".", dns.TypeNS, "not ours"},
	} {
		if got := said(n.answer(question(c.name, c.kind))); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.name, dns.TypeToString[c.kind], got, c.want)
		}
	}
	two := question("n1.internal.", dns.TypeA)
	two.Question = append(two.Question, two.Question[0])
	update := new(dns.Msg).SetUpdate("internal.")
	for what, q := range map[string]*dns.Msg{"two questions": two, "no question": {}, "an update": update, "an answer": new(dns.Msg).SetReply(question("n1.internal.", dns.TypeA))} {
		if got := said(n.answer(q)); got != "REFUSED" {
			t.Errorf("%s: %s", what, got)
		}
	}
}

// SAFE-2: whatever is asked, there is an answer that fits its form, or none of ours.
func FuzzNames(f *testing.F) {
	for _, q := range []*dns.Msg{question("n1.internal.", dns.TypeA), question("web.n1.internal.", dns.TypeANY), new(dns.Msg).SetUpdate("internal.")} {
		data, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		q := new(dns.Msg)
		if q.Unpack(data) != nil {
			return
		}
		if a := (names{"internal", hosts}).answer(q); a != nil {
			if _, err := a.Pack(); err != nil {
				t.Errorf("%v: %v", q, err)
			}
		}
	})
}

// alone runs the test in a process with a network namespace of its own.
func alone(t *testing.T) bool {
	if os.Getuid() != 0 {
		t.Skip("needs network namespaces: run the tests as root")
	}
	if os.Getenv("MESH_TEST_ALONE") != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "MESH_TEST_ALONE=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// machine gives this namespace the overlay's address, and a folder with a file of upstreams.
func machine(t *testing.T, upstreams string) *Resolver {
	t.Helper()
	lo := link(t, "lo")
	address(t, lo, overlay.String())
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte(upstreams), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Resolver{Upstreams: file}
	t.Cleanup(r.Close)
	if err := r.Set(overlay, "internal", hosts); err != nil {
		t.Fatal(err)
	}
	return r
}

func link(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatal(name, err)
	}
	return l
}

func address(t *testing.T, l netlink.Link, cidr string) {
	t.Helper()
	a, err := netlink.ParseAddr(cidr)
	if err == nil {
		err = netlink.AddrAdd(l, a)
	}
	if err != nil {
		t.Fatal(cidr, err)
	}
}

// neighbour makes another machine on a cable, whose end here is near, and which reaches the overlay by way of a gateway; f runs there.
func neighbour(t *testing.T, near, there, gateway string) (inside func(f func())) {
	t.Helper()
	far := "far" + near
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far}); err != nil {
		t.Fatal(err)
	}
	link(t, near)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	other, err := netns.New() // and in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close(); home.Close() })
	enter := func(ns netns.NsHandle) {
		if err := netns.Set(ns); err != nil {
			panic(err) // the thread is nowhere
		}
	}
	enter(home)
	if err := netlink.LinkSetNsFd(link(t, far), int(other)); err != nil {
		t.Fatal(err)
	}
	inside = func(f func()) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		enter(other)
		defer enter(home)
		f()
	}
	inside(func() {
		l := link(t, far)
		address(t, l, there)
		to := &net.IPNet{IP: net.IPv4(10, 64, 0, 0), Mask: net.CIDRMask(16, 32)}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: to, Gw: net.ParseIP(gateway)}); err != nil {
			t.Error(err)
		}
	})
	return inside
}

func ask(network, name string) string {
	a, _, err := (&dns.Client{Net: network, Timeout: time.Second}).Exchange(question(name, dns.TypeA), netip.AddrPortFrom(overlay.Addr(), port).String())
	if err != nil {
		return "silence"
	}
	return said(a)
}

// upstream answers anything with an address, a name that begins with "many" with as many as a message holds, and "slow" never.
func upstream(t *testing.T, at string) (asked func() int) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		n++
		mu.Unlock()
		name := q.Question[0].Name
		a, count := new(dns.Msg).SetReply(q), 1
		switch {
		case strings.HasPrefix(name, "slow"):
			return
		case strings.HasPrefix(name, "many"):
			count = 1000
		}
		for i := range count {
			r, _ := dns.NewRR(fmt.Sprintf("%s 60 IN A 192.0.2.%d", name, 1+i%250))
			a.Answer = append(a.Answer, r)
		}
		if w.RemoteAddr().Network() == "udp" {
			a.Truncate(dns.MinMsgSize)
		}
		w.WriteMsg(a)
	})
	for _, network := range []string{"udp", "tcp"} {
		ready := make(chan struct{})
		s := &dns.Server{Addr: at, Net: network, Handler: handler, NotifyStartedFunc: func() { close(ready) }}
		go s.ListenAndServe()
		select {
		case <-ready:
		case <-time.After(5 * time.Second):
			t.Fatal("no upstream")
		}
		t.Cleanup(func() { s.Shutdown() })
	}
	return func() int { mu.Lock(); defer mu.Unlock(); return n }
}

// NET-1: containers on a bridge and the overlay's peers are answered, whoever else reaches the address is not; what is not the mesh's is
// asked of the machine's own resolvers, and never of itself.
func TestResolver(t *testing.T) {
	if !alone(t) {
		return
	}
	link(t, "lo")
	asked := upstream(t, "127.0.0.53:53")
	r := machine(t, "# ours\nnameserver 10.64.0.1\nnameserver 192.0.2.200\nnameserver 127.0.0.53\n")
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	address(t, link(t, "docker0"), "172.17.0.1/16")
	container := neighbour(t, "port", "172.17.0.2/16", "172.17.0.1")
	if err := netlink.LinkSetMaster(link(t, "port"), bridge); err != nil {
		t.Fatal(err)
	}
	stranger := neighbour(t, "lan", "192.168.7.2/24", "192.168.7.1")
	address(t, link(t, "lan"), "192.168.7.1/24")
	got := map[string]string{}
	for _, network := range []string{"udp", "tcp"} {
		for _, name := range []string{"n1.internal.", "n9.internal.", "example.org."} {
			got[network+" here "+name] = ask(network, name)
			container(func() { got[network+" container "+name] = ask(network, name) })
		}
		stranger(func() { got[network+" stranger"] = ask(network, "n1.internal.") })
	}
	want := map[string]string{"udp stranger": "silence", "tcp stranger": "silence"}
	for _, from := range []string{"udp here ", "udp container ", "tcp here ", "tcp container "} {
		want[from+"n1.internal."], want[from+"n9.internal."], want[from+"example.org."] = "NOERROR 10.64.0.2", "NXDOMAIN", "NOERROR 192.0.2.1"
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := asked(); n != 4 {
		t.Errorf("the upstream was asked %d times, want 4", n)
	}

	// Long answers: cut over UDP, whole over TCP.
	many := func(network string) *dns.Msg {
		a, _, err := (&dns.Client{Net: network}).Exchange(question("many.example.", dns.TypeA), "10.64.0.1:53")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := many("udp"); !a.Truncated || len(a.Answer) > 30 {
		t.Errorf("truncated %v, %d answers", a.Truncated, len(a.Answer))
	}
	if a := many("tcp"); a.Truncated || len(a.Answer) != 1000 {
		t.Errorf("truncated %v, %d answers", a.Truncated, len(a.Answer))
	}

	// Another membership is heard at once, and other addresses take the place of the first.
	if err := r.Set(overlay, "internal", map[appliance.NodeName]netip.Addr{"n1": netip.MustParseAddr("10.64.0.9")}); err != nil {
		t.Fatal(err)
	}
	if got := ask("udp", "n1.internal."); got != "NOERROR 10.64.0.9" {
		t.Error(got)
	}
	r.Close()
	if got := ask("tcp", "n1.internal."); got != "silence" {
		t.Errorf("closed: %s", got)
	}
	if err := r.Set(overlay, "internal", hosts); err != nil {
		t.Fatal(err)
	}
	if got := ask("udp", "n1.internal."); got != "NOERROR 10.64.0.2" {
		t.Errorf("opened again: %s", got)
	}
}

// NET-1: the port being taken is said with a way out, and taken once it is free; who asks too much at once keeps nobody from the names.
func TestResolverBounds(t *testing.T) {
	if !alone(t) {
		return
	}
	link(t, "lo")
	upstream(t, "127.0.0.53:53")
	r := machine(t, "nameserver 127.0.0.53\n")
	r.Close()
	other, err := net.ListenPacket("udp", "10.64.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Set(overlay, "internal", hosts); appliance.KindOf(err) != appliance.Conflict || appliance.AsError(err).Hint == "" {
		t.Errorf("taken: %v", err)
	}
	other.Close()
	if err := r.Set(overlay, "internal", hosts); err != nil {
		t.Fatal(err)
	}

	conn, err := net.Dial("udp", "10.64.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	slow, _ := question("slow.example.", dns.TypeA).Pack()
	before := runtime.NumGoroutine()
	for range 20 * maxQueries {
		conn.Write(slow)
	}
	deadline := time.Now().Add(20 * time.Second)
	for within := time.Now().Add(3 * oneUpstream / 4); runtime.NumGoroutine()-before > 3*maxQueries; { // those that only say no are over at once
		if time.Now().After(within) {
			t.Fatalf("%d goroutines for %d questions", runtime.NumGoroutine()-before, 20*maxQueries)
		}
	}
	for ask("udp", "n1.internal.") != "NOERROR 10.64.0.2" {
		if time.Now().After(deadline) {
			t.Fatal("no answer after a flood")
		}
	}
	if upstreams := (&Resolver{Upstreams: "/nowhere"}).upstreams(overlay.Addr()); upstreams != nil {
		t.Errorf("%v", upstreams)
	}
}
