package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// trusted has the machine's own programs trust the mesh's authority: a file among those that the distribution makes its bundle of.
type trusted struct{ mesh appliance.MeshID }

// trustStore is how a family of distributions keeps what is trusted.
type trustStore struct {
	update []string // makes the bundle
	folder string   // of what is added to it
	bundle string
}

var trustStores = []trustStore{
	{[]string{"update-ca-certificates"}, "/usr/local/share/ca-certificates", "/etc/ssl/certs/ca-certificates.crt"}, // Debian, Alpine
	{[]string{"update-ca-trust", "extract"}, "/etc/pki/ca-trust/source/anchors", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"},
}

func findTrustStore() (trustStore, error) {
	for _, s := range trustStores {
		if _, err := run.Find(s.update[0]); err == nil {
			return s, nil
		}
	}
	return trustStore{}, appliance.Errorf(appliance.NotFound, "trust the mesh: this machine has neither update-ca-certificates nor update-ca-trust").
		WithHint("name the package ca-certificates in the module's manifest")
}

func (t trusted) file(s trustStore) string {
	return filepath.Join(s.folder, "mesh-"+string(t.mesh)+".crt")
}

func (s trustStore) make(ctx context.Context) error {
	_, err := run.Output(ctx, run.Command{Program: s.update[0], Arguments: s.update[1:]})
	return err
}

var rootFile = attributes{0, 0, 0o644}

func (t trusted) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	spec, err := read[wire.TrustSpec](r)
	if err != nil {
		return host.Observation{}, err
	}
	s, err := findTrustStore()
	if err != nil {
		return host.Observation{Differs: err.Error()}, nil // its package comes before it
	}
	text := pki.EncodePEM(spec.Authority)
	have, attributes, err := readFile(t.file(s))
	if have == nil || err != nil {
		return host.Observation{}, err
	}
	o := host.Observation{Present: true, Differs: attributes.differs(rootFile)}
	if o.Differs == "" && !bytes.Equal(have, text) {
		o.Differs = "content"
	}
	if o.Differs == "" {
		bundle, err := os.ReadFile(s.bundle)
		if err != nil && !os.IsNotExist(err) {
			return o, err
		}
		if !bytes.Contains(bundle, text) {
			o.Differs = "it is not in " + s.bundle
		}
	}
	o.Matches = o.Differs == ""
	return o, nil
}

// Before has nothing to keep: the file's name is the mesh's own.
func (trusted) Before(context.Context, wire.Resource) (json.RawMessage, error) { return nil, nil }

func (t trusted) Do(ctx context.Context, r wire.Resource) error {
	spec, err := read[wire.TrustSpec](r)
	if err != nil {
		return err
	}
	if _, err := pki.ParseAuthority(spec.Authority); err != nil {
		return fmt.Errorf("trust the mesh: %w", err)
	}
	if o, err := t.Observe(ctx, r); err != nil || o.Matches {
		return err
	}
	s, err := findTrustStore()
	if err != nil {
		return err
	}
	if err := writeFile(t.file(s), pki.EncodePEM(spec.Authority), rootFile); err != nil {
		return err
	}
	if err := s.make(ctx); err != nil {
		return fmt.Errorf("trust the mesh: %w", err)
	}
	if o, err := t.Observe(ctx, r); err != nil || !o.Matches {
		return appliance.Errorf(appliance.Unavailable, "trust the mesh: %s has run, and %s (%v)", s.update[0], o.Differs, err)
	}
	return nil
}

func (t trusted) Undo(ctx context.Context, r wire.Resource, _ json.RawMessage) (bool, error) {
	spec, err := read[wire.TrustSpec](r)
	if err != nil {
		return false, err
	}
	for _, s := range trustStores {
		have, _, err := readFile(t.file(s))
		if err != nil {
			return false, err
		}
		if have != nil {
			if err := writeFile(t.file(s), nil, rootFile); err != nil {
				return false, err
			}
		}
		if err := t.unlink(s); err != nil {
			return false, err
		}
		bundle, err := os.ReadFile(s.bundle)
		if err != nil && !os.IsNotExist(err) {
			return false, err
		}
		if _, err := run.Find(s.update[0]); err != nil || !bytes.Contains(bundle, pki.EncodePEM(spec.Authority)) {
			continue
		}
		if err := s.make(ctx); err != nil {
			return false, fmt.Errorf("trust the mesh no longer: %w", err)
		}
	}
	return false, nil
}

// unlink removes the links that the bundle's maker leaves beside it: to the file, and to those by its hash.
func (t trusted) unlink(s trustStore) error {
	dir := filepath.Dir(s.bundle)
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil && strings.Contains(filepath.Base(target), "mesh-"+string(t.mesh)+".") {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
