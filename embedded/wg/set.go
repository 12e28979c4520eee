package wg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/wireguard-go/device"
	"golang.org/x/sys/unix"
)

// Set makes the device be what c says: peers not in it are cut at once, those that did not change keep their sessions, and new
// ones whose address is known are called. Setting the same again changes nothing. After an error, set again.
func (d *Device) Set(ctx context.Context, c Config) error {
	if err := c.check(d.name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.Err(), ctx.Err()); err != nil {
		return fmt.Errorf("set device %q: %w", d.name, err)
	}
	mtu := c.MTU
	if mtu == 0 {
		mtu = chooseMTU(d.name)
	}
	if err := configureLink(d.name, c.Address, mtu); err != nil {
		return err
	}
	d.tunnel.setMTU(mtu)

	d.routePeers(c)
	d.tunnel.owners.Store(newOwners(c, mtu))
	if err := d.setKeyAndPort(c); err != nil {
		return err
	}
	added, err := d.setPeers(c)
	if err != nil {
		return err
	}
	if err := d.device.Up(); err != nil {
		return portError(d.name, c.Port, err)
	}
	d.applied = c
	d.applied.Peers = slices.Clone(c.Peers)
	select {
	case <-d.ready:
	default:
		close(d.ready)
	}
	d.call(added)
	return nil
}

// routePeers cuts the peers that are gone and lays a route to those that are new.
func (d *Device) routePeers(c Config) {
	told := make(map[Key]Peer, len(d.applied.Peers))
	for _, p := range d.applied.Peers {
		told[p.Key] = p
	}
	old := *d.bind.routes.Load()
	routes := make(map[Key]*route, len(c.Peers))
	for _, p := range c.Peers {
		r := old[p.Key]
		switch {
		case r == nil && p.Endpoint.IsValid():
			r = newRoute(p.endpoint())
		case r == nil:
			r = newRoute(d.learned.known[p.Key])
		case p.Endpoint != told[p.Key].Endpoint:
			r.tell(p.endpoint())
		}
		routes[p.Key] = r
	}
	d.bind.routes.Store(&routes)
	for key := range old {
		if routes[key] == nil {
			d.device.RemovePeer(device.NoisePublicKey(key))
			d.learned.note()
		}
	}
}

func (d *Device) setKeyAndPort(c Config) error {
	if !c.PrivateKey.same(d.applied.PrivateKey) {
		if err := d.device.IpcSet("private_key=" + c.PrivateKey.hex() + "\n"); err != nil {
			return fmt.Errorf("set private key of device %q: refused by the device", d.name)
		}
	}
	select {
	case <-d.ready:
		if c.Port == d.applied.Port {
			return nil
		}
	default:
	}
	if err := d.device.IpcSet(fmt.Sprintf("listen_port=%d\n", c.Port)); err != nil {
		// The device has let go of its old port: take it again.
		back := d.device.IpcSet(fmt.Sprintf("listen_port=%d\n", d.applied.Port))
		return errors.Join(portError(d.name, c.Port, err), back)
	}
	return nil
}

func portError(name string, port uint16, err error) error {
	hint := ""
	if errors.Is(err, unix.EADDRINUSE) {
		hint = "; another process has it: stop that, or give another port"
	}
	return fmt.Errorf("open UDP port %d of device %q: %w%s", port, name, err, hint)
}

// setPeers makes or changes every peer and returns the new ones.
func (d *Device) setPeers(c Config) (added []Key, err error) {
	keepalive := make(map[Key]int, len(d.applied.Peers))
	for _, p := range d.applied.Peers {
		keepalive[p.Key] = p.keepaliveSeconds()
	}
	var lines strings.Builder
	var fresh []Peer
	for _, p := range c.Peers {
		peer, ok := d.device.LookupActivePeer(device.NoisePublicKey(p.Key))
		if !ok {
			fresh = append(fresh, p)
			continue
		}
		peer.SetAllowedIPs(p.addresses())
		if seconds := p.keepaliveSeconds(); seconds != keepalive[p.Key] {
			fmt.Fprintf(&lines, "public_key=%s\npersistent_keepalive_interval=%d\n", p.Key.hex(), seconds)
		}
	}
	for _, p := range fresh { // last: they may get addresses that others have just lost
		peer, err := d.device.NewPeer(device.NoisePublicKey(p.Key))
		if err != nil {
			return nil, fmt.Errorf("add peer %s to device %q: %w", p.Key, d.name, err)
		}
		peer.SetAllowedIPs(p.addresses())
		fmt.Fprintf(&lines, "public_key=%s\nendpoint=%s\npersistent_keepalive_interval=%d\n", p.Key.hex(), p.Key, p.keepaliveSeconds())
		added = append(added, p.Key)
	}
	if lines.Len() > 0 {
		if err := d.device.IpcSet(lines.String()); err != nil {
			return nil, fmt.Errorf("set peers of device %q: %w", d.name, err)
		}
	}
	return added, nil
}
