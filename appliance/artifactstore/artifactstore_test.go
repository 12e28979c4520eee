package artifactstore

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/pki"
)

// slogOf writes to the test's log.
func slogOf(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// GEN-8: a store that is not served keeps nothing else from running: what is asked of it is not ready, with the way out.
func TestNotServed(t *testing.T) {
	s := New(Config{Dir: filepath.Join(t.TempDir(), "none"), Mesh: appliance.NewMeshID(), Log: slogOf(t)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), l, pki.ServerTLS(nil, nil, nil, nil), 0); appliance.KindOf(err) != appliance.NotFound || appliance.AsError(err).Hint == "" {
		t.Errorf("served from a folder that is not: %v", err)
	}
	_, list := s.List("")
	_, find := s.Find("")
	_, collect := s.Collect(func(appliance.Digest) bool { return false })
	_, scrub := s.Scrub(context.Background())
	for what, err := range map[string]error{"list": list, "find": find, "collect": collect, "scrub": scrub} {
		if appliance.KindOf(err) != appliance.NotReady || appliance.AsError(err).Hint == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if w := s.Warnings(); len(w) != 1 || w[0].Code != "artifacts-not-served" || !strings.Contains(w[0].Remedy, "artifact-store") {
		t.Errorf("warnings %+v", w)
	}
}
