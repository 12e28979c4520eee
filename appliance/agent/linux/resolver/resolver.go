// Package resolver answers names on the node's overlay address, for containers of this machine and for peers: the mesh's own from the
// membership, everything else from the machine's own resolvers (NET-1). It keeps nothing and is asked by nobody who did not choose it.
package resolver

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/netutil"

	"github.com/novox/mesh/appliance"
)

// Bounds of what one asks, and of what all ask together.
const (
	port       = 53
	maxQueries = 200             // at once by either protocol; more are dropped, as a busy network would
	maxStreams = 50              // connections at once
	maxPacket  = 4 << 10         // of an answer that is no stream's
	idle       = 5 * time.Second // of a connection
)

// Resolver answers while it is set. The zero value is one that is not.
type Resolver struct {
	Upstreams string       // file that names the machine's own resolvers; empty: /etc/resolv.conf
	Logger    *slog.Logger // nil: the default one

	names atomic.Pointer[names]

	mu      sync.Mutex // never taken while answering
	at      netip.Prefix
	servers []*dns.Server
}

// Set makes it answer on port 53 of the address with hosts, whole and idempotent. An error means that it does not: the port is taken.
func (r *Resolver) Set(at netip.Prefix, domain string, hosts map[appliance.NodeName]netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.names.Store(&names{domain, maps.Clone(hosts)})
	if r.servers != nil && r.at == at {
		return nil
	}
	r.close()
	if err := r.listen(at); err != nil {
		return appliance.Errorf(appliance.Conflict, "answer names on %s: %w", netip.AddrPortFrom(at.Addr(), port), err).
			WithHint("containers on this machine resolve no names; find what listens there: ss -lnup sport = :53")
	}
	r.at = at
	return nil
}

// Close ends answering.
func (r *Resolver) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
}

func (r *Resolver) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, s := range r.servers {
		_ = s.ShutdownContext(ctx) // who is still being answered does not keep the sockets
	}
	r.servers = nil
}

func (r *Resolver) listen(at netip.Prefix) error {
	where := netip.AddrPortFrom(at.Addr(), port)
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(where))
	if err != nil {
		return err
	}
	streams, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(where))
	if err != nil {
		packets.Close()
		return err
	}
	asking := make(chan struct{}, maxQueries)
	handle := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		select {
		case asking <- struct{}{}:
			r.serve(w, q, at)
			<-asking
		default: // dropped
		}
	})
	r.servers = []*dns.Server{
		{PacketConn: packets, Handler: handle, UDPSize: maxPacket},
		{Listener: netutil.LimitListener(streams, maxStreams), Handler: handle, ReadTimeout: idle, WriteTimeout: idle,
			IdleTimeout: func() time.Duration { return idle }, MaxTCPQueries: 100},
	}
	for _, s := range r.servers {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		go func() {
			if err := s.ActivateAndServe(); err != nil && !errors.Is(err, net.ErrClosed) {
				r.log().Error("answer names", "at", where, "err", err)
			}
		}()
		<-ready // before that it cannot be shut down
	}
	return nil
}

func (r *Resolver) log() *slog.Logger {
	if r.Logger != nil {
		return r.Logger
	}
	return slog.Default()
}

// serve answers one question of somebody who may ask.
func (r *Resolver) serve(w dns.ResponseWriter, q *dns.Msg, at netip.Prefix) {
	from, err := netip.ParseAddrPort(w.RemoteAddr().String())
	if err != nil || !mayAsk(from.Addr().Unmap(), at) {
		return
	}
	_, stream := w.RemoteAddr().(*net.TCPAddr)
	answer := r.names.Load().answer(q)
	if answer == nil {
		answer = r.forward(q, stream, at.Addr())
	}
	size := dns.MaxMsgSize
	if !stream {
		size = dns.MinMsgSize
		if o := q.IsEdns0(); o != nil {
			size = max(size, min(int(o.UDPSize()), maxPacket))
		}
	}
	answer.Truncate(size)
	_ = w.WriteMsg(answer) // whoever asked has gone
}
