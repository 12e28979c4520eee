// Package artifacts is what a module is made of, outside the store that holds it: the references that name it, file trees packed into
// artifacts and unpacked from them, images read from a disk, pushing and pulling, the grants that allow a push, and the policy of who may
// pull what. The store's side of the protocol is embedded/registry; when something is pulled or collected is decided elsewhere.
package artifacts

import (
	"regexp"
	"strings"

	"github.com/novox/mesh/appliance"
)

// Reference names an artifact of a module by the digest of its manifest, or of the index over its platforms. No address is part of it: it
// is filled in where the artifact is pulled (PORT-5).
type Reference struct {
	Module   appliance.ModuleName
	Artifact string
	Digest   appliance.Digest
}

const scheme = "artifact-store://"

var (
	referenceGrammar = regexp.MustCompile(`^([a-z](?:[a-z0-9-]{0,38}[a-z0-9])?)/([a-z](?:[a-z0-9-]{0,38}[a-z0-9])?)@(sha256:[0-9a-f]{64})$`)
	pathGrammar      = regexp.MustCompile(`^([a-z](?:[a-z0-9-]{0,38}[a-z0-9])?)/([a-z](?:[a-z0-9-]{0,38}[a-z0-9])?)$`)
	ownAddress       = regexp.MustCompile(`^([a-z0-9-]+\.internal|localhost|127\.0\.0\.1):[0-9]{1,5}/`)
)

// ParseReference reads a reference. With the address of our own store in it, as container engines have it, it is the same without.
func ParseReference(s string) (Reference, error) {
	if len(s) > 300 {
		return Reference{}, appliance.Errorf(appliance.Invalid, "read reference: %d bytes, at most 300", len(s))
	}
	rest := strings.TrimPrefix(s, scheme)
	rest = rest[len(ownAddress.FindString(rest)):]
	m := referenceGrammar.FindStringSubmatch(rest)
	if m == nil {
		return Reference{}, appliance.Errorf(appliance.Invalid, "read reference %s: it is not %sMODULE/ARTIFACT@sha256:…", appliance.Quote(s), scheme).
			WithHint("artifacts of our own store only, by digest; tags and other registries are not used").WithNext("mesh artifact list")
	}
	return Reference{appliance.ModuleName(m[1]), m[2], appliance.Digest(m[3])}, nil
}

// ParsePath reads MODULE/ARTIFACT, as what is pushed is named.
func ParsePath(s string) (module appliance.ModuleName, artifact string, err error) {
	m := pathGrammar.FindStringSubmatch(s)
	if m == nil {
		return "", "", appliance.Errorf(appliance.Invalid, "read %s: it is not MODULE/ARTIFACT", appliance.Quote(s)).
			WithHint("a module's name and an artifact's: lower-case letters, digits and inner dashes, beginning with a letter, at most 40 characters")
	}
	return appliance.ModuleName(m[1]), m[2], nil
}

func (r Reference) String() string { return scheme + r.Repository() + "@" + string(r.Digest) }

// Repository is the artifact's place in the store.
func (r Reference) Repository() string { return string(r.Module) + "/" + r.Artifact }
