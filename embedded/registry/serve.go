package registry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"cuelabs.dev/go/oci/ociregistry"
	"github.com/opencontainers/go-digest"
)

const octets = "application/octet-stream"

// backend is what the protocol's handlers call. Listing, tags, mounting and deleting are not offered.
func (r *Registry) backend() *ociregistry.Funcs {
	byDigest := refuse(http.StatusBadRequest, "UNSUPPORTED", "artifacts are pushed and pulled by digest, never by tag")
	return &ociregistry.Funcs{
		GetBlob_: func(ctx context.Context, repo string, d digest.Digest) (ociregistry.BlobReader, error) {
			return r.pull(ctx, repo, d, 0, -1)
		},
		GetBlobRange_: r.pull,
		GetManifest_:  r.pullManifest,
		GetTag_: func(context.Context, string, string) (ociregistry.BlobReader, error) {
			return nil, byDigest
		},
		ResolveBlob_: func(ctx context.Context, repo string, d digest.Digest) (ociregistry.Descriptor, error) {
			return r.resolve(ctx, repo, d, false)
		},
		ResolveManifest_: func(ctx context.Context, repo string, d digest.Digest) (ociregistry.Descriptor, error) {
			return r.resolve(ctx, repo, d, true)
		},
		ResolveTag_: func(context.Context, string, string) (ociregistry.Descriptor, error) {
			return ociregistry.Descriptor{}, byDigest
		},
		PushBlob_:              r.pushBlob,
		PushBlobChunked_:       r.pushBegin,
		PushBlobChunkedResume_: r.pushOn,
		PushManifest_: func(ctx context.Context, repo, tag string, data []byte, mediaType string) (ociregistry.Descriptor, error) {
			if tag != "" {
				return ociregistry.Descriptor{}, byDigest
			}
			return r.pushManifest(ctx, repo, data, mediaType)
		},
	}
}

// allow asks whether a request may be, before anything is looked up. Limit bounds what the owner may hold.
func (r *Registry) allow(c *call, action Action, repo string, d digest.Digest) (limit int64, err error) {
	if !repositoryName.MatchString(repo) {
		return 0, refuse(400, "NAME_INVALID", "repositories here are OWNER/NAME, in lower-case letters, digits and inner dashes")
	}
	if d != "" {
		if err := checkDigest(d); err != nil {
			return 0, refuse(400, "DIGEST_INVALID", "%v; artifacts are pushed and pulled by digest, never by tag", err)
		}
	}
	limit, err = r.cfg.Authorize(c.request, action, repo, d)
	if limit == 0 {
		limit = r.cfg.MaxOwner
	}
	return limit, err
}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// look finds what a repository has. The copy is the caller's.
func (r *Registry) look(repo string, d digest.Digest, isManifest, seen bool) (link, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l *link
	code := "BLOB_UNKNOWN"
	if at := r.repos[repo]; at != nil && isManifest {
		l = at.manifests[d]
	} else if at != nil {
		l = at.blobs[d]
	}
	if isManifest {
		code = "MANIFEST_UNKNOWN"
	}
	switch {
	case l == nil:
		return link{}, refuse(404, code, "%s has no %s", repo, d)
	case r.blobs[d].damaged:
		return link{}, refuse(404, code, "%s of %s is damaged on the registry's disk: push it again", d, repo)
	}
	if seen {
		l.seen = r.cfg.Now()
	}
	return *l, nil
}

func (r *Registry) resolve(ctx context.Context, repo string, d digest.Digest, isManifest bool) (ociregistry.Descriptor, error) {
	if _, err := r.allow(callOf(ctx), Stat, repo, d); err != nil {
		return ociregistry.Descriptor{}, err
	}
	l, err := r.look(repo, d, isManifest, true)
	return l.descriptor(d), err
}

func (l link) descriptor(d digest.Digest) ociregistry.Descriptor {
	desc := ociregistry.Descriptor{MediaType: l.mediaType, Digest: d, Size: l.size}
	if desc.MediaType == "" {
		desc.MediaType = octets
	}
	return desc
}

// reader is an answer's body.
type reader struct {
	io.ReadCloser
	desc ociregistry.Descriptor
}

func (b reader) Descriptor() ociregistry.Descriptor { return b.desc }

// pull gives a blob from one offset up to another; -1 is the end.
func (r *Registry) pull(ctx context.Context, repo string, d digest.Digest, from, to int64) (ociregistry.BlobReader, error) {
	if _, err := r.allow(callOf(ctx), Pull, repo, d); err != nil {
		return nil, err
	}
	l, err := r.look(repo, d, false, false)
	if err != nil {
		return nil, err
	}
	if from > 0 && from >= l.size {
		return nil, refuse(416, "RANGE_INVALID", "%s has %d bytes", d, l.size)
	}
	content, err := r.openContent(d, l.size, from, to)
	if err != nil {
		return nil, err
	}
	return reader{content, l.descriptor(d)}, nil
}

func (r *Registry) pullManifest(ctx context.Context, repo string, d digest.Digest) (ociregistry.BlobReader, error) {
	if _, err := r.allow(callOf(ctx), Pull, repo, d); err != nil {
		return nil, err
	}
	l, err := r.look(repo, d, true, false)
	if err != nil {
		return nil, err
	}
	content, err := r.openContent(d, l.size, 0, -1)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data, err := io.ReadAll(content)
	if err != nil {
		return nil, err
	}
	return reader{io.NopCloser(bytes.NewReader(data)), l.descriptor(d)}, nil
}

func (r *Registry) pushBlob(ctx context.Context, repo string, desc ociregistry.Descriptor, from io.Reader) (ociregistry.Descriptor, error) {
	c := callOf(ctx)
	limit, err := r.allow(c, Push, repo, desc.Digest)
	if err != nil {
		return desc, err
	}
	u, err := r.begin(repo)
	if err != nil {
		return desc, err
	}
	s, err := u.hold(c, limit, 0, desc.Size)
	if err != nil {
		return desc, err
	}
	defer s.Cancel()
	if _, err := io.Copy(s, from); err != nil {
		return desc, err
	}
	return s.Commit(desc.Digest)
}

func (r *Registry) pushBegin(ctx context.Context, repo string, _ int) (ociregistry.BlobWriter, error) {
	c := callOf(ctx)
	limit, err := r.allow(c, Push, repo, "")
	if err != nil {
		return nil, err
	}
	u, err := r.begin(repo)
	if err != nil {
		return nil, err
	}
	return u.hold(c, limit, -1, 0)
}

func (r *Registry) pushOn(ctx context.Context, repo, id string, offset int64, coming int) (ociregistry.BlobWriter, error) {
	c := callOf(ctx)
	limit, err := r.allow(c, Push, repo, "")
	if err != nil {
		return nil, err
	}
	u, err := r.find(repo, id)
	if err != nil {
		return nil, err
	}
	return u.hold(c, limit, offset, int64(coming))
}

// pushManifest takes a manifest whose parts are all there.
func (r *Registry) pushManifest(ctx context.Context, repo string, data []byte, mediaType string) (ociregistry.Descriptor, error) {
	d := digest.FromBytes(data)
	desc := ociregistry.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	c := callOf(ctx)
	limit, err := r.allow(c, Push, repo, d)
	if err != nil {
		return desc, err
	}
	if !isIndex(mediaType) && !isManifest(mediaType) {
		return desc, refuse(400, "MANIFEST_INVALID", "push to %s: %.60q is no media type of a manifest that is taken here", repo, mediaType)
	}
	m, err := parseManifest(data)
	if err == nil && m.index != isIndex(mediaType) {
		err = fmt.Errorf("it is sent as %s and is another kind", mediaType)
	}
	if err != nil {
		return desc, refuse(400, "MANIFEST_INVALID", "push to %s: %v", repo, err)
	}
	if m.config != "" {
		m.platform = r.layout.platform(m.config)
	}
	u, err := r.begin(repo)
	if err != nil {
		return desc, err
	}
	s, err := u.hold(c, limit, 0, desc.Size)
	if err != nil {
		return desc, err
	}
	defer s.Cancel()
	if _, err := s.Write(data); err != nil {
		return desc, err
	}
	if err := s.file.Sync(); err != nil {
		return desc, err
	}
	return desc, r.place(u, d, mediaType, m)
}
