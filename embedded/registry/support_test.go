package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
)

// served is a registry that answers, and a clock that a test moves.
type served struct {
	*Registry
	t    *testing.T
	url  string
	mu   sync.Mutex
	time time.Time
}

func (s *served) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.time
}

func (s *served) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.time = s.time.Add(d)
}

func allowAll(*http.Request, Action, string, digest.Digest) (int64, error) { return 0, nil }

// serve opens a registry until the test ends; MinFree is as good as none unless the test says otherwise.
func serve(t *testing.T, cfg Config) *served {
	t.Helper()
	s := &served{t: t, time: time.Now()}
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "store")
	}
	if cfg.Authorize == nil {
		cfg.Authorize = allowAll
	}
	if cfg.MinFree == 0 {
		cfg.MinFree = 1
	}
	cfg.Now = s.now
	var err error
	if s.Registry, err = Open(cfg); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	s.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		s.Close()
	})
	return s
}

// client is a real one.
func (s *served) client(repo string) *remote.Repository {
	s.t.Helper()
	r, err := remote.NewRepository(strings.TrimPrefix(s.url, "http://") + "/" + repo)
	if err != nil {
		s.t.Fatal(err)
	}
	r.PlainHTTP = true
	r.Client = http.DefaultClient
	return r
}

func describe(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

func (s *served) push(repo, mediaType string, data []byte) ocispec.Descriptor {
	s.t.Helper()
	d := describe(mediaType, data)
	if err := s.client(repo).Push(s.t.Context(), d, bytes.NewReader(data)); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// image is what an image is made of.
type image struct {
	config, layer []byte
	manifest      []byte
	desc          ocispec.Descriptor
}

func newImage(arch string, layer []byte) image {
	i := image{layer: layer}
	i.config, _ = json.Marshal(ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: arch}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer)}}})
	i.manifest, _ = json.Marshal(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: describe(ocispec.MediaTypeImageConfig, i.config), Layers: []ocispec.Descriptor{describe(ocispec.MediaTypeImageLayer, layer)}})
	i.desc = describe(ocispec.MediaTypeImageManifest, i.manifest)
	return i
}

func newIndex(of ...image) (ocispec.Descriptor, []byte) {
	x := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, i := range of {
		x.Manifests = append(x.Manifests, i.desc)
	}
	data, _ := json.Marshal(x)
	return describe(ocispec.MediaTypeImageIndex, data), data
}

func (s *served) pushImage(repo string, i image) {
	s.t.Helper()
	s.push(repo, ocispec.MediaTypeImageLayer, i.layer)
	s.push(repo, ocispec.MediaTypeImageConfig, i.config)
	s.push(repo, ocispec.MediaTypeImageManifest, i.manifest)
}

// get gives a blob as a client sees it.
func (s *served) get(repo string, d ocispec.Descriptor) ([]byte, error) {
	body, err := s.client(repo).Fetch(s.t.Context(), d)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

func (s *served) has(repo string, d ocispec.Descriptor) bool {
	ok, err := s.client(repo).Exists(s.t.Context(), d)
	if err != nil {
		s.t.Errorf("%s in %s: %v", d.Digest, repo, err)
	}
	return ok
}

// answer is what the protocol says.
type answer struct {
	status int
	code   string
	text   string
	header http.Header
}

func (a answer) String() string { return fmt.Sprintf("%d %s: %s", a.status, a.code, a.text) }

// ask sends one request; header is name and value in turn.
func (s *served) ask(method, path string, body io.Reader, header ...string) answer {
	s.t.Helper()
	if !strings.HasPrefix(path, "http") {
		path = s.url + path
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(s.t.Context()), method, path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, header: res.Header}
	var said struct {
		Errors []struct{ Code, Message string }
	}
	if json.Unmarshal(data, &said) == nil && len(said.Errors) > 0 {
		a.code, a.text = said.Errors[0].Code, said.Errors[0].Message
	}
	return a
}

// files lists what lies in the store, for "nothing is left behind".
func (s *served) files() string {
	s.t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(s.cfg.Dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out.WriteString(strings.TrimPrefix(path, s.cfg.Dir) + "\n")
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out.String()
}

// spoil flips a bit of content in its place.
func (s *served) spoil(d digest.Digest) {
	s.t.Helper()
	f, err := os.OpenFile(s.layout.content(d), os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], 3); err != nil {
		s.t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], 3); err != nil {
		s.t.Fatal(err)
	}
}
