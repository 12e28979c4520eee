package wg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailscale/wireguard-go/conn"
	"github.com/tailscale/wireguard-go/device"
	"github.com/tailscale/wireguard-go/tun"
	"golang.org/x/sys/unix"
)

// The test binary is also the process that runs a device inside a namespace: one JSON request a line, one answer a line.

const (
	echoPort = 7
	sinkPort = 9
)

type request struct {
	Op       string // see helper.do
	Options  Options
	Config   Config
	Peers    []Key
	At       netip.Addr // ping, send, listen: whom or where
	From, To netip.AddrPort
	Within   time.Duration
}

type answer struct {
	Error   string
	States  []PeerState
	Took    time.Duration
	Number  int64
	Seconds float64
}

func TestMain(m *testing.M) {
	if os.Getenv("WG_TEST_HELPER") != "" {
		serve()
		os.Exit(0)
	}
	sweep()
	os.Exit(m.Run())
}

func serve() {
	h := new(helper)
	requests, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r request
		if err := requests.Decode(&r); err != nil {
			return
		}
		a, err := h.do(r)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return
		}
	}
}

type helper struct {
	device *Device
	heard  atomic.Int64 // datagrams at the listener
}

func (h *helper) do(r request) (a answer, err error) {
	begin := time.Now()
	defer func() { a.Took = time.Since(begin) }()
	switch r.Op {
	case "start":
		level := slog.LevelWarn
		if os.Getenv("WG_TEST_DEBUG") != "" {
			level = slog.LevelDebug
		}
		r.Options.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
		h.device, err = Start(r.Options)
	case "set":
		err = h.device.Set(context.Background(), r.Config)
	case "state":
		a.States, err = h.device.State()
	case "handshake":
		h.device.Handshake(r.Peers...)
	case "close":
		err = h.device.Close()
	case "wait":
		select {
		case <-h.device.Done():
			err = h.device.Err()
		case <-time.After(r.Within):
			err = errors.New("still running")
		}
	case "remove":
		err = Remove(r.Options.Interface)
	case "bare":
		err = bare(r.Options.Interface, r.Config)
	case "serve":
		err = serveEcho(r.At)
	case "ping":
		err = ping(r.At, r.Within)
	case "send":
		a.Number, err = send(r.At, r.Within)
		a.Seconds = time.Since(begin).Seconds()
	case "listen":
		err = h.listen(r.From)
	case "heard":
		a.Number = h.heard.Load()
	case "forge":
		err = forge(r.From, r.To)
	case "nat":
		err = nat(r.From, r.To)
	case "turns":
		err = turns()
	case "memory":
		a.Number, err = memory()
	case "cpu", "peak":
		var u unix.Rusage
		err = unix.Getrusage(unix.RUSAGE_SELF, &u)
		a.Number = u.Utime.Nano() + u.Stime.Nano()
		if r.Op == "peak" {
			a.Number = u.Maxrss
		}
	default:
		err = fmt.Errorf("no such request %q", r.Op)
	}
	return a, err
}

// bare is the device as it comes, with its own bind and TUN: the reference for throughput.
func bare(name string, c Config) error {
	native, err := tun.CreateTUN(name, c.MTU)
	if err != nil {
		return err
	}
	if err := configureLink(name, c.Address, c.MTU); err != nil {
		return err
	}
	dev := device.NewDevice(native, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	text := fmt.Sprintf("private_key=%s\nlisten_port=%d\n", c.PrivateKey.hex(), c.Port)
	for _, p := range c.Peers {
		text += fmt.Sprintf("public_key=%s\nendpoint=%s\n", p.Key.hex(), p.Endpoint)
		for _, a := range p.Address {
			text += "allowed_ip=" + a.String() + "\n"
		}
	}
	return errors.Join(dev.IpcSet(text), dev.Up())
}

// serveEcho answers pings, and swallows streams.
func serveEcho(at netip.Addr) error {
	echo, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, echoPort)))
	if err != nil {
		return err
	}
	sink, err := net.Listen("tcp", netip.AddrPortFrom(at, sinkPort).String())
	if err != nil {
		return err
	}
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			echo.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	go func() {
		for {
			c, err := sink.Accept()
			if err != nil {
				return
			}
			go func() {
				n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
				fmt.Fprintln(c, n)
				c.Close()
			}()
		}
	}()
	return nil
}

// ping sends small datagrams until one comes back.
func ping(to netip.Addr, within time.Duration) error {
	end := time.Now().Add(within)
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
	for err != nil && time.Now().Before(end) { // no route while the interface is being made
		time.Sleep(time.Millisecond)
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, echoPort)))
	}
	if err != nil {
		return err
	}
	defer c.Close()
	for buf := make([]byte, 64); time.Now().Before(end); {
		if _, err = c.Write([]byte("ping")); err == nil {
			c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
			if _, err = c.Read(buf); err == nil {
				return nil
			}
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(time.Millisecond) // refused at once: the other end is not there yet
		}
	}
	return fmt.Errorf("no answer from %s within %s: %w", to, within, err)
}

// send streams for a while and returns the bytes that the sink says it got.
func send(to netip.Addr, lasting time.Duration) (int64, error) {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, sinkPort).String(), 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buf := make([]byte, 256<<10)
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		if _, err := c.Write(buf); err != nil {
			return 0, err
		}
	}
	c.(*net.TCPConn).CloseWrite()
	text, err := io.ReadAll(c)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

func (h *helper) listen(at netip.AddrPort) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	go func() {
		for buf := make([]byte, 2048); ; {
			if _, _, err := c.ReadFromUDPAddrPort(buf); err != nil {
				return
			}
			h.heard.Add(1)
		}
	}()
	return nil
}

// forge sends one datagram with any source address.
func forge(from, to netip.AddrPort) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, datagram(from, to, 64, "forged"), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
}

// datagram is an IPv4 packet around a UDP datagram without checksum.
func datagram(from, to netip.AddrPort, life byte, text string) []byte {
	p := make([]byte, 28+len(text))
	p[0], p[8], p[9] = 0x45, life, unix.IPPROTO_UDP
	put := func(at, v int) { p[at], p[at+1] = byte(v>>8), byte(v) }
	put(2, len(p))
	copy(p[12:], from.Addr().AsSlice())
	copy(p[16:], to.Addr().AsSlice())
	put(10, int(^sum(p[:20])))
	put(20, int(from.Port()))
	put(22, int(to.Port()))
	put(24, 8+len(text))
	copy(p[28:], text)
	return p
}

// sum adds 16-bit words as the internet checksum does.
func sum(p []byte) uint16 {
	var s uint32
	for ; len(p) > 1; p = p[2:] {
		s += uint32(p[0])<<8 | uint32(p[1])
	}
	for s > 0xffff {
		s = s&0xffff + s>>16
	}
	return uint16(s)
}

// nat carries one flow from the inside to a server, from a port of its own. What comes from elsewhere, or before the inside has
// spoken, is dropped.
func nat(inside, server netip.AddrPort) error {
	in, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(inside))
	if err != nil {
		return err
	}
	out, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return err
	}
	var client atomic.Pointer[netip.AddrPort]
	go func() {
		for buf := make([]byte, 65536); ; {
			n, from, err := in.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			client.Store(&from)
			out.Write(buf[:n])
		}
	}()
	go func() {
		for buf := make([]byte, 65536); ; {
			n, err := out.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if to := client.Load(); err == nil && to != nil {
				in.WriteToUDPAddrPort(buf[:n], *to)
			}
		}
	}()
	return nil
}

// turns has packets both in the queue and from the kernel, and wants to read them alternately.
func turns() error {
	native, err := openTUN("turns0")
	if err != nil {
		return err
	}
	t := newTunnel(native)
	defer t.Close()
	if err := configureLink("turns0", netip.MustParsePrefix("10.65.0.1/24"), 1420); err != nil {
		return err
	}
	from, to := netip.MustParseAddrPort("10.65.0.3:1"), netip.MustParseAddrPort("10.65.0.2:1")
	for range relayQueue {
		t.queue.put(datagram(from, to, 64, "relayed"), 1420)
	}
	for range 2 * relayQueue / conn.IdealBatchSize {
		if err := forge(netip.MustParseAddrPort("10.65.0.1:1"), to); err != nil {
			return err
		}
	}
	packets, sizes := make([][]byte, conn.IdealBatchSize), make([]int, conn.IdealBatchSize)
	for i := range packets {
		packets[i] = make([]byte, 65535)
	}
	for i := range relayQueue / conn.IdealBatchSize {
		for _, batch := range []bool{true, false} {
			if n, err := t.Read(packets, sizes, 0); err != nil || (n > 1) != batch {
				return fmt.Errorf("round %d: %d packets and %v, want from the queue: %t", i, n, err, batch)
			}
		}
	}
	return nil
}

var pssLine = regexp.MustCompile(`(?m)^Pss:\s+(\d+) kB`)

// memory is the process's share of memory in kB.
func memory() (int64, error) {
	runtime.GC()
	data, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, err
	}
	m := pssLine.FindSubmatch(data)
	if m == nil {
		return 0, fmt.Errorf("no Pss in %q", bytes.TrimSpace(data))
	}
	return strconv.ParseInt(string(m[1]), 10, 64)
}
