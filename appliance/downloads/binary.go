package downloads

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/novox/mesh/appliance"
)

// binary is a file on this machine, digested once for as long as it is the same.
type binary struct {
	path string

	mu     sync.Mutex
	of     os.FileInfo // what was digested; nil: nothing yet
	digest appliance.Digest
}

func (b *binary) digested() (appliance.Digest, int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	info, err := os.Stat(b.path)
	if err != nil {
		return "", 0, err
	}
	if b.of == nil || !os.SameFile(b.of, info) || b.of.Size() != info.Size() || !b.of.ModTime().Equal(info.ModTime()) {
		if b.digest, err = DigestOf(b.path); err != nil {
			b.of = nil
			return "", 0, err
		}
		b.of = info
	}
	return b.digest, info.Size(), nil
}

func (b *binary) give(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeFile(w, r, b.path)
}

// DigestOf is the digest under which the hub would hand out the file at path.
func DigestOf(path string) (appliance.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("digest %s: %w", path, err)
	}
	return appliance.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), nil
}
