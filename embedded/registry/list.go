package registry

import (
	"cmp"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is a manifest or an index as one repository has it.
type Artifact struct {
	Repository   string
	Digest       digest.Digest
	MediaType    string
	ArtifactType string   // what it calls itself, an image its configuration's media type, an index what its manifests do
	Platforms    []string // "os/architecture", sorted: of an index those it names, of an image its own; empty: any, or not stated
	Size         int64    // bytes, with everything beneath
	Pushed       time.Time
	Damaged      []digest.Digest // itself, or what lies beneath
}

// List gives every artifact that is not part of an index in its repository, by repository and the time it was pushed.
func (r *Registry) List() []Artifact {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Artifact
	for name, at := range r.repos {
		part := map[digest.Digest]bool{}
		for d := range at.manifests {
			if b := r.blobs[d]; b.manifest != nil && b.manifest.index {
				for _, c := range b.manifest.children {
					part[c.digest] = true
				}
			}
		}
		for d, l := range at.manifests {
			if !part[d] {
				out = append(out, r.artifact(name, d, l))
			}
		}
	}
	slices.SortFunc(out, func(a, b Artifact) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), a.Pushed.Compare(b.Pushed), cmp.Compare(a.Digest, b.Digest))
	})
	return out
}

// Find gives the manifest with this digest as each repository has it.
func (r *Registry) Find(d digest.Digest) []Artifact {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Artifact
	for _, name := range r.holders(d) {
		if l := r.repos[name].manifests[d]; l != nil {
			out = append(out, r.artifact(name, d, l))
		}
	}
	return out
}

func (r *Registry) artifact(repo string, d digest.Digest, l *link) Artifact {
	a := Artifact{Repository: repo, Digest: d, MediaType: l.mediaType, Pushed: l.pushed}
	r.sum(&a, d, nil)
	slices.Sort(a.Platforms)
	a.Platforms = slices.Compact(a.Platforms)
	return a
}

// sum adds what lies beneath a manifest. Stated is the platform that an index gives it.
func (r *Registry) sum(a *Artifact, d digest.Digest, stated *ocispec.Platform) {
	b := r.blobs[d]
	if b == nil {
		return
	}
	a.Size += b.size
	if b.damaged {
		a.Damaged = append(a.Damaged, d)
	}
	m := b.manifest
	if m == nil {
		return
	}
	if a.ArtifactType == "" {
		a.ArtifactType = m.artifactType
	}
	if stated == nil {
		stated = m.platform
	}
	if stated != nil && stated.OS != "unknown" { // what a builder attests about an image goes as one of an unknown platform
		a.Platforms = append(a.Platforms, stated.OS+"/"+stated.Architecture)
	}
	for _, c := range m.children {
		r.sum(a, c.digest, c.platform)
	}
}
