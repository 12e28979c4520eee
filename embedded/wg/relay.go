package wg

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
)

// relayQueue bounds the packets turned back and not yet taken, about 3 MB. When it is full, packets are dropped.
const relayQueue = 2048

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
	relay bool
	hosts map[netip.Addr]Key
	nets  []netip.Prefix // wider than one address, longest first
	of    []Key          // whose they are
}

func newOwners(c Config, mtu int) *owners {
	o := &owners{self: c.Address.Addr(), limit: max(mtu, 1500), relay: c.Relay, hosts: make(map[netip.Addr]Key, len(c.Peers))}
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

// judge says where a packet that came out of the tunnel goes. The kernel is given what is for the device's own address and nothing else:
// it would take what is for the machine's other addresses, and where it forwards, lead peers into the networks behind it. What a peer
// sends to itself is never sent back.
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
	if !o.relay {
		return dropped
	}
	receiver, known := o.owner(to)
	sender, genuine := o.owner(from)
	if !known || !genuine || sender == receiver {
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
