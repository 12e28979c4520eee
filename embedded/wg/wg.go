// Package wg is the node's WireGuard device in userspace: it is told everything it shall be with Set, learns where peers are
// from their packets, turns packets between peers back inside (relay), and leaves its interface, address and route behind when
// its process ends, for the next one to take up. Begin with Start. Nothing about meshes, nodes or names belongs here: who is a
// peer is decided elsewhere.
package wg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/tailscale/wireguard-go/device"
)

// Options are what cannot change while the device runs.
type Options struct {
	Interface   string       // required: name of the network interface
	LearnedFile string       // where peers were last heard is kept here; empty: not kept
	Logger      *slog.Logger // nil: the default one
}

// Device is a running WireGuard device. Its methods may be called at the same time.
type Device struct {
	name    string
	log     *slog.Logger
	tunnel  *tunnel
	bind    *bind
	device  *device.Device
	learned *learned

	ready chan struct{} // closed when the first Set is through
	stop  chan struct{} // closed by Close
	done  sync.WaitGroup

	mu      sync.Mutex // guards the following, and orders Set and Close
	applied Config     // the last one that Set brought through
	closed  bool
}

// The device's queues count batches of up to 128 packets. Its own sizes (1024) let one stream fill hundreds of megabytes;
// with these the sender waits instead. Its pools stay without a limit: a limit that is reached blocks the whole device.
const (
	batchesInFlight = 32
	batchesStaged   = 8 // for a peer without a session, until it has one
)

// Start opens the interface. Packets flow from the first Set on.
func Start(o Options) (*Device, error) {
	log := o.Logger
	if log == nil {
		log = slog.Default()
	}
	native, err := openTUN(o.Interface)
	if err != nil {
		return nil, err
	}
	if err := persist(native); err != nil {
		native.Close()
		return nil, fmt.Errorf("keep interface %q beyond the process: %w%s", o.Interface, err, wayOut(err))
	}
	d := &Device{
		name: o.Interface, log: log,
		learned: openLearned(o.LearnedFile, log),
		tunnel:  newTunnel(native),
		ready:   make(chan struct{}), stop: make(chan struct{}),
	}
	d.bind = newBind(d.learned.note)
	d.device = device.NewDevice(d.tunnel, d.bind, deviceLog(log),
		device.WithQueueInboundSize(batchesInFlight),
		device.WithQueueOutboundSize(batchesInFlight),
		device.WithQueueStagedSize(batchesStaged))
	d.done.Go(func() { d.learned.run(d.stop, d.endpoints) })
	return d, nil
}

// Ready waits for the first Set to be through.
func (d *Device) Ready(ctx context.Context) error {
	select {
	case <-d.ready:
		return d.Err()
	case <-d.device.Wait():
		return d.Err()
	case <-ctx.Done():
		return fmt.Errorf("wait for device %q: nothing set yet: %w", d.name, ctx.Err())
	}
}

// Done is closed when the device has stopped; Err says why.
func (d *Device) Done() <-chan struct{} { return d.device.Wait() }

// ErrClosed is what a closed device answers.
var ErrClosed = errors.New("device is closed")

// Err is nil while the device runs.
func (d *Device) Err() error {
	select {
	case <-d.stop: // asked first: a closed device has stopped too
		return ErrClosed
	default:
	}
	select {
	case <-d.device.Wait():
		return fmt.Errorf("device %q stopped: its interface was deleted; start it again", d.name)
	default:
		return nil
	}
}

// Close stops the device. Interface, address and route stay, see Remove.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.stop)
		d.device.Close()
		d.done.Wait()
	}
	return nil
}

// endpoints are the peers' addresses as far as known.
func (d *Device) endpoints() map[Key]netip.AddrPort {
	at := make(map[Key]netip.AddrPort)
	for key, r := range *d.bind.routes.Load() {
		if a := r.address(); a.IsValid() {
			at[key] = a
		}
	}
	return at
}
