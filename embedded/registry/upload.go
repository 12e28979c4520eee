package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash"
	"os"
	"sync"
	"sync/atomic"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/opencontainers/go-digest"
)

// upload is a blob on its way. What has come is kept until it is whole, is refused, or nobody has written to it for a day.
type upload struct {
	r    *Registry
	id   string
	repo string

	size    atomic.Int64 // accounted for to the owner
	touched atomic.Int64 // Unix seconds

	writing sync.Mutex // one request at a time; guards the following
	file    *os.File
	hash    hash.Hash
	gone    bool
}

// begin opens an upload.
func (r *Registry) begin(repo string) (*upload, error) {
	u := &upload{r: r, id: rand.Text(), repo: repo, hash: sha256.New()}
	u.touched.Store(r.cfg.Now().Unix())
	r.mu.Lock()
	defer r.mu.Unlock()
	under := 0
	for _, other := range r.uploads {
		if ownerOf(other.repo) == ownerOf(repo) {
			under++
		}
	}
	if r.closed {
		return nil, refuse(503, "UNAVAILABLE", "the registry is closing")
	}
	if under >= maxUploads {
		return nil, refuse(429, "TOOMANYREQUESTS", "%d uploads of %s are under way, at most %d", under, ownerOf(repo), maxUploads)
	}
	var err error
	if u.file, err = os.OpenFile(r.layout.upload(u.id), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	r.uploads[u.id] = u
	return u, nil
}

// find gives an upload of the repository.
func (r *Registry) find(repo, id string) (*upload, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.uploads[id]
	if u == nil || u.repo != repo {
		return nil, ociregistry.ErrBlobUploadUnknown
	}
	return u, nil
}

// session is one request's hold of an upload: ociregistry's BlobWriter.
type session struct {
	*upload
	call  *call
	limit int64 // of what the owner may hold
	holds bool
}

// hold takes an upload for writing from an offset on. At -1 it only looks. Coming is what the request says it brings.
func (u *upload) hold(c *call, limit, offset, coming int64) (*session, error) {
	s := &session{upload: u, call: c, limit: limit}
	if offset < 0 {
		return s, nil
	}
	if !u.writing.TryLock() {
		return nil, refuse(416, "RANGE_INVALID", "another request is writing this upload")
	}
	s.holds = true
	err := u.r.room(u, limit, max(coming, 0))
	switch {
	case u.gone:
		err = ociregistry.ErrBlobUploadUnknown
	case offset != u.size.Load() && (offset != 0 || c.request.Header.Get("Content-Range") != ""): // without a range it goes on where it is
		err = ociregistry.ErrRangeInvalid
	case err != nil:
		u.end()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *session) ID() string     { return s.id }
func (s *session) Size() int64    { return s.size.Load() }
func (s *session) ChunkSize() int { return 0 }

// Write adds to the upload. What is refused, or cannot be written, ends it.
func (s *session) Write(p []byte) (int, error) {
	err := s.r.take(s.upload, s.limit, int64(len(p)))
	if err == nil {
		_, err = s.file.Write(p)
	}
	if err != nil {
		s.end()
		return 0, s.call.keep(err)
	}
	s.hash.Write(p)
	s.touched.Store(s.r.cfg.Now().Unix())
	return len(p), nil
}

// Close lets go of the upload, so that it can be taken up again.
func (s *session) Close() error {
	if s.holds {
		s.holds = false
		s.writing.Unlock()
	}
	return nil
}

// Cancel ends the upload.
func (s *session) Cancel() error {
	if s.holds {
		s.end()
	}
	return s.Close()
}

// Commit puts the blob in place; the upload ends, whatever comes of it.
func (s *session) Commit(d digest.Digest) (ociregistry.Descriptor, error) {
	desc := ociregistry.Descriptor{MediaType: octets, Digest: d, Size: s.Size()}
	defer s.end()
	if got := digest.NewDigest(digest.SHA256, s.hash); got != d {
		return desc, refuse(400, "DIGEST_INVALID", "push to %s: what came has digest %s, not %s", s.repo, got, d)
	}
	if err := s.file.Sync(); err != nil {
		return desc, err
	}
	return desc, s.r.place(s.upload, d, "", nil)
}

// end removes what is left of the upload and gives its bytes back. The caller holds writing.
func (u *upload) end() {
	if u.gone {
		return
	}
	u.gone = true
	u.file.Close()
	if err := os.Remove(u.file.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
		u.r.log.Error("remove upload", "err", err)
	}
	u.r.mu.Lock()
	defer u.r.mu.Unlock()
	delete(u.r.uploads, u.id)
	u.r.owners[ownerOf(u.repo)] -= u.size.Swap(0)
}

// drop ends the upload once no request holds it.
func (u *upload) drop() {
	u.writing.Lock()
	defer u.writing.Unlock()
	u.end()
}

// dropAbandoned ends uploads that nobody has written to for long.
func (r *Registry) dropAbandoned() {
	before := r.cfg.Now().Add(-abandoned).Unix()
	var old []*upload
	r.mu.Lock()
	for _, u := range r.uploads {
		if u.touched.Load() < before {
			old = append(old, u)
		}
	}
	r.mu.Unlock()
	for _, u := range old {
		u.drop()
	}
}
