package controller

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"slices"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// Artifacts is the artifact store as the controller needs it.
type Artifacts interface {
	Port() uint16
	Follow(declared func(appliance.NodeID, *ecdsa.PublicKey) ([]appliance.Digest, error)) // asked at every pull
	List(module appliance.ModuleName) ([]artifacts.Stored, error)
	Find(appliance.Digest) ([]artifacts.Stored, error)
	Collect(keep func(appliance.Digest) bool) (artifacts.Collected, error)
	Scrub(context.Context) ([]artifacts.Damaged, error)
	Warnings() []wire.Warning
}

const (
	grantLasts   = 15 * time.Minute // also a large push over a slow line begins its last request within that
	maxModule    = 2 << 30          // bytes that a module may hold, where nothing else is asked for
	maxMaxModule = 64 << 30
	reach        = 10   // plans before the approved one whose artifacts are kept: how far a rollback can go
	maxListed    = 2000 // artifacts in one answer
)

// grantArtifact gives an operator leave to push.
func (c *Controller) grantArtifact(ctx context.Context, a asked, ask operators.GrantPush) (any, error) {
	if _, err := appliance.ParseName[appliance.ModuleName]("module", string(ask.Module)); err != nil {
		return nil, err
	}
	of := string(ask.Module)
	if ask.Artifact != "" {
		of += "/" + ask.Artifact
		if _, _, err := artifacts.ParsePath(of); err != nil {
			return nil, err
		}
	}
	if ask.MaxBytes == 0 {
		ask.MaxBytes = maxModule
	}
	if ask.MaxBytes < 1 || ask.MaxBytes > maxMaxModule {
		return nil, appliance.Errorf(appliance.Invalid, "grant a push of %s: %d bytes; 1 to %d", of, ask.MaxBytes, int64(maxMaxModule))
	}
	grant := artifacts.Grant{Module: ask.Module, Artifact: ask.Artifact, MaxBytes: ask.MaxBytes, Expires: a.by.At.Add(grantLasts).UTC().Truncate(time.Second)}
	if err := c.cfg.Store.RecordAction(ctx, a.by, "artifact grant", of, grant); err != nil {
		return nil, err
	}
	h := c.header(wire.KindGrant, a.by.Who)
	h.Nonce = rand.Text()
	text, err := artifacts.IssueGrant(grant, h, c.cfg.Keys.Signing)
	return operators.GrantedPush{Grant: text, Port: c.cfg.Artifacts.Port(), MaxBytes: grant.MaxBytes, Expires: grant.Expires}, err
}

func (c *Controller) listArtifacts(_ context.Context, a asked, ask operators.ListArtifacts) (any, error) {
	all, err := c.cfg.Artifacts.List(ask.Module)
	if err != nil {
		return nil, err
	}
	more := max(len(all)-maxListed, 0)
	return operators.Artifacts{Artifacts: shownArtifacts(all[:len(all)-more]), More: more}, nil
}

func (c *Controller) showArtifact(ctx context.Context, a asked, ask operators.ShowArtifact) (any, error) {
	found, err := c.cfg.Artifacts.Find(ask.Digest)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, appliance.Errorf(appliance.NotFound, "there is no artifact %s", appliance.Quote(string(ask.Digest))).WithNext("mesh artifact list")
	}
	out := operators.ShownArtifact{Digest: ask.Digest, Stored: shownArtifacts(found), Modules: []appliance.ModuleName{}, Nodes: c.roster.naming(ask.Digest)}
	modules, err := c.cfg.Store.Modules(ctx)
	for _, m := range modules {
		for _, of := range m.Manifest.Artifacts {
			if of.Digest == ask.Digest && !slices.Contains(out.Modules, m.Name) {
				out.Modules = append(out.Modules, m.Name)
			}
		}
	}
	return out, err
}

func shownArtifacts(all []artifacts.Stored) []operators.Artifact {
	out := make([]operators.Artifact, 0, len(all))
	for _, s := range all {
		out = append(out, operators.Artifact{Reference: s.String(), Kind: s.Kind, MediaType: s.MediaType, Platforms: append([]string{}, s.Platforms...),
			Size: s.Size, Pushed: s.Pushed, Damaged: s.Damaged})
	}
	return out
}

// collectArtifacts removes, again and again, what no plan within reach names.
func (c *Controller) collectArtifacts(ctx context.Context) error {
	return c.every(ctx, c.cfg.Collect, time.Hour, func() {
		kept, err := c.cfg.Store.KeptArtifacts(ctx, reach)
		if err != nil {
			c.log.Warn("collect artifacts", "err", err)
			return
		}
		done, err := c.cfg.Artifacts.Collect(func(d appliance.Digest) bool {
			_, keep := slices.BinarySearch(kept, d)
			return keep
		})
		if err != nil || done != (artifacts.Collected{}) {
			c.log.Info("artifacts collected", "manifests", done.Manifests, "blobs", done.Blobs, "bytes", done.Bytes, "err", err)
		}
	})
}

// scrubArtifacts has the store read again and again. What is damaged stands in the hub's warnings.
func (c *Controller) scrubArtifacts(ctx context.Context) error {
	return c.every(ctx, c.cfg.Scrub, 24*time.Hour, func() {
		damaged, err := c.cfg.Artifacts.Scrub(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Warn("scrub artifacts", "err", err)
		}
		for _, d := range damaged {
			c.log.Error("artifact damaged", "digest", d.Digest, "repositories", d.Repositories)
		}
	})
}

// every does something again and again until ctx ends.
func (c *Controller) every(ctx context.Context, pause, otherwise time.Duration, do func()) error {
	if pause == 0 {
		pause = otherwise
	}
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			do()
		}
	}
}

// named are the artifacts of one declaration.
type named struct {
	by        appliance.Digest // the declaration
	artifacts []appliance.Digest
}

// declaredArtifacts gives what a node's present declaration names. The caller has proved to hold key.
func (c *Controller) declaredArtifacts(id appliance.NodeID, key *ecdsa.PublicKey) (names []appliance.Digest, err error) {
	known := false
	c.roster.with(id, func(m *member) {
		if known = m.tls.Equal(key); known {
			names, err = m.named()
		}
	})
	if !known {
		return nil, appliance.Errorf(appliance.Denied, "node %s is not in the mesh, or not under this key", id)
	}
	return names, err
}

// naming gives the nodes whose present declaration names an artifact, sorted.
func (r *roster) naming(d appliance.Digest) []appliance.NodeName {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []appliance.NodeName{}
	for _, m := range r.nodes {
		if names, err := m.named(); err == nil && slices.Contains(names, d) {
			out = append(out, m.name)
		}
	}
	slices.Sort(out)
	return out
}

// named reads the declaration once. The caller holds the roster.
func (m *member) named() ([]appliance.Digest, error) {
	if m.declared.Digest == "" || m.artifacts.by == m.declared.Digest {
		return m.artifacts.artifacts, nil
	}
	h, body, err := wire.Sealed(m.declared.Envelope)
	if err != nil {
		return nil, err
	}
	var content wire.Content
	if h.Version >= wire.Oldest { // an older form names none
		err = wire.Decode(body, &content)
	}
	if err != nil {
		return nil, err
	}
	names, err := artifacts.Named(content)
	if err == nil {
		m.artifacts = named{m.declared.Digest, names}
	}
	return names, err
}
