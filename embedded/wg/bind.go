package wg

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tailscale/wireguard-go/conn"
	"golang.org/x/sys/unix"
)

var errNoEndpoint = errors.New("peer was neither told nor heard")

// bind gives the device its socket and knows where each peer is. The device itself keeps an endpoint for ever once it was set;
// so what it is given is a route, which moves beneath it when an authenticated packet comes from elsewhere.
type bind struct {
	socket atomic.Pointer[socket]         // nil: closed
	routes atomic.Pointer[map[Key]*route] // replaced whole by Set; the map is never changed
	moved  func()                         // some peer is somewhere new
}

func newBind(moved func()) *bind {
	b := &bind{moved: moved}
	b.routes.Store(&map[Key]*route{})
	return b
}

// ParseEndpoint gives the route of the peer whose key is the text.
func (b *bind) ParseEndpoint(text string) (conn.Endpoint, error) {
	key, err := ParseKey(text)
	if err != nil {
		return nil, err
	}
	r := (*b.routes.Load())[key]
	if r == nil {
		return nil, errNoEndpoint
	}
	return r, nil
}

// BatchSize is the number of packets in one call of a receiver or of Send.
func (b *bind) BatchSize() int { return conn.IdealBatchSize }

// SetMark is never asked for: packets of the tunnel carry no mark.
func (b *bind) SetMark(uint32) error { return errors.ErrUnsupported }

func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	if b.socket.Load() != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	s, err := openSocket(port)
	if err != nil {
		return nil, 0, err
	}
	b.socket.Store(s)
	return []conn.ReceiveFunc{b.receiver(newReader(s))}, s.port(), nil
}

func (b *bind) Close() error {
	if s := b.socket.Swap(nil); s != nil {
		return s.conn.Close()
	}
	return nil
}

// receiver marks packets with where they came from. A run of data packets along one path shares its mark.
func (b *bind) receiver(r *reader) conn.ReceiveFunc {
	return func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		var run *arrival
		return r.packets(packets, sizes, func(i int, along path) {
			id, begins := initiation(packets[i][:sizes[i]])
			if begins || run == nil || run.begins || run.path != along {
				run = &arrival{path: along, bind: b, begins: begins, id: id}
			}
			from[i] = run
		})
	}
}

// Send writes to where the peer is now.
func (b *bind) Send(packets [][]byte, to conn.Endpoint, offset int) error {
	s := b.socket.Load()
	if s == nil {
		return net.ErrClosed
	}
	if a, ok := to.(*arrival); ok {
		return s.send(packets, offset, a.path)
	}
	r, ok := to.(*route)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	if len(packets) == 1 {
		if id, ok := response(packets[0][offset:]); ok {
			r.answering(b, id)
		}
	}
	at := r.at.Load()
	if at == nil {
		return errNoEndpoint
	}
	err := s.send(packets, offset, *at)
	if err != nil && at.own.IsValid() && sourceGone(err) {
		// The own address that the peer last reached is no longer ours: let the kernel choose.
		r.ClearSrc()
		err = s.send(packets, offset, path{peer: at.peer})
	}
	return err
}

func sourceGone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENETUNREACH)
}

// arrival is where a received packet came from.
type arrival struct {
	path
	bind   *bind
	begins bool   // the packet is a handshake initiation,
	id     uint32 // and this is the number its answer must name
}

// InitiationMessagePublicKey is called with the key that an initiation claims, before that is verified. So it only notes the
// address; what makes the peer move there is that the device answers.
func (a *arrival) InitiationMessagePublicKey(key [32]byte) {
	if r := (*a.bind.routes.Load())[key]; r != nil && a.begins {
		r.called(a)
	}
}

// FromPeer is called when a data packet was decrypted and is no replay.
func (a *arrival) FromPeer(key [32]byte) {
	if r := (*a.bind.routes.Load())[key]; r != nil {
		r.move(a.bind, a.path)
	}
}

// maxCalls is more than what the device verifies at the same time, one a processor; false ones cannot crowd out the genuine.
const maxCalls = 64

// route is the way to one peer, and what the device holds as that peer's endpoint.
type route struct {
	at atomic.Pointer[path] // what it points to is never changed; nil: nowhere yet

	mu    sync.Mutex
	calls []*arrival // of initiations not yet answered, the last maxCalls
}

func newRoute(at netip.AddrPort) *route {
	r := new(route)
	r.tell(at)
	return r
}

// tell sets where the peer is said to be.
func (r *route) tell(at netip.AddrPort) {
	if at.IsValid() {
		r.at.Store(&path{peer: at})
	}
}

// address is where the peer is now, zero when nowhere.
func (r *route) address() netip.AddrPort { return r.now().peer }

func (r *route) move(b *bind, to path) {
	at := r.at.Load()
	if at != nil && *at == to {
		return
	}
	r.at.Store(&to)
	if at == nil || at.peer != to.peer {
		b.moved()
	}
}

func (r *route) called(a *arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) == maxCalls {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, a)
}

// answering moves the peer to where the initiation came from that is being answered: the device answers only the genuine.
func (r *route) answering(b *bind, id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.calls {
		if a.id == id {
			r.move(b, a.path)
			break
		}
	}
	clear(r.calls)
	r.calls = r.calls[:0]
}

// ClearSrc forgets which of our addresses the peer last reached.
func (r *route) ClearSrc() {
	if at := r.at.Load(); at != nil {
		r.at.CompareAndSwap(at, &path{peer: at.peer})
	}
}

func (r *route) now() path {
	if at := r.at.Load(); at != nil {
		return *at
	}
	return path{}
}

func (r *route) SrcToString() string { return r.now().SrcToString() }
func (r *route) DstToString() string { return r.now().DstToString() }
func (r *route) DstToBytes() []byte  { return r.now().DstToBytes() }
func (r *route) DstIP() netip.Addr   { return r.now().DstIP() }
func (r *route) SrcIP() netip.Addr   { return r.now().SrcIP() }

func (p path) ClearSrc()           {}
func (p path) SrcToString() string { return p.own.String() }
func (p path) DstToString() string { return p.peer.String() }
func (p path) DstIP() netip.Addr   { return p.peer.Addr() }
func (p path) SrcIP() netip.Addr   { return p.own }

// DstToBytes is what a cookie is bound to.
func (p path) DstToBytes() []byte {
	data, _ := p.peer.MarshalBinary()
	return data
}

// initiation reads the sender's number from a handshake initiation.
func initiation(packet []byte) (id uint32, ok bool) {
	if len(packet) != 148 || binary.LittleEndian.Uint32(packet) != 1 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(packet[4:]), true
}

// response reads from a handshake response the number of the initiation that it answers.
func response(packet []byte) (id uint32, ok bool) {
	if len(packet) != 92 || binary.LittleEndian.Uint32(packet) != 2 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(packet[8:]), true
}
