package wg

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tailscale/wireguard-go/conn"
	"golang.org/x/sys/unix"
)

var errNoEndpoint = errors.New("peer was neither told nor heard")

// bind gives the device its sockets and knows where each peer is. The device itself keeps an endpoint for ever once it was
// set; so what it is given is a route, which moves beneath it when an authenticated packet comes from elsewhere.
type bind struct {
	conn.Bind
	routes atomic.Pointer[map[Key]*route] // replaced whole by Set; the map is never changed
	moved  func()                         // some peer is somewhere new
}

func newBind(moved func()) *bind {
	b := &bind{Bind: conn.NewStdNetBind(), moved: moved}
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

func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receivers, actual, err := b.Bind.Open(port)
	for i, receive := range receivers {
		receivers[i] = b.receiver(receive)
	}
	return receivers, actual, err
}

// receiver marks packets with where they came from. A run of data packets from one address shares its mark.
func (b *bind) receiver(receive conn.ReceiveFunc) conn.ReceiveFunc {
	return func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		n, err := receive(packets, sizes, from)
		var run *arrival
		for i := range n {
			std, ok := from[i].(*conn.StdNetEndpoint)
			if !ok || sizes[i] == 0 {
				continue
			}
			id, begins := initiation(packets[i][:sizes[i]])
			if begins || run == nil || run.begins || !samePath(run.StdNetEndpoint, std) {
				run = &arrival{StdNetEndpoint: std, bind: b, begins: begins, id: id}
			}
			from[i] = run
		}
		return n, err
	}
}

// Send writes to where the peer is now.
func (b *bind) Send(packets [][]byte, to conn.Endpoint, offset int) error {
	if a, ok := to.(*arrival); ok {
		return b.Bind.Send(packets, a.StdNetEndpoint, offset)
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
	err := b.Bind.Send(packets, at, offset)
	if err != nil && at.SrcIP().IsValid() && sourceGone(err) {
		// The own address the peer last reached us at is no longer ours: let the kernel choose.
		r.ClearSrc()
		err = b.Bind.Send(packets, r.at.Load(), offset)
	}
	return err
}

func sourceGone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENETUNREACH)
}

// arrival is where a received packet came from.
type arrival struct {
	*conn.StdNetEndpoint
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
		r.move(a.bind, a.StdNetEndpoint)
	}
}

// route is the way to one peer, and what the device holds as that peer's endpoint.
type route struct {
	at atomic.Pointer[conn.StdNetEndpoint] // what it points to is never changed; nil: nowhere yet

	mu    sync.Mutex
	calls [8]*arrival // of initiations being verified, the oldest overwritten; more than there are workers to verify
	next  int
}

func newRoute(at netip.AddrPort) *route {
	r := new(route)
	r.tell(at)
	return r
}

// tell sets where the peer is said to be.
func (r *route) tell(at netip.AddrPort) {
	if at.IsValid() {
		r.at.Store(&conn.StdNetEndpoint{AddrPort: at})
	}
}

// address is where the peer is now, zero when nowhere.
func (r *route) address() netip.AddrPort {
	if at := r.at.Load(); at != nil {
		return at.AddrPort
	}
	return netip.AddrPort{}
}

func (r *route) move(b *bind, to *conn.StdNetEndpoint) {
	at := r.at.Load()
	if at != nil && samePath(at, to) {
		return
	}
	r.at.Store(to)
	if at == nil || at.AddrPort != to.AddrPort {
		b.moved()
	}
}

func (r *route) called(a *arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[r.next] = a
	r.next = (r.next + 1) % len(r.calls)
}

// answering moves the peer to where the initiation came from that is being answered: the device answers only the genuine.
func (r *route) answering(b *bind, id uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.calls {
		if a != nil && a.id == id {
			r.move(b, a.StdNetEndpoint)
			break
		}
	}
	r.calls = [8]*arrival{}
}

// samePath compares both ends: the peer's address, and which of ours it reached.
func samePath(a, b *conn.StdNetEndpoint) bool {
	return a == b || a.AddrPort == b.AddrPort && a.SrcIP() == b.SrcIP() && a.SrcIfidx() == b.SrcIfidx()
}

// ClearSrc forgets which of our addresses the peer last reached.
func (r *route) ClearSrc() {
	if at := r.at.Load(); at != nil {
		r.at.CompareAndSwap(at, &conn.StdNetEndpoint{AddrPort: at.AddrPort})
	}
}

func (r *route) SrcToString() string { return r.SrcIP().String() }
func (r *route) DstToString() string { return r.address().String() }
func (r *route) DstIP() netip.Addr   { return r.address().Addr() }

func (r *route) DstToBytes() []byte {
	data, _ := r.address().MarshalBinary()
	return data
}

func (r *route) SrcIP() netip.Addr {
	if at := r.at.Load(); at != nil {
		return at.SrcIP()
	}
	return netip.Addr{}
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
