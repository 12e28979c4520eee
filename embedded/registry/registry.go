// Package registry is an OCI registry on disk: artifacts are pushed and pulled by digest, what was acknowledged is synced, uploads are
// bounded, what nobody keeps is collected, and content that no longer has its digest is found and never served. Begin with Open.
//
// Who may push and pull, which manifests are kept and what an artifact is for are decided elsewhere; nothing about meshes, nodes or
// modules belongs here. Tags and deletions are not offered.
package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
)

// Action is what a request does.
type Action int

const (
	Stat Action = iota // asks whether something is there, as whoever pushes does first
	Pull
	Push
)

// Config is what a registry needs.
type Config struct {
	Dir string // required: folder of the content, made with mode 0700

	// Authorize is required. It is asked for every request but the version check, before anything is looked up. The digest is empty
	// while an upload goes on. What it refuses is made by Refuse. Limit bounds what the repository's owner may hold after a push; 0: MaxOwner.
	Authorize func(r *http.Request, action Action, repository string, d digest.Digest) (limit int64, err error)

	MaxBlob  int64            // bytes of one blob; 0: 2 GiB
	MaxOwner int64            // bytes of all repositories of one owner, uploads under way included; 0: 2 GiB
	MinFree  int64            // bytes that a push leaves free on the disk; 0: 1 GiB
	Grace    time.Duration    // how long what nobody keeps stays after its last push; 0: a day
	Scrub    int64            // bytes that Scrub reads per second; 0: 64 MiB
	Now      func() time.Time // nil: time.Now
	Log      *slog.Logger     // nil: discard
}

const (
	maxManifest = 4 << 20        // bytes; what the protocol asks registries to take
	maxUploads  = 64             // under way, of one owner
	abandoned   = 24 * time.Hour // after which an upload that nobody writes to is dropped
	idle        = time.Minute    // in which a connection must take or give some bytes
)

// Registry is an open store. Its methods may be called at the same time.
type Registry struct {
	cfg     Config
	log     *slog.Logger
	layout  layout
	handler http.Handler

	// sweeping keeps what a push has just seen or put in place from being swept away before the push is recorded: pushes hold it for
	// reading, Collect and Scrub for writing, each for as long as it takes to record or remove.
	sweeping sync.RWMutex
	scrubs   sync.Mutex // one at a time

	mu      sync.Mutex // guards the following; nothing is read or synced under it
	repos   map[string]*repository
	blobs   map[digest.Digest]*blob
	uploads map[string]*upload
	owners  map[string]int64 // bytes held, uploads under way included
	closed  bool
}

// repository is one artifact's: "<owner>/<name>".
type repository struct {
	blobs     map[digest.Digest]*link
	manifests map[digest.Digest]*link
}

// link says that a repository has a blob.
type link struct {
	mediaType string // of a manifest
	size      int64
	pushed    time.Time
	seen      time.Time // by whoever pushes, who then leaves out to push it
}

// blob is content; a manifest is one that has been read.
type blob struct {
	size     int64
	damaged  bool
	manifest *manifest
}

// repositoryName is the closed grammar of repositories: an owner and a name.
var repositoryName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?/[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?$`)

func ownerOf(repository string) string {
	owner, _, _ := strings.Cut(repository, "/")
	return owner
}

// Open reads what is on disk, and drops uploads that were under way.
func Open(cfg Config) (*Registry, error) {
	if cfg.Dir == "" || cfg.Authorize == nil {
		return nil, errors.New("open registry: Dir and Authorize are required")
	}
	for _, bound := range []*int64{&cfg.MaxBlob, &cfg.MaxOwner} {
		if *bound == 0 {
			*bound = 2 << 30
		}
	}
	if cfg.MinFree == 0 {
		cfg.MinFree = 1 << 30
	}
	if cfg.Grace == 0 {
		cfg.Grace = 24 * time.Hour
	}
	if cfg.Scrub == 0 {
		cfg.Scrub = 64 << 20
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{cfg: cfg, log: cfg.Log, layout: layout(cfg.Dir), repos: map[string]*repository{}, blobs: map[digest.Digest]*blob{},
		uploads: map[string]*upload{}, owners: map[string]int64{}}
	if err := r.layout.make(); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	if err := r.load(); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	r.handler = r.newHandler()
	return r, nil
}

// Handler answers the distribution protocol at the site's root.
func (r *Registry) Handler() http.Handler { return r.handler }

// Close drops the uploads under way. Close the server first: requests that come later are refused.
func (r *Registry) Close() error {
	r.mu.Lock()
	r.closed = true
	var open []*upload
	for _, u := range r.uploads {
		open = append(open, u)
	}
	r.mu.Unlock()
	for _, u := range open {
		u.drop()
	}
	return nil
}

// load takes what is on disk into memory. Content that is missing is damaged: whoever has it can push it again.
func (r *Registry) load() error {
	return r.layout.walk(func(repo string, d digest.Digest, isManifest bool, l *link) error {
		at := r.repo(repo)
		b, err := r.blob(d)
		if err != nil {
			return err
		}
		l.size = b.size
		if !isManifest {
			at.blobs[d] = l
		} else {
			at.manifests[d] = l
			if b.manifest == nil && !b.damaged {
				if err := r.learn(d, b); err != nil {
					return err
				}
			}
		}
		r.owners[ownerOf(repo)] += l.size
		return nil
	})
}

// repo gives a repository, made where there is none. The caller holds mu, or is Open.
func (r *Registry) repo(name string) *repository {
	at := r.repos[name]
	if at == nil {
		at = &repository{blobs: map[digest.Digest]*link{}, manifests: map[digest.Digest]*link{}}
		r.repos[name] = at
	}
	return at
}

// blob finds content on disk, for load.
func (r *Registry) blob(d digest.Digest) (*blob, error) {
	if b := r.blobs[d]; b != nil {
		return b, nil
	}
	b := &blob{}
	info, err := os.Lstat(r.layout.content(d))
	switch {
	case errors.Is(err, os.ErrNotExist):
		b.damaged = true
		r.log.Error("content is missing", "digest", d)
	case err != nil:
		return nil, err
	default:
		b.size = info.Size()
	}
	r.blobs[d] = b
	return b, nil
}

// learn reads a manifest that is on disk. One that is none any more is damaged.
func (r *Registry) learn(d digest.Digest, b *blob) error {
	data, err := r.layout.read(d)
	if errors.Is(err, errDamaged) {
		r.log.Error("manifest is damaged", "digest", d)
		b.damaged = true
		return nil
	}
	if err != nil {
		return err
	}
	b.manifest, err = parseManifest(data)
	if err != nil {
		return fmt.Errorf("read manifest %s: %w", d, err)
	}
	if b.manifest.config != "" {
		b.manifest.platform = r.layout.platform(b.manifest.config)
	}
	return nil
}
