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
	var said string
	for {
		err := h.serveArtifacts(ctx, config)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			h.log.Error("artifacts are not served, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(5 * time.Second):
		}
	}
}

func (h *hub) serveArtifacts(ctx context.Context, config *tls.Config) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("0.0.0.0", strconv.Itoa(int(h.settings.Ports.Artifacts))))
	if err != nil {
		return err
	}
	return h.artifacts.Serve(ctx, l, config)
}
