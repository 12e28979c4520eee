package probe_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/disk/disktest"
	"github.com/novox/mesh/genesis/probe"
)

// wants checks a refusal: its kind, pieces of its text, and that it has a way out.
func wants(t *testing.T, err error, kind appliance.Kind, pieces ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("not refused")
	}
	e := appliance.AsError(err)
	if e.Kind != kind || e.Hint == "" {
		t.Errorf("kind %s, hint %q: %v", e.Kind, e.Hint, err)
	}
	for _, piece := range pieces {
		if !strings.Contains(e.Text+e.Hint+e.Next, piece) {
			t.Errorf("%q does not say %q", e.Text, piece)
		}
	}
}

// GEN-4
func TestClock(t *testing.T) {
	built := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, now := range []time.Time{built, built.Add(time.Hour)} {
		if err := probe.Clock(now, built); err != nil {
			t.Errorf("at %s: %v", now, err)
		}
	}
	if err := probe.Clock(time.Unix(0, 0), time.Time{}); err != nil {
		t.Errorf("a build that does not say when it was made: %v", err)
	}
	wants(t, probe.Clock(time.Unix(7, 0), built), appliance.Denied, "1970-01-01T00:00:07Z", "2026-12-01T00:00:00Z", "timedatectl")
}

// GEN-4: the folder need not exist, and is not made.
func TestDisk(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "a", "b")
	if err := probe.Disk(missing, 1); err != nil {
		t.Error(err)
	}
	wants(t, probe.Disk(missing, 1<<62), appliance.Unavailable, "MiB are free at "+dir, fmt.Sprint(1<<42)+" MiB are needed", "--state")
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("made %v", left)
	}
	// DEC-14: a node that would make nothing is not made.
	small := disktest.Small(t, 64<<20)
	wants(t, probe.Room(filepath.Join(small, "a"), nil), appliance.Unavailable, "64 MiB of 64 MiB are free (100 %) at "+small, "nothing new below 1 GiB", "--least-free SIZE")
	least := disk.Size(64 << 20)
	if err := probe.Room(small, &least); err != nil {
		t.Error(err)
	}
	disktest.Fill(t, small)
	wants(t, probe.Room(small, &least), appliance.Unavailable, "below 64 MiB")
}

// GEN-4: whoever holds a port is named, on whatever address it is bound; our own processes are not in the way.
func TestPort(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	me := fmt.Sprintf("process %d (%s) has it", os.Getpid(), strings.TrimSpace(string(comm)))
	for network, address := range map[string]net.Addr{"tcp": tcp.Addr(), "udp": udp.LocalAddr()} {
		port := netip.MustParseAddrPort(address.String()).Port()
		stranger := func(int) bool { return false }
		wants(t, probe.Port(network, port, "broker", stranger), appliance.Conflict, fmt.Sprintf("port %d/%s for the broker", port, network), me, "--broker-port")
		asked := 0
		if err := probe.Port(network, port, "broker", func(pid int) bool { asked = pid; return true }); err != nil || asked != os.Getpid() {
			t.Errorf("our own %s port: process %d: %v", network, asked, err)
		}
	}
	port := netip.MustParseAddrPort(tcp.Addr().String()).Port()
	tcp.Close()
	if err := probe.Port("tcp", port, "broker", nil); err != nil {
		t.Errorf("a free port: %v", err)
	}
}
