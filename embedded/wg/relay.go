package wg

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailscale/wireguard-go/tun"
	"golang.org/x/sys/unix"
)

// relayQueue bounds the packets turned back and not yet taken, about 3 MB. When it is full, packets are dropped.
const relayQueue = 2048

// tunnel is the TUN device as the WireGuard device sees it. A decrypted packet from one peer to another is turned back: instead
// of going to the kernel it comes out of the next Read, as if an application had sent it.
type tunnel struct {
	tun.Device
	owners atomic.Pointer[owners] // nil: not a relay
	queue  queue
	woken  atomic.Bool // Read was told to look at the queue
	turned bool        // the last Read came from the queue; only Read touches it

	mu     sync.Mutex // guards the following
	mtu    int        // the device knows of it
	closed bool       // events is closed
	events chan tun.Event
}

func newTunnel(native tun.Device) *tunnel {
	return &tunnel{Device: native, events: make(chan tun.Event, 1)}
}

// Events carries only changes of the MTU: up and down are decided by Set.
func (t *tunnel) Events() <-chan tun.Event { return t.events }

// setMTU tells the device, which pads packets to it.
func (t *tunnel) setMTU(mtu int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if mtu == t.mtu || t.closed {
		return
	}
	t.mtu = mtu
	select {
	case t.events <- tun.EventMTUUpdate:
	default: // it has not taken the last one, and will read the present value
	}
}

func (t *tunnel) Close() error {
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.events)
	}
	t.mu.Unlock()
	return t.Device.Close()
}

// Write takes decrypted packets whose source the device has checked. Relayed ones are copied, the others go on as one batch.
func (t *tunnel) Write(packets [][]byte, offset int) (int, error) {
	o := t.owners.Load()
	if o == nil {
		return t.Device.Write(packets, offset)
	}
	kept, relayed := packets[:0], 0
	for _, p := range packets {
		switch verdict := o.judge(p[offset:]); verdict {
		case toKernel:
			kept = append(kept, p)
		case toPeer:
			if t.queue.put(p[offset:], o.limit) {
				relayed++
			}
		}
	}
	if relayed > 0 {
		t.wake()
	}
	if len(kept) == 0 {
		return 0, nil
	}
	return t.Device.Write(kept, offset)
}

// wake makes a Read that waits for the kernel return. The order here and in Read is what loses no packet: it is in the queue
// before the deadline is set, and Read clears the deadline before it looks into the queue.
func (t *tunnel) wake() {
	if !t.woken.Swap(true) {
		t.File().SetReadDeadline(time.Unix(1, 0))
	}
}

// Read gives packets from the queue and from the kernel, in turns when both have some.
func (t *tunnel) Read(packets [][]byte, sizes []int, offset int) (int, error) {
	for {
		if !t.turned || !t.readable() {
			if n := t.queue.take(packets, sizes, offset); n > 0 {
				t.turned = true
				return n, nil
			}
		}
		t.turned = false
		n, err := t.Device.Read(packets, sizes, offset)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		t.File().SetReadDeadline(time.Time{})
		t.woken.Store(false)
	}
}

// readable says whether the kernel has a packet now.
func (t *tunnel) readable() bool {
	raw, err := t.File().SyscallConn()
	if err != nil {
		return false
	}
	var n int
	raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return n > 0
}

// queue holds copies of packets, in order.
type queue struct {
	mu    sync.Mutex
	slots [][]byte // allocated with the first packet
	head  int
	count int
}

func (q *queue) put(packet []byte, limit int) bool {
	if len(packet) > limit {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.slots == nil {
		q.slots = make([][]byte, relayQueue)
	}
	if q.count == len(q.slots) {
		return false
	}
	at := (q.head + q.count) % len(q.slots)
	q.slots[at] = append(q.slots[at][:0], packet...)
	if !age(q.slots[at]) {
		return false
	}
	q.count++
	return true
}

func (q *queue) take(packets [][]byte, sizes []int, offset int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(q.count, len(packets))
	for i := range n {
		sizes[i] = copy(packets[i][offset:], q.slots[q.head])
		q.head = (q.head + 1) % len(q.slots)
	}
	q.count -= n
	return n
}

// age takes one hop off the packet's life and says whether any is left: relays in a ring cannot keep a packet for ever.
func age(packet []byte) bool {
	if packet[0]>>4 == 6 {
		if packet[7] <= 1 {
			return false
		}
		packet[7]--
		return true
	}
	if packet[8] <= 1 {
		return false
	}
	packet[8]--
	// The sum over 16-bit words (RFC 1624): the time to live is the high byte of its word.
	sum := uint32(binary.BigEndian.Uint16(packet[10:])) + 0x100
	binary.BigEndian.PutUint16(packet[10:], uint16(sum+sum>>16))
	return true
}

type verdict int

const (
	toKernel verdict = iota
	toPeer
	dropped
)

// owners says which peer an address belongs to. It is never changed.
type owners struct {
	self  netip.Addr
	limit int // longest packet relayed
	hosts map[netip.Addr]Key
	nets  []netip.Prefix // wider than one address, longest first
	of    []Key          // whose they are
}

func newOwners(c Config, mtu int) *owners {
	o := &owners{self: c.Address.Addr(), limit: max(mtu, 1500), hosts: make(map[netip.Addr]Key, len(c.Peers))}
	whose := make(map[netip.Prefix]Key)
	for _, p := range c.Peers {
		for _, a := range p.addresses() {
			if a.IsSingleIP() {
				o.hosts[a.Addr()] = p.Key
				continue
			}
			whose[a] = p.Key
			o.nets = append(o.nets, a)
		}
	}
	slices.SortFunc(o.nets, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	for _, n := range o.nets {
		o.of = append(o.of, whose[n])
	}
	return o
}

// judge says where a packet that came out of the tunnel goes. What a peer sends to itself is never sent back.
func (o *owners) judge(packet []byte) verdict {
	var from, to netip.Addr
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		from, to = netip.AddrFrom4([4]byte(packet[12:16])), netip.AddrFrom4([4]byte(packet[16:20]))
	case len(packet) >= 40 && packet[0]>>4 == 6:
		from, to = netip.AddrFrom16([16]byte(packet[8:24])), netip.AddrFrom16([16]byte(packet[24:40]))
	default:
		return dropped // the device cuts IPv6 packets to a length that it lets overflow
	}
	if to == o.self {
		return toKernel
	}
	receiver, known := o.owner(to)
	if !known {
		return toKernel
	}
	if sender, known := o.owner(from); !known || sender == receiver {
		return dropped
	}
	return toPeer
}

func (o *owners) owner(a netip.Addr) (Key, bool) {
	if k, ok := o.hosts[a]; ok {
		return k, true
	}
	for i, n := range o.nets {
		if n.Contains(a) {
			return o.of[i], true
		}
	}
	return Key{}, false
}
