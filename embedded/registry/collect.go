package registry

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/go-digest"
)

// Collected is what a collection removed.
type Collected struct {
	Manifests int   // from a repository each
	Blobs     int   // content on disk
	Bytes     int64 // of it
}

// Collect removes manifests that keep does not want, unless they are beneath one it wants or were pushed within the grace, then the
// blobs that no manifest names any more, and uploads that were given up. Keep must not call the registry.
//
// A push beside it loses nothing: what it has seen or pushed is within the grace, and what it records is recorded before or after.
func (r *Registry) Collect(keep func(digest.Digest) bool) (Collected, error) {
	r.dropAbandoned()
	r.sweeping.Lock()
	defer r.sweeping.Unlock()
	var out Collected
	for _, s := range r.unwanted(keep) {
		if err := os.Remove(r.layout.link(s.repo, s.digest, s.isManifest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, err
		}
		if s.isManifest {
			out.Manifests++
		}
		r.unlink(s)
	}
	return out, r.sweep(&out)
}

// strand is one link that nobody wants.
type strand struct {
	repo       string
	digest     digest.Digest
	isManifest bool
}

func (r *Registry) unwanted(keep func(digest.Digest) bool) []strand {
	since := r.cfg.Now().Add(-r.cfg.Grace)
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []strand
	for name, at := range r.repos {
		wanted := map[digest.Digest]bool{}
		known := true
		for d, l := range at.manifests {
			if !keep(d) && l.seen.Before(since) {
				continue
			}
			wanted[d] = true
			known = known && r.want(d, wanted)
		}
		if !known {
			continue // what a damaged manifest names cannot be told
		}
		for d := range at.manifests {
			if !wanted[d] {
				out = append(out, strand{name, d, true})
			}
		}
		for d, l := range at.blobs {
			if !wanted[d] && l.seen.Before(since) {
				out = append(out, strand{name, d, false})
			}
		}
	}
	return out
}

// want marks what lies beneath a manifest; false where that cannot be told.
func (r *Registry) want(d digest.Digest, wanted map[digest.Digest]bool) bool {
	b := r.blobs[d]
	if b == nil || b.manifest == nil {
		return false
	}
	known := true
	for _, c := range b.manifest.children {
		wanted[c.digest] = true
		if b.manifest.index {
			known = r.want(c.digest, wanted) && known
		}
	}
	return known
}

func (r *Registry) unlink(s strand) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.repos[s.repo]
	links := at.blobs
	if s.isManifest {
		links = at.manifests
	}
	r.owners[ownerOf(s.repo)] -= links[s.digest].size
	delete(links, s.digest)
	if len(at.blobs)+len(at.manifests) == 0 {
		delete(r.repos, s.repo)
		dir := filepath.Dir(filepath.Dir(r.layout.link(s.repo, s.digest, false)))
		for _, d := range []string{filepath.Join(dir, "blobs"), filepath.Join(dir, "manifests"), dir, filepath.Dir(dir)} {
			os.Remove(d) // one that is not empty stays
		}
	}
}

// sweep removes content that no repository has, also what a power cut left unlinked. The caller holds sweeping.
func (r *Registry) sweep(out *Collected) error {
	r.mu.Lock()
	held := map[string]bool{}
	for _, at := range r.repos {
		for _, links := range []map[digest.Digest]*link{at.blobs, at.manifests} {
			for d := range links {
				held[d.Encoded()] = true
			}
		}
	}
	maps.DeleteFunc(r.blobs, func(d digest.Digest, _ *blob) bool { return !held[d.Encoded()] })
	r.mu.Unlock()
	for _, dir := range []string{r.layout.contents(), r.layout.asides()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if held[e.Name()] {
				continue
			}
			info, err := e.Info()
			if err == nil {
				err = os.Remove(filepath.Join(dir, e.Name()))
			}
			if err != nil {
				return err
			}
			out.Blobs++
			out.Bytes += info.Size()
		}
	}
	return nil
}

// holders are the repositories that have a blob, sorted. The caller holds mu.
func (r *Registry) holders(d digest.Digest) []string {
	var out []string
	for name, at := range r.repos {
		if at.blobs[d] != nil || at.manifests[d] != nil {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
