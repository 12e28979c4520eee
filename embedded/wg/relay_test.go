package wg

import (
	"net/netip"
	"testing"
)

func relayOf(t testing.TB) (*owners, Config) {
	t.Helper()
	c := Config{PrivateKey: NewPrivateKey(), Address: netip.MustParsePrefix("10.64.0.1/16"), Relay: true, Peers: []Peer{
		{Key: NewPrivateKey().Public(), Address: prefixes("10.64.0.2/32", "fd00::2/128", "10.99.0.0/16")},
		{Key: NewPrivateKey().Public(), Address: prefixes("10.64.0.3/32", "fd00::3/128", "10.99.7.0/24")},
	}}
	if err := c.check("wgt0"); err != nil {
		t.Fatal(err)
	}
	return newOwners(c, 1420), c
}

// NET-4: only what goes from one peer to another is turned back, and never to where it came from.
func TestJudge(t *testing.T) {
	o, _ := relayOf(t)
	for _, c := range []struct {
		from, to string
		want     verdict
	}{
		{"10.64.0.2", "10.64.0.3", toPeer},
		{"10.64.0.3", "10.64.0.2", toPeer},
		{"10.64.0.2", "10.64.0.1", toKernel}, // the hub itself
		{"10.64.0.2", "10.64.0.9", dropped},  // nobody's
		{"10.64.0.2", "10.64.0.2", dropped},  // back to the sender
		{"10.64.0.2", "10.99.1.1", dropped},  // back to the sender, by another of its addresses
		{"10.64.0.2", "10.99.7.1", toPeer},   // the longer prefix wins
		{"10.64.0.9", "10.64.0.2", dropped},  // from nobody
		{"fd00::2", "fd00::3", toPeer},
		{"fd00::2", "fd00::2", dropped},
		{"fd00::2", "fd00::9", dropped},
	} {
		if got := o.judge(packet(c.from, c.to, 64)); got != c.want {
			t.Errorf("%s to %s: %v, want %v", c.from, c.to, got, c.want)
		}
	}
	short := packet("fd00::2", "fd00::3", 64)
	for n := range short {
		if got := o.judge(short[:n]); n < 40 && got != dropped {
			t.Errorf("%d bytes of IPv6: %v, want it dropped", n, got)
		}
	}
}

func packet(from, to string, life byte) []byte {
	source, target := netip.MustParseAddr(from), netip.MustParseAddr(to)
	if source.Is4() {
		return datagram(netip.AddrPortFrom(source, 1), netip.AddrPortFrom(target, 2), life, "text")
	}
	p := make([]byte, 44)
	p[0], p[5], p[6], p[7] = 0x60, 4, 59, life
	copy(p[8:], source.AsSlice())
	copy(p[24:], target.AsSlice())
	return p
}

// Each relay takes one hop, so that no ring of relays keeps a packet for ever.
func TestAge(t *testing.T) {
	p := packet("10.64.0.2", "10.64.0.3", 255)
	for life := 254; life >= 1; life-- {
		if !age(p) || int(p[8]) != life {
			t.Fatalf("life %d, want %d", p[8], life)
		}
		if s := sum(p[:20]); s != 0xffff {
			t.Fatalf("checksum wrong at life %d: sum %#x", life, s)
		}
	}
	if age(p) {
		t.Error("a packet at the end of its life goes on")
	}
	p = packet("fd00::2", "fd00::3", 2)
	if !age(p) || p[7] != 1 || age(p) {
		t.Errorf("hop limit 2 ends at %d", p[7])
	}
}

// SAFE-2: the queue is bounded in packets and in bytes, and keeps the order.
func TestQueue(t *testing.T) {
	var q queue
	if q.put(make([]byte, 1501), 1500) {
		t.Error("took a packet beyond the limit")
	}
	for i := range relayQueue {
		p := packet("10.64.0.2", "10.64.0.3", 64)
		p[4], p[5] = byte(i>>8), byte(i)
		if !q.put(p, 1500) {
			t.Fatalf("full after %d packets, want %d", i, relayQueue)
		}
	}
	if q.put(packet("10.64.0.2", "10.64.0.3", 64), 1500) {
		t.Errorf("took more than %d packets", relayQueue)
	}
	packets, sizes := make([][]byte, 100), make([]int, 100)
	for i := range packets {
		packets[i] = make([]byte, 2048)
	}
	for next := 0; next < relayQueue; {
		n := q.take(packets, sizes, 16)
		if n == 0 {
			t.Fatalf("empty after %d packets", next)
		}
		for _, p := range packets[:n] {
			if got := int(p[20])<<8 | int(p[21]); got != next {
				t.Fatalf("packet %d came as number %d", got, next)
			}
			next++
		}
	}
	if n := q.take(packets, sizes, 0); n != 0 {
		t.Errorf("%d packets more came out than went in", n)
	}
}

// SAFE-2: nothing that a peer sends ends the process.
func FuzzRelay(f *testing.F) {
	o, _ := relayOf(f)
	f.Add(packet("10.64.0.2", "10.64.0.3", 64))
	f.Add(packet("fd00::2", "fd00::3", 64))
	f.Add([]byte{0x60, 0, 0xff, 0xdc})
	f.Fuzz(func(t *testing.T, p []byte) {
		if o.judge(p) == toPeer {
			new(queue).put(p, o.limit)
		}
	})
}
