package wg

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailscale/wireguard-go/tun"
	"golang.org/x/sys/unix"
)

// tunnel is the TUN device as the WireGuard device sees it. A decrypted packet from one peer to another is turned back: instead
// of going to the kernel it comes out of the next Read, as if an application had sent it.
type tunnel struct {
	tun.Device
	owners atomic.Pointer[owners] // nil before the first Set: there are no peers
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
		return 0, nil
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
