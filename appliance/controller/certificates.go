package controller

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
)

// restAfterKey is the least time between the certificates for one key and the next; for further ones it doubles.
const restAfterKey = 2 * time.Second

// certify signs what these nodes ask for and their approved plans name (PKI-3). It comes before they are rendered, so that what a kill
// left undone is made up for. A request that cannot be answered leaves its resource waiting, and nothing else.
func (c *Controller) certify(ctx context.Context, approved map[appliance.NodeID]store.ApprovedPlan, nodes []appliance.NodeID) (signed bool, err error) {
	requests, err := c.cfg.Store.CertificateRequests(ctx)
	if err != nil || len(requests) == 0 {
		return false, err
	}
	plans := map[appliance.NodeID]resolve.Plan{}
	for _, r := range requests {
		if _, known := plans[r.Node]; known || !slices.Contains(nodes, r.Node) {
			continue
		}
		if a, ok := approved[r.Node]; ok {
			if plans[r.Node], err = a.Plan(); err != nil {
				return false, err
			}
		}
	}
	issued, err := c.cfg.Store.Certificates(ctx)
	if err != nil {
		return false, err
	}
	due, later, in := certificates.Due(plans, requests, issued, time.Now(), restAfterKey)
	for _, want := range due {
		if err := c.sign(&want); err != nil {
			c.log.Warn("certificate not issued", "node", want.Node, "instance", want.Instance, "name", want.Name, "err", err)
			continue
		}
		if _, err := c.cfg.Store.IssueCertificate(ctx, own(), want, false); err != nil {
			return false, err
		}
		signed = true
	}
	if len(later) > 0 {
		c.waiting.add(later, in, c.due.add)
	}
	return signed, nil
}

// waiting are nodes whose certificates are looked at again: all together, however often they ask.
type waiting struct {
	mu    sync.Mutex
	nodes map[appliance.NodeID]bool
	timer *time.Timer
	at    time.Time
}

func (w *waiting) add(nodes []appliance.NodeID, in time.Duration, then func(...appliance.NodeID)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nodes == nil {
		w.nodes = map[appliance.NodeID]bool{}
	}
	for _, n := range nodes {
		w.nodes[n] = true
	}
	at := time.Now().Add(in)
	if w.timer != nil && !at.Before(w.at) {
		return
	}
	if w.timer != nil {
		w.timer.Stop()
	}
	w.at = at
	w.timer = time.AfterFunc(in, func() {
		w.mu.Lock()
		all := slices.Collect(maps.Keys(w.nodes))
		w.nodes, w.timer = nil, nil
		w.mu.Unlock()
		then(all...)
	})
}

// sign completes a certificate that is due.
func (c *Controller) sign(want *certificates.Certificate) error {
	key, err := pki.ParseRequest(want.Request)
	if err != nil {
		return err
	}
	der, err := c.cfg.Authority.Issue(pki.Request{Public: key, Names: want.Names, Usage: pki.Server | pki.Client, Now: time.Now()})
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("read what was signed: %w", err)
	}
	want.DER, want.Serial, want.IssuedAt, want.EndsAt = der, pki.Serial(leaf), time.Now(), leaf.NotAfter
	return nil
}
