// Package fair is a listener of which no single address takes everything: who comes with more connections than its share is turned away,
// before a byte is read. How many there may be in all is bounded elsewhere.
package fair

import (
	"net"
	"net/netip"
	"sync"
)

// Listener gives each address at most so many connections at a time.
func Listener(l net.Listener, each int) net.Listener {
	return &listener{Listener: l, each: each, have: map[netip.Addr]int{}}
}

type listener struct {
	net.Listener
	each int

	mu   sync.Mutex
	have map[netip.Addr]int // connections that are open
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(c)
		if l.take(from) {
			return &conn{Conn: c, done: sync.OnceFunc(func() { l.give(from) })}, nil
		}
		c.Close()
	}
}

// addressOf is who a connection is from; those of whom that cannot be said share one.
func addressOf(c net.Conn) netip.Addr {
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	return from.Addr().Unmap().WithZone("")
}

func (l *listener) take(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.have[from] >= l.each {
		return false
	}
	l.have[from]++
	return true
}

func (l *listener) give(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.have[from]--; l.have[from] == 0 {
		delete(l.have, from)
	}
}

type conn struct {
	net.Conn
	done func()
}

func (c *conn) Close() error {
	defer c.done()
	return c.Conn.Close()
}
