package fair

import (
	"io"
	"net"
	"testing"
	"time"
)

// SAFE-2: who opens all connections that one may leaves some to others, and has its share again when it lets go.
func TestShares(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listener(inner, 2)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.WriteString(c, "x")
				io.Copy(io.Discard, c)
			}()
		}
	}()
	dial := func(from byte) (c net.Conn, served bool) {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}}).Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = io.ReadFull(c, make([]byte, 1))
		return c, err == nil
	}
	first, one := dial(2)
	_, two := dial(2)
	_, three := dial(2)
	_, other := dial(3)
	if !one || !two || three || !other {
		t.Errorf("served: %v %v, beyond its share %v, another %v", one, two, three, other)
	}
	first.Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, again := dial(2); again {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it has let go, and is not served")
		}
	}
}
