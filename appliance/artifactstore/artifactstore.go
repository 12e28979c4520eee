// Package artifactstore is the artifact store that the hub serves: embedded/registry behind the mesh's certificates, grants and
// declarations. Who may have what is decided in artifacts, what is kept by whoever calls Collect.
package artifactstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/net/netutil"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/fair"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/registry"
)

const (
	maxConnections = 512 // further ones wait
	maxEach        = 64  // of one address; further ones are turned away
)

// Config is what a store needs; every field is required but Grace.
type Config struct {
	Dir     string // made by whoever installs the store
	Port    uint16 // where it is served
	Mesh    appliance.MeshID
	Signing ed25519.PublicKey // the mesh's
	Grace   time.Duration     // how long what nobody keeps stays after its last push; 0: a day
	Log     *slog.Logger
}

// Store is the artifact store, whether it is served at the moment or not.
type Store struct {
	cfg Config

	mu       sync.Mutex
	registry *registry.Registry // nil while it is not served
	declared func(appliance.NodeID, *ecdsa.PublicKey) ([]appliance.Digest, error)
}

// New makes a store that Serve opens.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// Port is where the store is reached.
func (s *Store) Port() uint16 { return s.cfg.Port }

// Follow says from now on what a node's declaration names; until then nobody pulls.
func (s *Store) Follow(declared func(appliance.NodeID, *ecdsa.PublicKey) ([]appliance.Digest, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.declared = declared
}

// Serve opens the store and answers on l until ctx ends. Pushes leave minFree bytes of the disk free.
func (s *Store) Serve(ctx context.Context, l net.Listener, config *tls.Config, minFree disk.Size) error {
	defer l.Close()
	if _, err := os.Stat(s.cfg.Dir); err != nil {
		return appliance.Errorf(appliance.NotFound, "open the artifact store: %w", err).WithHint("module artifact-store makes the folder where it is assigned")
	}
	r, err := registry.Open(registry.Config{Dir: s.cfg.Dir, Authorize: s.authorize, MinFree: int64(max(minFree, 1)), Grace: s.cfg.Grace, Log: s.cfg.Log})
	if err != nil {
		return err
	}
	defer r.Close()
	s.set(r)
	defer s.set(nil)
	server := &http.Server{Handler: s.brief(r.Handler()), TLSConfig: config, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		Protocols: new(http.Protocols), ErrorLog: slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug)}
	server.Protocols.SetHTTP1(true) // large blobs come faster than through HTTP/2's windows
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(netutil.LimitListener(fair.Listener(l, maxEach), maxConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve artifacts: %w", err)
	}
	return nil
}

// brief ends the connection of whoever has not shown who they are with the answer: the number of connections is bounded, and strangers
// are not to keep them.
func (s *Store) brief(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := asker(r)
		if _, err := artifacts.OpenGrant(who.Grant, s.cfg.Mesh, s.cfg.Signing, time.Now()); err != nil && who.Node == "" {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Store) set(r *registry.Registry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registry = r
}

// open gives the registry while it is served.
func (s *Store) open() (*registry.Registry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registry == nil {
		return nil, appliance.Errorf(appliance.NotReady, "the artifact store is not served").WithHint("it is where module artifact-store is assigned; the hub's log says what stands against it")
	}
	return s.registry, nil
}

// authorize asks the policy who the request is from and what it may.
func (s *Store) authorize(r *http.Request, action registry.Action, repository string, d digest.Digest) (int64, error) {
	s.mu.Lock()
	declared, open := s.declared, s.registry
	s.mu.Unlock()
	access := artifacts.Access{Mesh: s.cfg.Mesh, Signing: s.cfg.Signing,
		Declared: func(node appliance.NodeID, key *ecdsa.PublicKey) ([]appliance.Digest, error) {
			if declared == nil {
				return nil, appliance.Errorf(appliance.NotReady, "the controller has not said yet what nodes are declared")
			}
			return declared(node, key)
		},
		Beneath: func(d appliance.Digest, manifests []appliance.Digest) bool {
			roots := make([]digest.Digest, len(manifests))
			for i, m := range manifests {
				roots[i] = digest.Digest(m)
			}
			return open.Beneath(digest.Digest(d), roots)
		}}
	module, artifact, _ := strings.Cut(repository, "/")
	of := map[registry.Action]artifacts.Action{registry.Stat: artifacts.Look, registry.Pull: artifacts.Pull, registry.Push: artifacts.Push}[action]
	who := asker(r)
	limit, err := access.Allow(who, of, appliance.ModuleName(module), artifact, appliance.Digest(d), time.Now())
	if err != nil {
		s.cfg.Log.Info("request refused", "from", r.RemoteAddr, "node", who.Node, "method", r.Method, "path", r.URL.Path, "err", err)
		return 0, refuse(err)
	}
	return limit, nil
}

// asker is who a request is from: TLS has verified the certificate, where there is one.
func asker(r *http.Request) artifacts.Asker {
	var who artifacts.Asker
	who.Grant, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		who.Node, who.Key = pki.NodeOf(r.TLS.PeerCertificates[0])
	}
	return who
}

func refuse(err error) error {
	e := appliance.AsError(err)
	switch {
	case e.Reason == artifacts.Unproven:
		return registry.Refuse(http.StatusUnauthorized, e.Text)
	case e.Kind == appliance.Denied:
		return registry.Refuse(http.StatusForbidden, e.Text)
	case e.Kind == appliance.NotReady || e.Kind == appliance.Unavailable:
		return registry.Refuse(http.StatusServiceUnavailable, e.Text)
	}
	return err
}

// List gives the artifacts of a module, or of all.
func (s *Store) List(module appliance.ModuleName) ([]artifacts.Stored, error) {
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	var out []artifacts.Stored
	for _, a := range r.List() {
		if of := stored(a); module == "" || of.Module == module {
			out = append(out, of)
		}
	}
	return out, nil
}

// Find gives the artifact with a digest as each repository has it.
func (s *Store) Find(d appliance.Digest) ([]artifacts.Stored, error) {
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	var out []artifacts.Stored
	for _, a := range r.Find(digest.Digest(d)) {
		out = append(out, stored(a))
	}
	return out, nil
}

func stored(a registry.Artifact) artifacts.Stored {
	module, artifact, _ := strings.Cut(a.Repository, "/")
	out := artifacts.Stored{Reference: artifacts.Reference{Module: appliance.ModuleName(module), Artifact: artifact, Digest: appliance.Digest(a.Digest)},
		Kind: artifacts.KindOf(a.ArtifactType), MediaType: a.MediaType, Platforms: a.Platforms, Size: a.Size, Pushed: a.Pushed}
	for _, d := range a.Damaged {
		out.Damaged = append(out.Damaged, appliance.Digest(d))
	}
	return out
}

// Collect removes what keep does not want, unless it was pushed within the grace.
func (s *Store) Collect(keep func(appliance.Digest) bool) (artifacts.Collected, error) {
	r, err := s.open()
	if err != nil {
		return artifacts.Collected{}, err
	}
	c, err := r.Collect(func(d digest.Digest) bool { return keep(appliance.Digest(d)) })
	return artifacts.Collected(c), err
}

// Scrub reads everything, slowly, and gives what is damaged.
func (s *Store) Scrub(ctx context.Context) ([]artifacts.Damaged, error) {
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	_, err = r.Scrub(ctx)
	return damaged(r), err
}

func damaged(r *registry.Registry) []artifacts.Damaged {
	var out []artifacts.Damaged
	for _, d := range r.Damaged() {
		out = append(out, artifacts.Damaged{Digest: appliance.Digest(d.Digest), Repositories: d.Repositories})
	}
	return out
}

// Warnings are what an operator has to know of the store.
func (s *Store) Warnings() []wire.Warning {
	r, err := s.open()
	if err != nil {
		return []wire.Warning{{Code: "artifacts-not-served", Severity: "error", Text: err.Error(), Remedy: appliance.AsError(err).Hint}}
	}
	var out []wire.Warning
	for _, d := range damaged(r) {
		out = append(out, wire.Warning{Code: "artifact-damaged", Severity: "error", Text: fmt.Sprintf("%s of %s is damaged on the artifact store's disk", d.Digest.Short(), strings.Join(d.Repositories, ", ")),
			Remedy: "push it again: mesh artifact push MODULE/ARTIFACT PATH; look after the disk"})
	}
	return out
}
