package overlay_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/overlay"
)

func routes(texts ...string) []overlay.Route {
	var all []overlay.Route
	for _, text := range texts {
		prefix, name, _ := strings.Cut(text, " ")
		all = append(all, overlay.Route{Prefix: netip.MustParsePrefix(prefix), Interface: name})
	}
	return all
}

// NET-2: chosen to overlap nothing on the hub.
func TestChooseRange(t *testing.T) {
	for _, c := range []struct {
		routes []overlay.Route
		want   string
	}{
		{nil, "10.64.0.0/16"},
		{routes("0.0.0.0/0 eth0", "192.168.1.0/24 eth0"), "10.64.0.0/16"},
		{routes("10.64.3.0/24 eth0"), "10.65.0.0/16"},
		{routes("10.64.0.0/10 eth0"), "10.128.0.0/16"},
		{routes("10.64.0.0/10 eth0", "10.128.0.0/9 eth0"), "10.63.0.0/16"},
		{routes("10.0.0.0/8 tun0", "172.17.0.0/16 docker0"), "172.31.0.0/16"},
		{routes("10.64.0.1/32 lo"), "10.65.0.0/16"},
		{routes("0.0.0.0/1 tun0", "128.0.0.0/1 tun0"), "10.64.0.0/16"},
		{routes("fd00::/8 eth0", "::/0 eth0"), "10.64.0.0/16"},
	} {
		got, err := overlay.ChooseRange(nil, c.routes)
		if err != nil || got.String() != c.want {
			t.Errorf("%v: %v, %v, want %s", c.routes, got, err, c.want)
			continue
		}
		if err := overlay.Overlaps(got, c.routes); err != nil {
			t.Errorf("%v: the chosen range overlaps: %v", c.routes, err)
		}
	}
	_, err := overlay.ChooseRange(nil, routes("10.0.0.0/8 corp0", "172.16.0.0/12 corp0"))
	if !appliance.IsReason(err, overlay.Clash) || !strings.Contains(err.Error(), "10.0.0.0/8 on corp0") || appliance.AsError(err).Hint == "" {
		t.Errorf("all taken: %v", err)
	}
	one := []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24")}
	if got, err := overlay.ChooseRange(one, nil); err != nil || got != one[0] {
		t.Errorf("%v, %v", got, err)
	}
	for _, candidate := range overlay.Candidates() {
		if err := overlay.Check(candidate); err != nil {
			t.Error(err)
		}
	}
}

// NET-2: checked on each joining node, naming the route; not its own interface's, nor a default.
func TestOverlaps(t *testing.T) {
	r := overlay.Default
	for _, c := range []struct {
		routes []overlay.Route
		own    string
		clash  string
	}{
		{routes("0.0.0.0/0 eth0"), "", ""},
		{routes("10.64.0.0/16 mesh0", "10.64.0.1/32 mesh0"), "mesh0", ""},
		{routes("10.64.0.0/16 wg0"), "mesh0", "10.64.0.0/16 on wg0"},
		{routes("10.64.0.0/16"), "", "10.64.0.0/16"},
		{routes("10.0.0.0/8 eth0"), "mesh0", "10.0.0.0/8 on eth0"},
		{routes("10.64.255.255/32 eth0"), "mesh0", "10.64.255.255/32 on eth0"},
		{routes("10.65.0.0/16 eth0", "10.63.255.0/24 eth0"), "mesh0", ""},
	} {
		err := overlay.Overlaps(r, c.routes, c.own)
		if c.clash == "" && err != nil || c.clash != "" && (!appliance.IsReason(err, overlay.Clash) || !strings.HasSuffix(err.Error(), "the route "+c.clash)) {
			t.Errorf("%v, own %q: %v, want %q", c.routes, c.own, err, c.clash)
		}
	}
	if err := overlay.Overlaps(r, []overlay.Route{{}}); err != nil {
		t.Errorf("a route that is none: %v", err)
	}
}

func TestCheck(t *testing.T) {
	for text, ok := range map[string]bool{
		"10.64.0.0/16": true, "10.0.0.0/8": true, "192.168.4.0/29": true, "172.16.0.0/12": true, "100.64.0.0/10": true,
		"10.64.0.1/16": false, "10.0.0.0/7": false, "192.168.4.0/30": false, "8.8.8.0/24": false, "172.0.0.0/8": false, "fd00::/64": false,
		"0.0.0.0/0": false, "192.160.0.0/11": false,
	} {
		if err := overlay.Check(netip.MustParsePrefix(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := overlay.Check(netip.Prefix{}); err == nil {
		t.Error("no range at all")
	}
}

func TestAllocate(t *testing.T) {
	r := netip.MustParsePrefix("192.168.4.0/29")
	var used []netip.Addr
	for _, want := range []string{"192.168.4.1", "192.168.4.2", "192.168.4.3", "192.168.4.4", "192.168.4.5", "192.168.4.6"} {
		got, err := overlay.Allocate(r, used)
		if err != nil || got.String() != want {
			t.Fatalf("%v, %v, want %s", got, err, want)
		}
		used = append([]netip.Addr{got}, used...)
	}
	if _, err := overlay.Allocate(r, used); !appliance.IsReason(err, overlay.Full) || appliance.AsError(err).Hint == "" {
		t.Errorf("full: %v", err)
	}
	if got, err := overlay.Allocate(r, used[1:]); err != nil || got != used[0] {
		t.Errorf("one let go: %v, %v", got, err)
	}
	gap := append(append([]netip.Addr{}, used[:3]...), used[4:]...)
	if got, err := overlay.Allocate(r, gap); err != nil || got != used[3] {
		t.Errorf("a gap: %v, %v", got, err)
	}
	mapped := netip.MustParseAddr("::ffff:192.168.4.1")
	if got, err := overlay.Allocate(r, []netip.Addr{mapped, netip.MustParseAddr("10.0.0.1")}); err != nil || got.String() != "192.168.4.2" {
		t.Errorf("beside a mapped address: %v, %v", got, err)
	}
	if _, err := overlay.Allocate(netip.Prefix{}, nil); err == nil {
		t.Error("of no range")
	}
}
