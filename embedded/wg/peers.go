package wg

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailscale/wireguard-go/device"
)

// PeerState is what the device knows of a peer.
type PeerState struct {
	Key           Key
	Endpoint      netip.AddrPort // zero: neither told nor heard
	LastHandshake time.Time      // zero: none yet
	Rx, Tx        uint64         // bytes
}

// State tells of every peer, in no order.
func (d *Device) State() ([]PeerState, error) {
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("read state of device %q: %w", d.name, err)
	}
	text, err := d.device.IpcGet()
	if err != nil {
		return nil, fmt.Errorf("read state of device %q: %w", d.name, err)
	}
	states, err := parseState(text)
	if err != nil {
		return nil, fmt.Errorf("read state of device %q: %w", d.name, err)
	}
	routes := *d.bind.routes.Load()
	for i, s := range states {
		if r := routes[s.Key]; r != nil {
			states[i].Endpoint = r.address()
		}
	}
	return states, nil
}

func parseState(text string) ([]PeerState, error) {
	var states []PeerState
	var seconds, nanoseconds int64
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		if name == "public_key" {
			var s PeerState
			if n, err := hex.Decode(s.Key[:], []byte(value)); err != nil || n != len(s.Key) {
				return nil, fmt.Errorf("peer key of %d characters", len(value))
			}
			states = append(states, s)
			continue
		}
		if len(states) == 0 {
			continue
		}
		s := &states[len(states)-1]
		var err error
		switch name {
		case "last_handshake_time_sec":
			seconds, err = strconv.ParseInt(value, 10, 64)
		case "last_handshake_time_nsec":
			nanoseconds, err = strconv.ParseInt(value, 10, 64)
			if seconds != 0 || nanoseconds != 0 {
				s.LastHandshake = time.Unix(seconds, nanoseconds)
			}
		case "rx_bytes":
			s.Rx, err = strconv.ParseUint(value, 10, 64)
		case "tx_bytes":
			s.Tx, err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of peer %s: %w", name, s.Key, err)
		}
	}
	return states, nil
}

// Handshake starts a handshake with these peers, or with all when none is named, and does not wait for it. Peers whose address
// is not known are left out.
func (d *Device) Handshake(peers ...Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(peers) == 0 {
		for key := range *d.bind.routes.Load() {
			peers = append(peers, key)
		}
	}
	d.call(peers)
}

const (
	callsAtOnce = 64 // more answers than that at a time look like an attack to the device, which then delays them
	callPause   = 20 * time.Millisecond
)

// call starts handshakes, a few at a time, and after a while again with those peers that stayed silent. By itself the device
// sends none within 5 seconds of the last: too late after a lost packet, for two that called at the same moment and crossed, or
// for a peer that was restarted twice. Close waits for it; d.mu is held.
func (d *Device) call(peers []Key) {
	if len(peers) == 0 || d.closed {
		return
	}
	d.done.Go(func() {
		before := d.peerStates()
		d.initiate(peers, false)
		for _, after := range []time.Duration{time.Second, 2 * time.Second} {
			if !d.wait(after + rand.N(after/4)) {
				return
			}
			now := d.peerStates()
			d.initiate(slices.DeleteFunc(slices.Clone(peers), func(k Key) bool {
				return now[k].Rx != before[k].Rx && !now[k].LastHandshake.IsZero()
			}), true)
		}
	})
}

// initiate sends initiations; anew gives up the present session, which has shown no life, and with it the device's wait.
func (d *Device) initiate(peers []Key, anew bool) {
	routes := *d.bind.routes.Load()
	started := 0
	for _, key := range peers {
		r := routes[key]
		peer, ok := d.device.LookupActivePeer(device.NoisePublicKey(key))
		if !ok || r == nil || !r.address().IsValid() {
			continue
		}
		if anew {
			peer.ExpireCurrentKeypairs()
		}
		peer.SendHandshakeInitiation(false) // its error is logged, and it tries again by itself
		if started++; started%callsAtOnce == 0 && !d.wait(callPause) {
			return
		}
	}
}

func (d *Device) peerStates() map[Key]PeerState {
	states, _ := d.State() // an error means that the device has stopped
	all := make(map[Key]PeerState, len(states))
	for _, s := range states {
		all[s.Key] = s
	}
	return all
}

// wait reports false when the device stops meanwhile.
func (d *Device) wait(pause time.Duration) bool {
	select {
	case <-time.After(pause):
		return true
	case <-d.stop:
		return false
	case <-d.device.Wait():
		return false
	}
}
