package serve

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/membership"
)

// revoked are the certificates that hold no longer, as the last membership says (PKI-6). It is kept in the hub's folder, since the
// servers stand before the records do.
type revoked struct {
	file    string
	mesh    appliance.MeshID
	signing ed25519.PublicKey
	log     *slog.Logger
	serials atomic.Pointer[map[string]bool]
}

// load takes the membership of an earlier run.
func (r *revoked) load() error {
	envelope, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.set(envelope)
}

func (r *revoked) set(envelope []byte) error {
	m, _, err := membership.Open(envelope, r.mesh, r.signing)
	if err != nil {
		return err
	}
	serials := make(map[string]bool, len(m.Revoked))
	for _, s := range m.Revoked {
		serials[s] = true
	}
	r.serials.Store(&serials)
	return nil
}

// take is told each membership, and keeps it for the next start.
func (r *revoked) take(envelope []byte) {
	err := r.set(envelope)
	if have, e := os.ReadFile(r.file); err == nil && (e != nil || !bytes.Equal(have, envelope)) {
		err = durable.WriteFile(r.file, envelope, 0o600)
	}
	if err != nil {
		r.log.Error("keep the membership", "err", err)
	}
}

// has says whether a certificate is among them.
func (r *revoked) has(serial string) bool {
	serials := r.serials.Load()
	return serials != nil && (*serials)[serial]
}
