package registry

import (
	"errors"
	"os"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// room refuses n more bytes of an upload by the bound that stands against them.
func (r *Registry) room(u *upload, limit, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fits(u, limit, n)
}

// take accounts for n more bytes before they are written.
func (r *Registry) take(u *upload, limit, n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.fits(u, limit, n); err != nil {
		return err
	}
	r.owners[ownerOf(u.repo)] += n
	u.size.Add(n)
	return nil
}

func (r *Registry) fits(u *upload, limit, n int64) error {
	owner, size := ownerOf(u.repo), u.size.Load()+n
	held := r.owners[owner]
	if size > r.cfg.MaxBlob {
		return refuse(413, "TOO_LARGE", "push to %s: a blob of %d bytes or more, at most %d", u.repo, size, r.cfg.MaxBlob)
	}
	if held+n > limit {
		return refuse(413, "QUOTA_EXCEEDED", "push to %s: %s holds %d bytes and may hold %d; %d more do not fit", u.repo, owner, held, limit, n)
	}
	free, err := r.layout.free()
	if err != nil {
		return err
	}
	if free-n < r.cfg.MinFree {
		return refuse(507, "DISK_FULL", "push to %s: %d bytes are free on the registry's disk, of which %d stay free; %d more do not fit", u.repo, free, r.cfg.MinFree, n)
	}
	return nil
}

// noSpace says by name that the disk is full, where that is the reason.
func noSpace(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return refuse(507, "DISK_FULL", "the registry's disk is full")
	}
	return err
}

// place moves an upload's synced file to where its digest says, and records that the repository has it: content first, then the link,
// then memory. What lay there before, whole or damaged, gives way: this content is known to be good. M is set for a manifest.
func (r *Registry) place(u *upload, d digest.Digest, mediaType string, m *manifest) error {
	r.sweeping.RLock()
	defer r.sweeping.RUnlock()
	if m != nil {
		if err := r.checkChildren(u.repo, m); err != nil {
			return err
		}
	}
	if err := os.Rename(u.file.Name(), r.layout.content(d)); err != nil {
		return err
	}
	if err := syncFolder(r.layout.contents()); err != nil {
		return err
	}
	if err := r.layout.putLink(u.repo, d, mediaType); err != nil {
		return err
	}
	os.Remove(r.layout.aside(d))
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.repo(u.repo)
	links := at.blobs
	if m != nil {
		links = at.manifests
	}
	size := u.size.Load()
	b := r.blobs[d]
	if b == nil {
		b = &blob{}
		r.blobs[d] = b
	}
	b.size, b.damaged = size, false
	if m != nil {
		b.manifest = m
	}
	if old := links[d]; old != nil {
		r.owners[ownerOf(u.repo)] -= old.size
	}
	links[d] = &link{mediaType: mediaType, size: size, pushed: now, seen: now}
	u.size.Store(0) // from here on the link accounts for it
	return nil
}

// checkChildren refuses a manifest that names what its repository does not have, or has damaged.
func (r *Registry) checkChildren(repo string, m *manifest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.repos[repo]
	for _, c := range m.children {
		var l *link
		if at != nil && m.index {
			l = at.manifests[c.digest]
		} else if at != nil {
			l = at.blobs[c.digest]
		}
		b := r.blobs[c.digest]
		switch {
		case l == nil || b == nil || b.damaged:
			return refuse(404, "MANIFEST_BLOB_UNKNOWN", "push to %s: the manifest names %s, which is not there: push that first", repo, c.digest)
		case b.size != c.size:
			return refuse(400, "MANIFEST_INVALID", "push to %s: the manifest says that %s has %d bytes, it has %d", repo, c.digest, c.size, b.size)
		case m.index && (b.manifest == nil || b.manifest.index):
			return refuse(400, "MANIFEST_INVALID", "push to %s: the index names %s, which is an index itself", repo, c.digest)
		}
	}
	return nil
}
