package wg

import (
	"net/netip"
	"testing"
	"time"
)

const streaming = 2 * time.Second

// BenchmarkThroughput compares one TCP stream over the cable, over the WireGuard device as it comes, and over ours, each pair of
// figures from the same run; then the relay. Run it with -benchtime=1x.
func BenchmarkThroughput(b *testing.B) {
	for range b.N {
		raw := streamOver(b, "raw")
		var bare, ours stream
		for range 5 { // alternating, for the machine's speed drifts
			bare = bare.add(streamOver(b, "bare"))
			ours = ours.add(streamOver(b, "ours"))
		}
		b.ReportMetric(raw.rate(), "raw-Gbit/s")
		b.ReportMetric(bare.rate(), "bare-Gbit/s")
		b.ReportMetric(ours.rate(), "ours-Gbit/s")
		b.ReportMetric(ours.rate()/bare.rate(), "ours/bare")
		b.ReportMetric(ours.perCPU()/bare.perCPU(), "ours/bare-per-CPU-s") // what a busy machine disturbs least
	}
}

// BenchmarkRelay is one TCP stream from spoke to spoke through the hub.
func BenchmarkRelay(b *testing.B) {
	for range b.N {
		b.ReportMetric(relayed(b).rate(), "Gbit/s")
	}
}

// stream is what one or several streams carried, and what that took of all processes together.
type stream struct {
	bytes        int64
	seconds, cpu float64
	peak         int64 // kB of memory, of the largest process
}

func (s stream) rate() float64   { return float64(s.bytes) * 8 / s.seconds / 1e9 }
func (s stream) perCPU() float64 { return float64(s.bytes) * 8 / s.cpu / 1e9 }

func (s stream) add(o stream) stream {
	return stream{s.bytes + o.bytes, s.seconds + o.seconds, s.cpu + o.cpu, max(s.peak, o.peak)}
}

// measure streams from a host to an address, with these hosts taking part.
func measure(b *testing.B, name string, from *host, to netip.Addr, hosts ...*host) stream {
	a := from.ask(request{Op: "send", At: to, Within: streaming})
	s := stream{bytes: a.Number, seconds: a.Seconds}
	for _, h := range hosts {
		s.cpu += time.Duration(h.ask(request{Op: "cpu"}).Number).Seconds()
		s.peak = max(s.peak, h.ask(request{Op: "peak"}).Number)
	}
	b.Logf("%s: %.2f Gbit/s, %.2f Gbit per CPU second, peak %d MB", name, s.rate(), s.perCPU(), s.peak>>10)
	return s
}

func streamOver(b *testing.B, kind string) stream {
	bed := newBed(b)
	hub, spoke := bed.host("hub"), bed.host("spoke")
	defer hub.kill()
	defer spoke.kill()
	hubAt, spokeAt := bed.connect(hub, spoke)
	s := newStar(hubAt)
	s.spokes[0].Port = port
	to := netip.MustParseAddr("10.64.0.1")
	switch kind {
	case "raw":
		to = hubAt
		hub.ask(request{Op: "serve", At: hubAt})
	case "bare":
		s.hub.MTU, s.spokes[0].MTU = 1420, 1420
		s.hub.Peers[0].Endpoint = at(spokeAt)
		hub.ask(request{Op: "bare", Options: Options{Interface: "wgt0"}, Config: s.hub})
		spoke.ask(request{Op: "bare", Options: Options{Interface: "wgt0"}, Config: s.spokes[0]})
		hub.ask(request{Op: "serve", At: to})
	case "ours":
		hub.start(bed.options(), s.hub)
		spoke.start(bed.options(), s.spokes[0])
	}
	spoke.ping(to.String())
	return measure(b, kind, spoke, to, hub, spoke)
}

func relayed(b *testing.B) stream {
	bed := newBed(b)
	hub, one, two := bed.host("hub"), bed.host("one"), bed.host("two")
	hubOne, _ := bed.connect(hub, one)
	hubTwo, _ := bed.connect(hub, two)
	s := newStar(hubOne, hubTwo)
	hub.start(bed.options(), s.hub)
	one.start(bed.options(), s.spokes[0])
	two.start(bed.options(), s.spokes[1])
	one.ping("10.64.0.3")
	return measure(b, "relay", one, netip.MustParseAddr("10.64.0.3"), hub, one, two)
}
