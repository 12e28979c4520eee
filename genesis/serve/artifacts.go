package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/novox/mesh/appliance/artifactstore"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/pki"
)

func (h *hub) newArtifacts() *artifactstore.Store {
	return artifactstore.New(artifactstore.Config{Dir: Artifacts(h.install), Port: h.settings.Ports.Artifacts, Mesh: h.settings.Mesh,
		Signing: h.keys.Signing.Public().(ed25519.PublicKey), Log: h.log.With("part", "artifacts")})
}

// artifactsTLS is how the store is spoken to: our clients verify its fixed name, container engines the name or address they dial.
func (h *hub) artifactsTLS(key *ecdsa.PrivateKey) (*tls.Config, error) {
	address := h.settings.Hub.Address
	own, err := h.issue(pki.Request{Public: &key.PublicKey, Names: []string{pki.ArtifactsName(h.settings.Mesh), string(h.settings.Hub.Name) + ".internal"},
		Addresses: []netip.Addr{address}, Endpoints: []string{address.String()}, Usage: pki.Server}, key)
	return h.tls(own), err
}

// keepServingArtifacts serves the store again and again. It keeps nothing else from running: without it no artifact is pushed or pulled,
// and the status says so.
func (h *hub) keepServingArtifacts(ctx context.Context, config *tls.Config) {
	pause := 100 * time.Millisecond // genesis is about to say what this machine is
	for said := ""; ; pause = min(2*pause, time.Second) {
		err := h.serveArtifacts(ctx, config)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			h.log.Warn("artifacts are not served, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// serveArtifacts leaves as much of the disk free as its owner wants free for everything new.
func (h *hub) serveArtifacts(ctx context.Context, config *tls.Config) error {
	r, err := h.install.Read()
	if err != nil {
		return err
	}
	space, err := disk.Look(h.install.Dir)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(h.settings.Ports.Artifacts))))
	if err != nil {
		return err
	}
	_, least := space.Bounds(r.LeastFree)
	return h.artifacts.Serve(ctx, l, config, least)
}
