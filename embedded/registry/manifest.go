package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types of what stands for an artifact. Docker's are those of images saved by its engine.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// maxObjects bounds what decoding a manifest takes: four MiB of empty descriptors would become hundreds.
const maxObjects = 10_000

// manifest is what the registry needs to know of one.
type manifest struct {
	index        bool
	artifactType string
	config       digest.Digest     // of an image: names its platform
	platform     *ocispec.Platform // of an image, as its configuration says
	children     []child           // config and layers, or an index's manifests
}

type child struct {
	digest   digest.Digest
	size     int64
	platform *ocispec.Platform // an index may state it
}

// parseManifest reads a manifest or an index. What could be read as either is neither.
func parseManifest(data []byte) (*manifest, error) {
	var m struct {
		ocispec.Manifest
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if n := bytes.Count(data, []byte("{")); n > maxObjects {
		return nil, fmt.Errorf("%d objects in it, at most %d", n, maxObjects)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("not JSON of a manifest: %w", err)
	}
	out := &manifest{artifactType: m.ArtifactType, index: m.Manifests != nil}
	all := m.Manifests
	switch {
	case m.SchemaVersion != 2:
		return nil, fmt.Errorf("schema version %d, only 2 is taken", m.SchemaVersion)
	case out.index && (m.Config.Digest != "" || m.Layers != nil):
		return nil, fmt.Errorf("it has manifests as well as a configuration or layers")
	case !out.index && m.Config.Digest == "":
		return nil, fmt.Errorf("it has neither manifests nor a configuration")
	case !out.index:
		all = append([]ocispec.Descriptor{m.Config}, m.Layers...)
		if out.artifactType == "" {
			out.artifactType = m.Config.MediaType
		}
		if m.Config.MediaType == ocispec.MediaTypeImageConfig || m.Config.MediaType == dockerConfig {
			out.config = m.Config.Digest
		}
	}
	for _, d := range all {
		if err := checkDigest(d.Digest); err != nil || d.Size < 0 {
			return nil, fmt.Errorf("it names %q with %d bytes: %w", d.Digest, d.Size, err)
		}
		out.children = append(out.children, child{d.Digest, d.Size, d.Platform})
	}
	if m.MediaType != "" && isIndex(m.MediaType) != out.index {
		return nil, fmt.Errorf("it says %q and is another kind", m.MediaType)
	}
	return out, nil
}

func isIndex(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageIndex || mediaType == dockerIndex
}

func isManifest(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageManifest || mediaType == dockerManifest
}

// checkDigest takes SHA-256 only.
func checkDigest(d digest.Digest) error {
	if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("a digest is sha256: and 64 hexadecimal digits")
	}
	return nil
}

// beneath says whether d is the manifest root or something it names, at whatever depth. The caller holds mu.
func (r *Registry) beneath(root, d digest.Digest) bool {
	if root == d {
		return true
	}
	b := r.blobs[root]
	if b == nil || b.manifest == nil {
		return false
	}
	return slices.ContainsFunc(b.manifest.children, func(c child) bool {
		return c.digest == d || b.manifest.index && r.beneath(c.digest, d) // an index names manifests only: two levels
	})
}

// Beneath says whether d is one of the manifests roots, or something that one of them names: an index its manifests, a manifest its
// configuration and layers.
func (r *Registry) Beneath(d digest.Digest, roots []digest.Digest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(roots, func(root digest.Digest) bool { return r.beneath(root, d) })
}
