package wg

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	readsAtOnce   = 8          // messages, each up to 64 packets that the kernel has put together
	maxDatagram   = 65535 - 48 // bytes in one message, under either family's headers
	maxSegments   = 64         // packets in one message; older kernels take no more
	socketBuffers = 7 << 20    // bytes each way in the kernel, against bursts
	controlRoom   = 128        // bytes of control messages: own address and segment size
	udpLevel      = unix.SOL_UDP
)

// socket is a UDP socket for both families. It sends and receives many packets at a time, and it knows which own address a
// packet came to, so that the answer leaves from there: a NAT on the way lets nothing else through.
type socket struct {
	conn     *net.UDPConn
	batch    batcher
	segments atomic.Bool // the kernel cuts messages into packets
}

type batcher interface {
	ReadBatch([]ipv6.Message, int) (int, error)
	WriteBatch([]ipv6.Message, int) (int, error)
}

func openSocket(port uint16) (*socket, error) {
	var six, segments bool
	listen := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		controlErr := raw.Control(func(fd uintptr) { six, segments, err = prepare(int(fd)) })
		return errors.Join(controlErr, err)
	}}
	packets, err := listen.ListenPacket(context.Background(), "udp", ":"+strconv.Itoa(int(port)))
	if err != nil {
		return nil, err
	}
	s := &socket{conn: packets.(*net.UDPConn)}
	s.segments.Store(segments)
	if s.batch = ipv4.NewPacketConn(s.conn); six {
		s.batch = ipv6.NewPacketConn(s.conn)
	}
	return s, nil
}

// prepare sets a socket's options. Those that only make it faster may fail.
func prepare(fd int) (six, segments bool, err error) {
	for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF, unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffers)
	}
	unix.SetsockoptInt(fd, udpLevel, unix.UDP_GRO, 1)
	_, segmentErr := unix.GetsockoptInt(fd, udpLevel, unix.UDP_SEGMENT)
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false, false, err
	}
	if six = domain == unix.AF_INET6; six {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	return six, segmentErr == nil, err
}

func (s *socket) port() uint16 { return s.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// path is the way of a packet: the peer's address, and the own one, zero when the kernel shall choose.
type path struct {
	peer netip.AddrPort
	own  netip.Addr
}

// reader takes messages apart into packets. A message that does not fit into one call is continued in the next.
type reader struct {
	socket *socket
	read   []ipv6.Message // filled once, used again for each read
	next   []ipv6.Message // read and not begun
	rest   []byte         // of the message begun
	size   int            // of its packets but the last
	from   path
}

func newReader(s *socket) *reader {
	r := &reader{socket: s, read: make([]ipv6.Message, readsAtOnce)}
	for i := range r.read {
		r.read[i].Buffers = [][]byte{make([]byte, 1<<16)}
		r.read[i].OOB = make([]byte, controlRoom)
	}
	return r
}

// packets fills buffers and calls came for each, until the buffers or what was received are used up.
func (r *reader) packets(buffers [][]byte, sizes []int, came func(i int, from path)) (int, error) {
	if len(r.rest) == 0 && len(r.next) == 0 {
		n, err := r.socket.batch.ReadBatch(r.read, 0)
		if err != nil {
			return 0, err
		}
		r.next = r.read[:n]
	}
	for i := range buffers {
		for len(r.rest) == 0 {
			if len(r.next) == 0 {
				return i, nil
			}
			r.begin(&r.next[0])
			r.next = r.next[1:]
		}
		size := min(r.size, len(r.rest))
		sizes[i] = copy(buffers[i], r.rest[:size])
		r.rest = r.rest[size:]
		came(i, r.from)
	}
	return len(buffers), nil
}

func (r *reader) begin(m *ipv6.Message) {
	r.rest, r.size = m.Buffers[0][:m.N], max(m.N, 1)
	peer := m.Addr.(*net.UDPAddr).AddrPort()
	r.from = path{peer: netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())}
	for rest := m.OOB[:m.NN]; len(rest) > 0; {
		header, data, after, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			return
		}
		rest = after
		switch {
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			r.from.own = netip.AddrFrom4([4]byte(data[4:8])) // interface, own address, destination
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			r.from.own = netip.AddrFrom16([16]byte(data[:16])).Unmap()
		case header.Level == udpLevel && header.Type == unix.UDP_GRO && len(data) >= 2:
			r.size = max(int(binary.NativeEndian.Uint16(data)), 1)
		}
	}
}

// writer is what a send needs, kept for the next one.
type writer struct {
	messages []ipv6.Message
	to       net.UDPAddr
}

var writers = sync.Pool{New: func() any { return new(writer) }}

// send writes packets, each beginning at offset, along a path.
func (s *socket) send(packets [][]byte, offset int, along path) error {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	if len(packets) > 1 && s.segments.Load() {
		err := s.write(w.fill(packets, offset, along, maxSegments))
		switch {
		case errors.Is(err, unix.EIO): // the link computes no checksums
			s.segments.Store(false)
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EMSGSIZE): // longer than the path takes: only single packets are cut up
		default:
			return err
		}
	}
	return s.write(w.fill(packets, offset, along, 1))
}

func (s *socket) write(messages []ipv6.Message) error {
	for len(messages) > 0 {
		n, err := s.batch.WriteBatch(messages, 0)
		if err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

// fill puts packets of one length, and a shorter one at the end, into one message, as far as bounds allow.
func (w *writer) fill(packets [][]byte, offset int, along path, most int) []ipv6.Message {
	w.to = net.UDPAddr{IP: append(w.to.IP[:0], along.peer.Addr().AsSlice()...), Port: int(along.peer.Port()), Zone: along.peer.Addr().Zone()}
	n, total := 0, 0
	full := true // nothing more fits into the last message
	for _, p := range packets {
		p = p[offset:]
		if !full {
			m := &w.messages[n-1]
			if first := len(m.Buffers[0]); len(p) <= first && total+len(p) <= maxDatagram && len(m.Buffers) < most {
				m.Buffers = append(m.Buffers, p)
				total += len(p)
				full = len(p) < first
				continue
			}
		}
		if n == len(w.messages) {
			w.messages = append(w.messages, ipv6.Message{})
		}
		m := &w.messages[n]
		m.Buffers, m.OOB, m.Addr = append(m.Buffers[:0], p), appendSource(m.OOB[:0], along.own), &w.to
		n, total, full = n+1, len(p), false
	}
	for i := range w.messages[:n] {
		if m := &w.messages[i]; len(m.Buffers) > 1 {
			size := binary.NativeEndian.AppendUint16(nil, uint16(len(m.Buffers[0])))
			m.OOB = appendControl(m.OOB, udpLevel, unix.UDP_SEGMENT, size)
		}
	}
	return w.messages[:n]
}

func appendSource(to []byte, own netip.Addr) []byte {
	switch {
	case own.Is4():
		var info [unix.SizeofInet4Pktinfo]byte
		*(*[4]byte)(info[4:]) = own.As4()
		return appendControl(to, unix.IPPROTO_IP, unix.IP_PKTINFO, info[:])
	case own.Is6():
		var info [unix.SizeofInet6Pktinfo]byte
		*(*[16]byte)(info[:]) = own.As16()
		return appendControl(to, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, info[:])
	}
	return to
}

func appendControl(to []byte, level, kind int32, data []byte) []byte {
	begin := len(to)
	to = append(to, make([]byte, unix.CmsgSpace(len(data)))...)
	header := (*unix.Cmsghdr)(unsafe.Pointer(&to[begin]))
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(len(data)))
	copy(to[begin+unix.CmsgLen(0):], data)
	return to
}
