package hosttest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/novox/mesh/appliance/agent/host"
)

// Overlay says what the device was last set to.
func (m *Machine) Overlay() (o host.OverlayState) {
	m.with(func() { o = m.overlay })
	return
}

// Handshakes says how often a handshake was asked for, Closed how often the device was let go.
func (m *Machine) Handshakes() (n int) { m.with(func() { n = m.handshakes }); return }
func (m *Machine) Closed() (n int)     { m.with(func() { n = m.closed }); return }

// SetHandshake says when a peer was last heard.
func (m *Machine) SetHandshake(key string, at time.Time) {
	m.with(func() { s := m.peers[key]; s.Key, s.Handshake = key, at; m.peers[key] = s })
}

type overlay struct{ m *Machine }

func (o overlay) Set(ctx context.Context, want host.OverlayState) error {
	return o.m.step(ctx, "set", "overlay", func() error {
		have, wanted := overlayCommands(o.m.overlay), overlayCommands(want)
		for _, line := range have {
			if !slices.Contains(wanted, line) {
				o.m.ran("undo: %s", line)
			}
		}
		for _, line := range wanted {
			if !slices.Contains(have, line) {
				o.m.ran("%s", line)
			}
		}
		o.m.overlay = want
		peers := map[string]host.OverlayPeerState{}
		for _, p := range want.Peers {
			s := o.m.peers[p.Key]
			s.Key, s.Endpoint = p.Key, p.Endpoint
			peers[p.Key] = s
		}
		o.m.peers = peers
		return nil
	})
}

func (o overlay) State(ctx context.Context) (states []host.OverlayPeerState, err error) {
	err = o.m.step(ctx, "state", "overlay", func() error {
		if o.m.overlay.Address.IsValid() {
			states = []host.OverlayPeerState{} // up, if alone
		}
		for _, key := range slices.Sorted(maps.Keys(o.m.peers)) {
			states = append(states, o.m.peers[key])
		}
		return nil
	})
	return states, err
}

func (o overlay) Handshake()   { o.m.with(func() { o.m.handshakes++ }) }
func (o overlay) Close() error { o.m.with(func() { o.m.closed++ }); return nil }
