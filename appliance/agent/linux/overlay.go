package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/resolver"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/wg"
)

// overlay is the device in this process, the block in the hosts file, and the resolver that says the same to containers.
type overlay struct {
	config Config
	name   string // of the interface

	mu       sync.Mutex
	device   *wg.Device
	resolved map[string]netip.AddrPort // endpoints by name, as last found
	names    *resolver.Resolver
	unnamed  error // why the resolver does not answer
}

func newOverlay(c Config) *overlay {
	return &overlay{config: c, name: InterfaceName(c.Mesh), resolved: map[string]netip.AddrPort{}, names: &resolver.Resolver{Logger: c.Logger}}
}

// InterfaceName is the overlay's interface of a mesh: 15 characters, the most the kernel takes, so that meshes on one machine differ.
func InterfaceName(mesh appliance.MeshID) string { return "mesh-" + string(mesh[1:11]) }

func (o *overlay) Set(ctx context.Context, want host.OverlayState) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !want.Address.IsValid() {
		return o.down()
	}
	config, unresolved := o.translate(ctx, want)
	keys, err := identity.LoadNode(o.config.Installation.NodeKeys())
	if err != nil {
		return err
	}
	config.PrivateKey = wg.Key(keys.Overlay)
	if o.device != nil && o.device.Err() != nil { // somebody deleted the interface
		o.device.Close()
		o.device = nil
	}
	if o.device == nil {
		o.device, err = wg.Start(wg.Options{Interface: o.name, LearnedFile: filepath.Join(o.config.Installation.Node(), "endpoints.json"), Logger: o.config.Logger})
		if err != nil {
			return err
		}
	}
	if err := o.device.Set(ctx, config); err != nil {
		return err
	}
	if err := writeHosts(o.config.HostsFile, membership.HostsBlock(want.Hosts, membership.Domain)); err != nil {
		return err
	}
	o.unnamed = o.names.Set(want.Address, membership.Domain, want.Hosts)
	return unresolved
}

// warnings are for what the overlay can do without.
func (o *overlay) warnings() []wire.Warning {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unnamed == nil {
		return nil
	}
	return []wire.Warning{{Code: "names-in-containers", Severity: "warning", Text: o.unnamed.Error(), Remedy: appliance.AsError(o.unnamed).Hint}}
}

// translate gives the device's form. A name that cannot be resolved leaves its peer with the address it last had, or without one.
func (o *overlay) translate(ctx context.Context, want host.OverlayState) (wg.Config, error) {
	c := wg.Config{Interface: o.name, Address: want.Address, Port: want.Port, Relay: want.Relay}
	var problems []error
	for _, p := range want.Peers {
		key, err := wg.ParseKey(p.Key)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		peer := wg.Peer{Key: key, Address: p.Allowed, Keepalive: p.Keepalive}
		if p.Endpoint != "" {
			at, err := resolve(ctx, p.Endpoint)
			if err != nil {
				problems = append(problems, fmt.Errorf("resolve endpoint %s of peer %s: %w", p.Endpoint, key, err))
				at = o.resolved[p.Endpoint]
			} else {
				o.resolved[p.Endpoint] = at
			}
			peer.Endpoint = at
		}
		c.Peers = append(c.Peers, peer)
	}
	return c, errors.Join(problems...)
}

func resolve(ctx context.Context, endpoint string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(endpoint); err == nil {
		return at, nil
	}
	name, number, err := net.SplitHostPort(endpoint)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { // IPv4 first: fewer machines lack it
		return map[bool]int{true: 0, false: 1}[a.Unmap().Is4()] - map[bool]int{true: 0, false: 1}[b.Unmap().Is4()]
	})
	return netip.AddrPortFrom(addresses[0].Unmap(), uint16(port)), nil
}

func (o *overlay) down() error {
	o.names.Close()
	o.unnamed = nil
	if o.device != nil {
		o.device.Close()
		o.device = nil
	}
	return errors.Join(wg.Remove(o.name), writeHosts(o.config.HostsFile, nil))
}

func (o *overlay) State(context.Context) ([]host.OverlayPeerState, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.device == nil {
		return nil, nil
	}
	peers, err := o.device.State()
	if err != nil {
		return nil, err
	}
	states := make([]host.OverlayPeerState, 0, len(peers))
	for _, p := range peers {
		s := host.OverlayPeerState{Key: p.Key.String(), Handshake: p.LastHandshake, Received: int64(p.Rx), Sent: int64(p.Tx)}
		if p.Endpoint.IsValid() {
			s.Endpoint = p.Endpoint.String()
		}
		states = append(states, s)
	}
	return states, nil
}

func (o *overlay) Handshake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.device != nil {
		o.device.Handshake()
	}
}

func (o *overlay) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.names.Close()
	if o.device == nil {
		return nil
	}
	err := o.device.Close()
	o.device = nil
	return err
}

const maxHosts = 4 << 20

// writeHosts puts the block into the file, in place: in a container or a network namespace the file is a mount, which a rename would
// miss (NET-1). The lock is for other installations on this machine.
func writeHosts(path string, block []byte) error {
	how := os.O_RDWR
	if len(block) > 0 {
		how |= os.O_CREATE
	}
	f, err := os.OpenFile(path, how, 0o644)
	if os.IsNotExist(err) {
		return nil // and there is nothing to take out
	}
	if err != nil {
		return err
	}
	defer f.Close()
	fail := func(err error) error { return fmt.Errorf("write %s: %w", path, err) }
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fail(err)
	}
	have, err := io.ReadAll(io.LimitReader(f, maxHosts+1))
	if err != nil {
		return fail(err)
	}
	if len(have) > maxHosts {
		return fail(appliance.Errorf(appliance.Conflict, "it has more than %d bytes", maxHosts))
	}
	want := membership.ReplaceHosts(have, block)
	if string(want) == string(have) {
		return nil
	}
	if len(want) == 0 { // it was not there before, or as good as
		if err := os.Remove(path); err == nil {
			return nil
		} // a mount: it stays, and is emptied
	}
	if _, err := f.WriteAt(want, 0); err != nil {
		return fail(err)
	}
	if err := f.Truncate(int64(len(want))); err != nil {
		return fail(err)
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	return nil
}
