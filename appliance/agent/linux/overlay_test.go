package linux

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/identity"
)

// alone runs the test in a process with a network namespace of its own.
func alone(t *testing.T) bool {
	if os.Getuid() != 0 {
		t.Skip("needs a network namespace: run the tests as root")
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

// NET-1, NET-11: the device is what it is told, twice is once, and it goes without a trace.
func TestOverlay(t *testing.T) {
	if !alone(t) {
		return
	}
	m, in := machine(t)
	keys, err := identity.GenerateNode()
	if err != nil || keys.Save(in.NodeKeys()) != nil {
		t.Fatal("keys", err)
	}
	other, _ := identity.GenerateNode()
	peer := other.Public().Overlay
	hosts := in.Dir + "/hosts"
	const own = "127.0.0.1 localhost\n# without end"
	os.WriteFile(hosts, []byte(own), 0o644)
	inode := func() string { out, _ := exec.Command("stat", "-c", "%i", hosts).Output(); return string(out) }
	file := inode()

	if s, err := m.Overlay.State(t.Context()); s != nil || err != nil {
		t.Errorf("before: %v, %v", s, err)
	}
	want := host.OverlayState{Address: netip.MustParsePrefix("10.64.0.1/16"), Relay: true,
		Peers: []host.OverlayPeer{{Key: peer, Allowed: []netip.Prefix{netip.MustParsePrefix("10.64.0.2/32")}, Endpoint: "127.0.0.1:5"}},
		Hosts: map[appliance.NodeName]netip.Addr{"hub": netip.MustParseAddr("10.64.0.1"), "n1": netip.MustParseAddr("10.64.0.2")}}
	for range 2 {
		if err := m.Overlay.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	out, _ := exec.Command("ip", "-brief", "address", "show", "dev", InterfaceName(testMesh)).Output()
	if !strings.Contains(string(out), "10.64.0.1/16") {
		t.Errorf("%s", out)
	}
	got, _ := os.ReadFile(hosts)
	if !bytes.HasPrefix(got, []byte(own)) || !bytes.Contains(got, []byte("\n10.64.0.2 n1.internal\n")) || bytes.Count(got, []byte("internal")) != 2 {
		t.Errorf("%s", got)
	}
	if inode() != file {
		t.Error("hosts file replaced, want it written in place")
	}
	s, err := m.Overlay.State(t.Context())
	if d := cmp.Diff([]host.OverlayPeerState{{Key: peer, Endpoint: "127.0.0.1:5"}}, s); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	m.Overlay.Handshake()

	// Somebody deletes the interface.
	exec.Command("ip", "link", "delete", InterfaceName(testMesh)).Run()
	await(t, func() string {
		if _, err := m.Overlay.State(t.Context()); err == nil {
			return "the device has not noticed"
		}
		return ""
	})
	if err := m.Overlay.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}

	// The next agent finds it.
	if err := m.Overlay.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "-brief", "address", "show", "dev", InterfaceName(testMesh)).Output(); err != nil || !strings.Contains(string(out), "10.64.0.1/16") {
		t.Errorf("after close: %v %s", err, out)
	}
	want.Peers = nil
	if err := m.Overlay.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if s, err := m.Overlay.State(t.Context()); s == nil || len(s) != 0 || err != nil {
		t.Errorf("alone: %v, %v", s, err)
	}

	for range 2 {
		if err := m.Overlay.Set(t.Context(), host.OverlayState{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := exec.Command("ip", "link", "show", InterfaceName(testMesh)).Run(); err == nil {
		t.Error("interface is still there")
	}
	if got, _ := os.ReadFile(hosts); strings.TrimSuffix(string(got), "\n") != own {
		t.Errorf("%q", got)
	}
}

// An endpoint that cannot be resolved is said, and keeps nobody else from being reached.
func TestOverlayUnresolved(t *testing.T) {
	if !alone(t) {
		return
	}
	m, in := machine(t)
	keys, _ := identity.GenerateNode()
	keys.Save(in.NodeKeys())
	a, _ := identity.GenerateNode()
	b, _ := identity.GenerateNode()
	err := m.Overlay.Set(t.Context(), host.OverlayState{Address: netip.MustParsePrefix("10.64.0.1/16"), Peers: []host.OverlayPeer{
		{Key: a.Public().Overlay, Endpoint: "no-such-host.invalid:1"}, {Key: b.Public().Overlay, Endpoint: "localhost:5"}}})
	if err == nil || !strings.Contains(err.Error(), "no-such-host.invalid:1") {
		t.Error(err)
	}
	s, err := m.Overlay.State(t.Context())
	if err != nil || len(s) != 2 {
		t.Fatal(s, err)
	}
	for _, p := range s {
		if (p.Key == b.Public().Overlay) != (p.Endpoint == "127.0.0.1:5") {
			t.Errorf("%+v", p)
		}
	}
	if err := m.Overlay.Set(t.Context(), host.OverlayState{}); err != nil {
		t.Error(err)
	}
}

// NET-1: the resolver comes and goes with the overlay; its port being taken is a warning, and ends when it is free.
func TestOverlayNames(t *testing.T) {
	if !alone(t) {
		return
	}
	m, in := machine(t)
	keys, _ := identity.GenerateNode()
	keys.Save(in.NodeKeys())
	exec.Command("ip", "link", "set", "lo", "up").Run()
	taken, err := net.ListenPacket("udp", ":53")
	if err != nil {
		t.Fatal(err)
	}
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, "10.64.0.1:53")
	}}
	want := host.OverlayState{Address: netip.MustParsePrefix("10.64.0.1/16"), Hosts: map[appliance.NodeName]netip.Addr{"n1": netip.MustParseAddr("10.64.0.2")}}
	if err := m.Overlay.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if w := m.Warnings(); len(w) != 1 || w[0].Code != "names-in-containers" || w[0].Remedy == "" || !strings.Contains(w[0].Text, "10.64.0.1:53") {
		t.Errorf("port taken: %+v", w)
	}
	taken.Close()
	if err := m.Overlay.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if w := m.Warnings(); len(w) != 0 {
		t.Errorf("port free: %+v", w)
	}
	if got, err := resolver.LookupHost(t.Context(), "n1.internal"); err != nil || !slices.Equal(got, []string{"10.64.0.2"}) {
		t.Errorf("%v, %v", got, err)
	}
	if err := m.Overlay.Set(t.Context(), host.OverlayState{}); err != nil {
		t.Fatal(err)
	}
	if got, err := resolver.LookupHost(t.Context(), "n1.internal"); err == nil {
		t.Errorf("after the overlay went down: %v", got)
	}
}
