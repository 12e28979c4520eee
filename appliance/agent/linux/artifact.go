package linux

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// trees makes the file trees of artifacts, each in a folder that its digest names, whoever uses it. A tree is never changed: one that
// somebody changed is made anew beside it and takes its place. Leaving a declaration removes none; collect does (DEC-14).
//
//	<hex>             the tree, root's and read-only to others
//	<hex>.list        what is in it: how a change is found
//	<hex>.new         a tree on its way, with what has come of it beside it
//	<hex>.old         one whose place was taken
type trees struct {
	installation.Installation
	seen *seenFiles
}

func (t trees) spec(r wire.Resource) (wire.ArtifactSpec, artifacts.Reference, error) {
	s, err := read[wire.ArtifactSpec](r)
	if err != nil {
		return s, artifacts.Reference{}, err
	}
	ref, err := artifacts.ParseReference(s.Reference)
	if err != nil {
		return s, ref, err
	}
	if ref.Digest != s.Digest || s.Path != filepath.Join(t.Artifacts(), hexOf(s.Digest)) {
		return s, ref, appliance.Errorf(appliance.Invalid, "artifact %s: it does not belong to %s at %s", s.Reference, s.Digest, appliance.Quote(s.Path))
	}
	return s, ref, nil
}

func hexOf(d appliance.Digest) string { return strings.TrimPrefix(string(d), "sha256:") }

func (t trees) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	s, _, err := t.spec(r)
	if err != nil {
		return host.Observation{}, err
	}
	if _, err := os.Lstat(s.Path); errors.Is(err, os.ErrNotExist) {
		return host.Observation{}, nil
	}
	differs, err := t.seen.compare(s.Path, s.Path+".list")
	return host.Observation{Present: true, Matches: err == nil && differs == "", Differs: differs}, err
}

// Before has nothing to keep: the folder's name is the mesh's own.
func (trees) Before(context.Context, wire.Resource) (json.RawMessage, error) { return nil, nil }

func (t trees) Do(ctx context.Context, r wire.Resource) error {
	s, ref, err := t.spec(r)
	if err != nil {
		return err
	}
	if o, err := t.Observe(ctx, r); err != nil || o.Matches {
		return err
	}
	store, err := storeClient(t.Installation, s.Store)
	if err != nil {
		return fmt.Errorf("pull %s: %w", ref, err)
	}
	fresh, old := s.Path+".new", s.Path+".old"
	if err := makeFolder(t.Artifacts(), attributes{0, 0, 0o755}); err != nil {
		return err
	}
	for _, left := range []string{fresh, old} { // what has come of it lies beside it, and serves
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	if err := store.PullFiles(ctx, ref, runtime.GOOS+"/"+runtime.GOARCH, fresh); err != nil {
		return err
	}
	list, err := listTree(fresh)
	if err != nil {
		return fmt.Errorf("list %s: %w", ref, err)
	}
	if err := durable.WriteFile(s.Path+".list", list, 0o600); err != nil {
		return err
	}
	if err := os.Rename(s.Path, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, s.Path); err != nil {
		return err
	}
	if err := durable.SyncFolder(t.Artifacts()); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// Undo leaves the tree: whether it goes is decided when all is well without it.
func (trees) Undo(context.Context, wire.Resource, json.RawMessage) (bool, error) { return false, nil }

// collect removes the trees that are not to be kept, with what is left of them; one that a process still has stays until later.
func (t trees) collect(ctx context.Context, keep []appliance.Digest) error {
	entries, err := os.ReadDir(t.Artifacts())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed []error
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		if digest, err := hex.DecodeString(name); err != nil || len(digest) != 32 || slices.Contains(keep, appliance.Digest("sha256:"+name)) {
			continue // not ours, or kept
		}
		path := filepath.Join(t.Artifacts(), e.Name())
		if inUse(filepath.Join(t.Artifacts(), name)) {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = append(failed, os.RemoveAll(path))
	}
	return errors.Join(failed...)
}

// inUse says whether a process runs a program of the tree, or in it.
func inUse(tree string) bool {
	processes, _ := filepath.Glob("/proc/[0-9]*")
	return slices.ContainsFunc(processes, func(process string) bool {
		for _, link := range []string{"exe", "cwd"} {
			if at, err := os.Readlink(filepath.Join(process, link)); err == nil && (at == tree || strings.HasPrefix(at, tree+"/")) {
				return true
			}
		}
		return false
	})
}

// storeClient pulls from the mesh's artifact store, as this node.
func storeClient(i installation.Installation, store wire.ArtifactStore) (artifacts.Client, error) {
	trust, err := identity.ReadTrust(i.Node())
	if err != nil {
		return artifacts.Client{}, err
	}
	authority, err := pki.ParseAuthority(trust.Authority)
	if err != nil {
		return artifacts.Client{}, err
	}
	own, err := ownCertificate(i, trust.Authority)
	if err != nil {
		return artifacts.Client{}, err
	}
	return artifacts.Client{Addresses: []string{store.Address}, TLS: pki.ClientTLS(authority, store.Name, own, pki.Clock(nil))}, nil
}

// ownCertificate is what this node shows of itself.
func ownCertificate(i installation.Installation, authority []byte) (*tls.Certificate, error) {
	keys, err := identity.LoadNode(i.NodeKeys())
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(i.Certificate())
	if err != nil {
		return nil, err
	}
	leaf, err := pki.DecodePEM(text)
	if err != nil {
		return nil, err
	}
	return pki.Chain(leaf, authority, keys.TLS)
}
