package artifacts

import (
	"encoding/json"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// Stored is an artifact as the store has it.
type Stored struct {
	Reference
	Kind      string   // files, image, or what it calls itself
	MediaType string   // of its manifest
	Platforms []string // it is for, "os/architecture"; empty: any, or not stated
	Size      int64    // bytes, with everything beneath
	Pushed    time.Time
	Damaged   []appliance.Digest // of it, on the store's disk
}

// Damaged is content that has lost its digest: it is given out no more, and good again once it is pushed again.
type Damaged struct {
	Digest       appliance.Digest
	Repositories []string
}

// Collected says what a collection removed.
type Collected struct {
	Manifests, Blobs int
	Bytes            int64
}

// Named gives the manifests that a declaration names, sorted.
func Named(c wire.Content) ([]appliance.Digest, error) {
	var all []appliance.Digest
	for _, r := range c.Resources {
		if r.Kind != wire.Artifact && r.Kind != wire.Container {
			continue
		}
		var spec struct {
			Reference string `json:"reference"`
		}
		if err := json.Unmarshal(r.Spec, &spec); err != nil {
			return nil, appliance.Errorf(appliance.Invalid, "read %s: %w", r.ID, err)
		}
		ref, err := ParseReference(spec.Reference)
		if err != nil {
			return nil, appliance.Errorf(appliance.Invalid, "read %s: %w", r.ID, err)
		}
		all = append(all, ref.Digest)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// KindOf says what an artifact is by what its manifest calls itself.
func KindOf(artifactType string) string {
	switch artifactType {
	case FilesType:
		return "files"
	case ocispec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json":
		return "image"
	}
	return artifactType
}
