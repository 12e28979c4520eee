package registry

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Damaged is content that has not its digest any more, or is gone. It is given out no more; pushed again, it is good.
type Damaged struct {
	Digest       digest.Digest
	Repositories []string // that have it
}

// Scrub reads everything, slowly, and gives what is damaged.
func (r *Registry) Scrub(ctx context.Context) ([]Damaged, error) {
	r.scrubs.Lock()
	defer r.scrubs.Unlock()
	r.mu.Lock()
	all := slices.Sorted(maps.Keys(r.blobs))
	r.mu.Unlock()
	slowly := rate.NewLimiter(rate.Limit(r.cfg.Scrub), scrubBite)
	for _, d := range all {
		if err := r.scrub(ctx, d, slowly); err != nil {
			return r.Damaged(), err
		}
	}
	return r.Damaged(), nil
}

// scrubBite is how much is read at once, in bytes.
const scrubBite = 1 << 20

func (r *Registry) scrub(ctx context.Context, d digest.Digest, slowly *rate.Limiter) error {
	f, err := os.Open(r.layout.content(d))
	if errors.Is(err, fs.ErrNotExist) {
		r.damage(d, nil)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// The disk is asked, not the cache; and a whole store read once a day pushes nothing else out of it.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	defer unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	hash := digest.SHA256.Hash()
	for {
		if err := slowly.WaitN(ctx, scrubBite); err != nil {
			return err
		}
		_, err := io.CopyN(hash, f, scrubBite)
		if err == io.EOF {
			break
		}
		if errors.Is(err, syscall.EIO) {
			r.damage(d, f)
			return nil
		}
		if err != nil {
			return err
		}
	}
	if digest.NewDigest(digest.SHA256, hash) != d {
		r.damage(d, f)
	}
	return nil
}

// Damaged is what is known to be damaged, sorted by digest.
func (r *Registry) Damaged() []Damaged {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Damaged
	for _, d := range slices.Sorted(maps.Keys(r.blobs)) {
		if r.blobs[d].damaged {
			out = append(out, Damaged{d, r.holders(d)})
		}
	}
	return out
}
