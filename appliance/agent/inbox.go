package agent

import (
	"crypto/ed25519"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Believes is what a node holds to be true about its mesh, and all it needs to judge what arrives.
type Believes struct {
	Mesh    appliance.MeshID
	Node    appliance.NodeID
	Signing ed25519.PublicKey
}

// document is a verified declaration or membership.
type document struct {
	envelope []byte
	number   appliance.Number
	digest   appliance.Digest
	version  int
	signed   time.Time
	body     []byte
}

// open verifies an envelope addressed to this node (or to everybody) before anything in it is parsed (DEC-3).
func (b Believes) open(data []byte, kind wire.Kind, to string) (document, error) {
	h, body, err := wire.Open(data, kind, b.Signing)
	if err != nil {
		return document{}, err
	}
	switch {
	case h.Mesh != b.Mesh || h.From != string(b.Mesh):
		return document{}, appliance.Errorf(appliance.Denied, "open %s: it comes from mesh %s, this node is in %s", kind, appliance.Quote(string(h.Mesh)), b.Mesh)
	case h.To != to:
		return document{}, appliance.Errorf(appliance.Denied, "open %s: it is addressed to %s, not to %s", kind, appliance.Quote(h.To), to)
	case h.Version < 0 || h.Version > wire.Version:
		return document{}, appliance.Errorf(appliance.Invalid, "open %s: wire version %d, this agent reads %d", kind, h.Version, wire.Version)
	}
	return document{envelope: data, number: h.Number(), digest: h.Digest, version: h.Version, signed: h.Time, body: body}, nil
}

// latest holds the newest document of a kind until the loop takes it. A newer one overtakes it; an older one never does, however late it
// is played.
type latest struct {
	mu   sync.Mutex
	doc  document
	wake chan struct{}
}

func newLatest() *latest { return &latest{wake: make(chan struct{}, 1)} }

func (l *latest) put(doc document) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doc.envelope != nil {
		if err := wire.Judge(l.doc.number, l.doc.digest, doc.number, doc.digest); err != nil {
			return err
		}
	}
	l.doc = doc
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

func (l *latest) take() (doc document, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	doc, l.doc = l.doc, document{}
	return doc, doc.envelope != nil
}

// newer says whether a document with a higher number waits, and wakes the loop again for it.
func (l *latest) newer(number appliance.Number) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.doc.envelope == nil || l.doc.number.Compare(number) <= 0 {
		return false
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}
