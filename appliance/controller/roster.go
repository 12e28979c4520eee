package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"encoding/base64"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// roster is what every message needs of the records: whose key, and what was last sent. It is in memory, so that nodes are heard and
// judged while the store is away (BUS-13).
type roster struct {
	mu       sync.Mutex
	nodes    map[appliance.NodeID]*member
	departed map[appliance.NodeID][]*departed // by the id they had; of one that was replaced it is its successor's
}

// departed is a machine that is a node no more.
type departed struct {
	identity ed25519.PublicKey
	told     time.Time
	shut     time.Time // tried last
}

// member is one node in the roster.
type member struct {
	name         appliance.NodeName
	identity     ed25519.PublicKey
	tls          *ecdsa.PublicKey
	capabilities wire.Capabilities
	declared     store.Issued     // the last issued; zero before the first
	artifacts    named            // what that names
	ahead        appliance.Number // reported, and never issued by these records (DEC-3); zero where none
	resent       time.Time        // the declaration
	noticed      time.Time        // the membership
	turns        versionTurns
	runs         runs
	seen         time.Time
	handshake    time.Time
}

// load takes the records in place of what was there. What only messages tell (runs, handshakes) stays.
func (r *roster) load(ctx context.Context, s *store.Store) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	declared, err := s.Latest(ctx)
	if err != nil {
		return err
	}
	gone, err := s.Departed(ctx, time.Now())
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.departed = map[appliance.NodeID][]*departed{}
	for _, d := range gone {
		key, err := base64.StdEncoding.DecodeString(d.Identity)
		if err != nil {
			return err
		}
		r.departed[d.Node] = append(r.departed[d.Node], &departed{identity: key})
	}
	fresh := make(map[appliance.NodeID]*member, len(nodes))
	for _, n := range nodes {
		public, err := identity.ParsePublic(n.Keys)
		if err != nil {
			return err
		}
		m := r.nodes[n.ID]
		if m == nil {
			m = &member{capabilities: n.Capabilities, seen: n.LastSeen}
		}
		m.name, m.identity, m.tls, m.declared = n.Name, public.Identity, public.TLS, declared[n.ID]
		fresh[n.ID] = m
	}
	r.nodes = fresh
	return nil
}

func (r *roster) size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.nodes)
}

// key gives the live identity key of a node.
func (r *roster) key(id appliance.NodeID) (ed25519.PublicKey, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.nodes[id]
	if m == nil {
		return nil, false
	}
	return m.identity, true
}

// with calls f on a node's entry under the lock; f must not call out.
func (r *roster) with(id appliance.NodeID, f func(*member)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.nodes[id]; m != nil {
		f(m)
	}
}

// behind refuses to push to a node that has seen a later declaration than these records ever issued. Only that node's pushes stop: its
// report is its own word, and proves nothing about others.
func (r *roster) behind(id appliance.NodeID, name appliance.NodeName) (err error) {
	r.with(id, func(m *member) {
		if m.ahead.Compare(m.declared.Number) > 0 {
			err = appliance.Errorf(appliance.Conflict, "push to %s: it carried out declaration %s, the records know none after %s", name, m.ahead, m.declared.Number).
				WithHint("the store is older than the mesh: it was restored from a backup without a new epoch")
		}
	})
	return err
}

// runs tells two machines under one key apart from one machine that restarted (NODE-6).
type runs struct {
	current string
	last    map[string]uint64 // highest sequence by run; bounded
	back    time.Time         // when a run that had given way to another last spoke again; zero: never
}

// maxRuns bounds the runs remembered of one node.
const maxRuns = 64

// take judges an alive's run and sequence; false means that it was heard before. A run that speaks again after it gave way to another
// is a second machine under the same key.
func (r *runs) take(run string, sequence uint64, now time.Time) bool {
	last, known := r.last[run]
	switch {
	case known && sequence <= last:
		return false
	case known && run != r.current:
		r.back = now
	case !known && (r.last == nil || len(r.last) >= maxRuns):
		r.last = map[string]uint64{r.current: r.last[r.current]}
	}
	r.current, r.last[run] = run, sequence
	return true
}

// versionTurns bounds how often one node has declarations composed by saying that it understands another version: each is recorded.
type versionTurns struct {
	left  int
	since time.Time
}

const (
	maxTurns = 4
	turnsPer = time.Minute
)

func (v *versionTurns) take(now time.Time) bool {
	if now.Sub(v.since) >= turnsPer {
		v.left, v.since = maxTurns, now
	}
	if v.left == 0 {
		return false
	}
	v.left--
	return true
}

// clone says whether two machines speak under the key: it ends once only one has spoken for as long as a lost node is waited for.
func (r *runs) clone(now time.Time) bool { return !r.back.IsZero() && now.Sub(r.back) < lostAfter }

// add puts a node that was just recorded into the roster, in the place of the machine that it replaces; one that is there stays.
func (r *roster) add(id appliance.NodeID, m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch have := r.nodes[id]; {
	case have == nil:
	case have.identity.Equal(m.identity):
		return
	default:
		r.departed[id] = append(r.departed[id], &departed{identity: have.identity})
		m.declared = have.declared
	}
	r.nodes[id] = m
}

// departedAs gives the identity key of the departed machine that signed an alive, nil where none did; told says that it has just been
// told. Its time and sequence do not matter: an old alive has the same answer.
func (r *roster) departedAs(id appliance.NodeID, alive []byte, mesh appliance.MeshID) (identity ed25519.PublicKey, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.departed[id] {
		h, _, err := wire.Open(alive, wire.KindAlive, d.identity)
		if err != nil || h.From != string(id) || h.Mesh != mesh || h.To != string(mesh) {
			continue
		}
		now := time.Now()
		if told = now.Sub(d.told) < sendAgain; !told {
			d.told = now
		}
		return d.identity, told
	}
	return nil, false
}

// shuts says whether to let in no more who departed under an id on whose subject too much is said; once in a while, whatever comes.
func (r *roster) shuts(id appliance.NodeID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.departed[id]) == 0 || now.Sub(r.departed[id][0].shut) < sendAgain {
		return false
	}
	r.departed[id][0].shut = now
	return true
}

// remove takes out a node that is none.
func (r *roster) remove(id appliance.NodeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.nodes[id]; m != nil {
		r.departed[id] = append(r.departed[id], &departed{identity: m.identity})
		delete(r.nodes, id)
	}
}

// chosen gives the nodes named, all where none is; a name that no node has is refused.
func (r *roster) chosen(names []appliance.NodeName) (map[appliance.NodeID]appliance.NodeName, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[appliance.NodeID]appliance.NodeName{}
	for id, m := range r.nodes {
		if len(names) == 0 || slices.Contains(names, m.name) {
			out[id] = m.name
		}
	}
	for _, name := range names {
		if !slices.Contains(slices.Collect(maps.Values(out)), name) {
			return nil, noNode(name)
		}
	}
	return out, nil
}
