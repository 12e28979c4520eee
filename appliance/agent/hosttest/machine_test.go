package hosttest_test

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

func resource(id string, spec any) wire.Resource {
	data, _ := json.Marshal(spec)
	part := strings.Split(id, "/")
	return wire.Resource{ID: id, Instance: appliance.InstanceName(part[0]), Kind: wire.ResourceKind(part[1]), Spec: data}
}

func hello() []wire.Resource {
	return []wire.Resource{
		resource("hello/package/web", wire.PackageSpec{Names: map[string]string{"apt": "web"}}),
		resource("hello/user/hello", wire.UserSpec{Name: "hello"}),
		resource("hello/directory/data", wire.DirectorySpec{Path: "/m/hello/data", Class: "data", Owner: "hello", Group: "hello", Mode: "0750"}),
		resource("hello/directory/cache", wire.DirectorySpec{Path: "/m/hello/cache", Class: "cache", Owner: "hello", Group: "hello", Mode: "0750"}),
		resource("hello/file/conf", wire.FileSpec{Path: "/etc/conf", Owner: "root", Group: "root", Mode: "0644", Content: "new"}),
		resource("hello/process/web", wire.ProcessSpec{Name: "web", User: "hello", Command: []string{"mesh", "hello"}, Run: wire.Run{Restart: "always"}}),
	}
}

func effector(h host.Machine, r wire.Resource) host.Effector {
	if r.Kind == wire.Process {
		return h.Processes
	}
	return h.Effectors[r.Kind]
}

// DEC-4: observe, do, do again (nothing), undo in reverse; data and its user stay (MOD-10), what was there comes back.
func TestMachine(t *testing.T) {
	m := hosttest.New()
	m.Put("/etc/conf", hosttest.Entry{Owner: "root", Group: "root", Mode: "0600", Content: "old"})
	h, list := m.Host(), hello()
	undo := map[string]json.RawMessage{}
	for range 2 {
		for _, r := range list {
			if _, ok := undo[r.ID]; !ok {
				record, err := effector(h, r).Before(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				undo[r.ID] = record
			}
			if err := effector(h, r).Do(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if o, err := effector(h, r).Observe(t.Context(), r); err != nil || !o.Matches {
				t.Fatalf("%s after do: %+v, %v", r.ID, o, err)
			}
		}
	}
	made := []string{
		"apt-get install web",
		"useradd --system --home-dir /nonexistent hello",
		"install -d -o hello -g hello -m 0750 /m/hello/data",
		"install -d -o hello -g hello -m 0750 /m/hello/cache",
		"install -o root -g root -m 0644 /etc/conf # 3 bytes, 11507a0e2f5e",
		`systemctl start hello-web # hello: ["mesh" "hello"]`,
	}
	if d := cmp.Diff(made, m.Commands()); d != "" {
		t.Error(d)
	}
	for i := len(list) - 1; i >= 0; i-- {
		if _, err := effector(h, list[i]).Undo(t.Context(), list[i], undo[list[i].ID]); err != nil {
			t.Fatal(err)
		}
	}
	left := "useradd --system --home-dir /nonexistent hello\n" +
		"install -o root -g root -m 0600 /etc/conf # 3 bytes, " + appliance.DigestOf([]byte("old")).Short() + "\n" +
		"install -d -o hello -g hello -m 0750 /m/hello/data\n"
	if d := cmp.Diff(left, m.String()); d != "" {
		t.Error(d)
	}
}

func TestFailures(t *testing.T) {
	m, boom := hosttest.New(), errors.New("boom")
	h, r := m.Host(), hello()[1]
	m.Fail(r.ID, "do", boom, 1)
	m.FailAfter(r.ID, "do", boom, 1)
	for i, want := range []string{"", "useradd --system --home-dir /nonexistent hello\n"} {
		if err := effector(h, r).Do(t.Context(), r); err != boom || m.String() != want {
			t.Errorf("try %d: %v, machine %q", i, err, m)
		}
	}
	if err := effector(h, r).Do(t.Context(), r); err != nil {
		t.Error(err)
	}
	m.Fail(r.ID, "observe", boom, 0)
	m.Heal(r.ID)
	if o, err := effector(h, r).Observe(t.Context(), r); err != nil || !o.Matches {
		t.Error(o, err)
	}
}

func TestOverlay(t *testing.T) {
	m := hosttest.New()
	want := host.OverlayState{Address: netip.MustParsePrefix("10.64.0.2/16"), Peers: []host.OverlayPeer{{Key: "K", Endpoint: "hub:1", Allowed: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16")}}},
		Hosts: map[appliance.NodeName]netip.Addr{"hub": netip.MustParseAddr("10.64.0.1")}}
	for range 2 {
		if err := m.Host().Overlay.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Host().Overlay.Set(t.Context(), host.OverlayState{}); err != nil {
		t.Fatal(err)
	}
	got := m.Commands()
	lines := []string{"ip address add 10.64.0.2/16 dev mesh", "wg set mesh listen-port 0", "wg set mesh peer K endpoint hub:1 allowed-ips 10.64.0.0/16", "echo 10.64.0.1 hub.internal >> /etc/hosts"}
	for _, line := range lines {
		lines = append(lines, "undo: "+line)
	}
	if d := cmp.Diff(lines, got); d != "" {
		t.Error(d)
	}
}
