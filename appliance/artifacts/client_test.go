package artifacts

import (
	"archive/tar"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/embedded/registry"
)

func manifestOf(t testing.TB, s *Source) (m ocispec.Manifest) {
	t.Helper()
	f, err := s.fetch(t.Context(), s.Root)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil || digest.FromBytes(data) != s.Root.Digest || int64(len(data)) != s.Root.Size {
		t.Fatalf("the manifest is not what it is named: %v", err)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// store is a real registry with TLS that lets everybody do everything the hook does not refuse.
type store struct {
	*registry.Registry
	client Client
	sent   atomic.Int64 // bytes of answers
}

func newStore(t *testing.T, refuse func(*http.Request, registry.Action) error) *store {
	t.Helper()
	r, err := registry.Open(registry.Config{Dir: filepath.Join(t.TempDir(), "store"), MinFree: 1, MaxOwner: 10 << 20,
		Authorize: func(r *http.Request, a registry.Action, _ string, _ digest.Digest) (int64, error) {
			if refuse == nil {
				return 0, nil
			}
			return 0, refuse(r, a)
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := &store{Registry: r}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.Handler().ServeHTTP(&counting{w, &s.sent}, req)
	}))
	t.Cleanup(func() { server.Close(); r.Close() })
	trust := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.ServerName = "example.com" // of the test server's certificate
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close() // an address where nobody answers comes first
	s.client = Client{Addresses: []string{closed.Addr().String(), server.Listener.Addr().String()}, TLS: trust}
	return s
}

type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

// BLD-6: a folder is pushed and comes out of the store elsewhere as it was; the second push sends nothing.
func TestPushAndPullFiles(t *testing.T) {
	s := newStore(t, nil)
	from := t.TempDir()
	put(t, from, map[string]string{"bin/tool": "*program", "data": strings.Repeat("0123456789", 100_000)})
	packed, err := PackFiles(from, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	var told atomic.Int64
	s.client.Progress = func(_ appliance.Digest, done, total int64) {
		if done > total {
			t.Errorf("%d of %d", done, total)
		}
		told.Add(1)
	}
	ref, err := s.client.Push(t.Context(), "web", "tree", packed)
	if err != nil || told.Load() == 0 {
		t.Fatalf("%v, told %d times", err, told.Load())
	}
	told.Store(0)
	if again, err := s.client.Push(t.Context(), "web", "tree", packed); err != nil || again != ref || told.Load() != 0 {
		t.Errorf("again: %v, %v, told %d times", again, err, told.Load())
	}
	dir := filepath.Join(t.TempDir(), "tree")
	if err := s.client.PullFiles(t.Context(), ref, "linux/amd64", dir); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"bin/": "drwxr-xr-x", "bin/tool": "-rwxr-xr-x *program", "data": "-rw-r--r-- " + strings.Repeat("0123456789", 100_000)}, look(t, dir)); d != "" {
		t.Error(d)
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) != 1 {
		t.Errorf("left beside it: %v, %v", left, err)
	}
	if list := s.List(); len(list) != 1 || list[0].ArtifactType != FilesType || list[0].Repository != "web/tree" {
		t.Errorf("listed: %v", list)
	}
}

// A pull that broke off goes on where it was; what was spoiled meanwhile is noticed and fetched anew.
func TestPullGoesOn(t *testing.T) {
	s := newStore(t, nil)
	from := t.TempDir()
	random := bytes.Repeat([]byte(digest.FromString("x").Encoded()), 1)
	for range 13 { // what does not compress away
		random = append(random, []byte(digest.FromBytes(random).Encoded())...)
		random = append(random, random...)
	}
	put(t, from, map[string]string{"data": string(random)})
	packed, err := PackFiles(from, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	ref, err := s.client.Push(t.Context(), "web", "tree", packed)
	if err != nil {
		t.Fatal(err)
	}
	layer := layerOf(t, packed)
	for name, c := range map[string]struct {
		part []byte
		sent int // bytes of the layer at most
		ok   bool
	}{
		"half":      {layer[:len(layer)/2], len(layer) - len(layer)/2, true},
		"whole":     {layer, 0, true},
		"too long":  {append(append([]byte{}, layer...), "more"...), len(layer), true},
		"spoiled":   {bytes.Repeat([]byte("x"), len(layer)/2), len(layer), false},
		"and again": {nil, len(layer), true},
	} {
		dir := filepath.Join(t.TempDir(), "tree")
		if err := os.WriteFile(dir+".layer", c.part, 0o600); err != nil {
			t.Fatal(err)
		}
		before := s.sent.Load()
		err := s.client.PullFiles(t.Context(), ref, "linux/amd64", dir)
		if sent := s.sent.Load() - before; (err == nil) != c.ok || sent > int64(c.sent)+2000 {
			t.Errorf("%s: %v; %d bytes were sent of %d", name, err, sent, len(layer))
		}
		if left, _ := os.ReadDir(filepath.Dir(dir)); !c.ok && len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// BLD-7: of an index the machine's platform is taken; one that it does not name is refused with those it does.
func TestPullPicksThePlatform(t *testing.T) {
	s := newStore(t, nil)
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, arch := range []string{"arm64", "amd64"} {
		from := t.TempDir()
		put(t, from, map[string]string{"arch": arch})
		packed, err := PackFiles(from, []string{"."})
		if err != nil {
			t.Fatal(err)
		}
		defer packed.Close()
		if _, err := s.client.Push(t.Context(), "web", "tree", packed); err != nil {
			t.Fatal(err)
		}
		d := packed.Root
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		index.Manifests = append(index.Manifests, d)
	}
	data, _ := json.Marshal(index)
	l := s.client.open()
	defer l.close()
	r, err := l.repository(Reference{Module: "web", Artifact: "tree"})
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: index.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := r.Push(t.Context(), d, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	ref := Reference{"web", "tree", appliance.Digest(d.Digest)}
	dir := filepath.Join(t.TempDir(), "tree")
	if err := s.client.PullFiles(t.Context(), ref, "linux/amd64", dir); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"arch": "-rw-r--r-- amd64"}, look(t, dir)); d != "" {
		t.Error(d)
	}
	err = s.client.PullFiles(t.Context(), ref, "linux/riscv64", dir+"2")
	if appliance.KindOf(err) != appliance.NotFound || !strings.Contains(err.Error(), "not for linux/riscv64, only for linux/amd64, linux/arm64") {
		t.Error(err)
	}
}

// SAFE-1: what the store refuses keeps its kind and its sentence; nothing is left.
func TestRefusedByTheStore(t *testing.T) {
	var status int
	s := newStore(t, func(*http.Request, registry.Action) error {
		if status == 0 {
			return nil
		}
		return registry.Refuse(status, "because of this")
	})
	from := t.TempDir()
	put(t, from, map[string]string{"data": "x"})
	packed, err := PackFiles(from, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	ref := Reference{"web", "tree", packed.Digest()}
	for code, kind := range map[int]appliance.Kind{401: appliance.Denied, 403: appliance.Denied, 404: appliance.NotFound, 503: appliance.NotReady} {
		status = code
		dir := filepath.Join(t.TempDir(), "tree")
		_, pushed := s.client.Push(t.Context(), "web", "tree", packed)
		for what, err := range map[string]error{"push": pushed, "pull": s.client.PullFiles(t.Context(), ref, "linux/amd64", dir)} {
			// Whether something is there is asked with HEAD, whose answer has no body: that a push may not be is told by its status.
			if appliance.KindOf(err) != kind && !(what == "push" && code == 404) || what == "pull" && !strings.Contains(err.Error(), "because of this") {
				t.Errorf("%s, %d: %v (%s)", what, code, err, appliance.KindOf(err))
			}
		}
		if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	}
	status = 0
	put(t, from, map[string]string{"large": string(incompressible(11 << 20))})
	large, err := PackFiles(from, []string{"."})
	if err != nil {
		t.Fatal(err)
	}
	defer large.Close()
	if _, err := s.client.Push(t.Context(), "web", "tree", large); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "web holds") || !strings.Contains(err.Error(), "10485760") {
		t.Errorf("too large: %v", err)
	}
	s.client.Addresses = s.client.Addresses[:1]
	if _, err := s.client.Push(t.Context(), "web", "tree", packed); appliance.KindOf(err) != appliance.Unavailable {
		t.Errorf("nobody there: %v", err)
	}
}

func incompressible(n int) []byte {
	out := make([]byte, 0, n)
	for d := digest.FromString("seed"); len(out) < n; d = digest.FromString(string(d)) {
		out = append(out, d.Encoded()...)
	}
	return out[:n]
}

// BLD-6: an image is read from a layout in a folder or an archive, and from what an older engine saves.
func TestOpenImage(t *testing.T) {
	layer, err := os.ReadFile(tarOf(t, map[string]string{"hello": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	config, _ := json.Marshal(ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer), digest.FromBytes(layer)}}})
	of := func(mediaType string, data []byte) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	}
	manifest, _ := json.Marshal(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: of(ocispec.MediaTypeImageConfig, config), Layers: []ocispec.Descriptor{of(ocispec.MediaTypeImageLayer, layer), of(ocispec.MediaTypeImageLayer, layer)}})
	index := func(n int) string {
		x := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}}
		for range n {
			x.Manifests = append(x.Manifests, of(ocispec.MediaTypeImageManifest, manifest))
		}
		data, _ := json.Marshal(x)
		return string(data)
	}
	blob := func(data []byte) string { return "blobs/sha256/" + digest.FromBytes(data).Encoded() }
	layout := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": index(1), blob(layer): string(layer), blob(config): string(config), blob(manifest): string(manifest)}
	saved := map[string]string{"manifest.json": `[{"Config":"c.json","RepoTags":["x:latest"],"Layers":["1/layer.tar","2/layer.tar"]}]`, "c.json": string(config), "1/layer.tar": string(layer), "2/layer.tar": "-> ../1/layer.tar"}
	folder := t.TempDir()
	put(t, folder, layout)
	s := newStore(t, nil)
	for name, path := range map[string]string{"folder": folder, "archive": tarOf(t, layout), "saved": tarOf(t, saved)} {
		image, err := OpenImage(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		defer image.Close()
		ref, err := s.client.Push(t.Context(), "web", "image", image)
		if err != nil || ref.Digest != appliance.DigestOf(manifest) {
			t.Errorf("%s: %v, %v", name, ref, err)
		}
		if !IsImage(path) {
			t.Errorf("%s does not look like an image", name)
		}
	}
	if found := s.Find(digest.FromBytes(manifest)); len(found) != 1 || !cmp.Equal(found[0].Platforms, []string{"linux/amd64"}) {
		t.Errorf("found %v", found)
	}
	without := func(all map[string]string, name, content string) map[string]string {
		out := map[string]string{}
		for n, c := range all {
			if n != name {
				out[n] = c
			}
		}
		if content != "" {
			out[name] = content
		}
		return out
	}
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"nothing":         {map[string]string{"a": "b"}, "manifest.json"},
		"two images":      {without(layout, "index.json", index(2)), "2 images in it"},
		"no image":        {without(layout, "index.json", index(0)), "0 images in it"},
		"no JSON":         {without(layout, "index.json", "hello"), "invalid character"},
		"two saved":       {without(saved, "manifest.json", `[{},{}]`), "2 images in it"},
		"a layer short":   {without(saved, "manifest.json", `[{"Config":"c.json","Layers":["1/layer.tar"]}]`), "names 2 layers, the archive has 1"},
		"no such layer":   {without(saved, "1/layer.tar", ""), "layer.tar"},
		"out of it":       {without(saved, "manifest.json", `[{"Config":"../../../etc/passwd","Layers":[]}]`), "does not exist"},
		"a large index":   {without(layout, "index.json", strings.Repeat(" ", maxManifest+1)), "at most 4194304"},
		"a digest of old": {without(layout, "index.json", `{"manifests":[{"digest":"sha256:../../x"}]}`), "digest"},
	} {
		image, err := OpenImage(tarOf(t, c.files))
		if err == nil {
			image.Close()
		}
		if appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), c.says) || appliance.AsError(err).Hint == "" {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	// A layer that is not what the configuration names is noticed by the store.
	spoiled, err := OpenImage(tarOf(t, without(saved, "1/layer.tar", string(layer[:len(layer)-1])+"x")))
	if err != nil {
		t.Fatal(err)
	}
	defer spoiled.Close()
	if _, err := newStore(t, nil).client.Push(t.Context(), "web", "image", spoiled); err == nil {
		t.Error("a spoiled layer was taken")
	}
}

// TLS that is not the store's is not spoken to.
func TestPushToAStranger(t *testing.T) {
	s := newStore(t, nil)
	s.client.TLS = &tls.Config{ServerName: "example.com"}
	packed, err := PackFiles(".", []string{"client.go"})
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	if _, err := s.client.Push(t.Context(), "web", "tree", packed); appliance.KindOf(err) != appliance.Unavailable {
		t.Error(err)
	}
}

// tarOf makes an archive of files as put has them.
func tarOf(t testing.TB, files map[string]string) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "*.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, content := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}
		if target, is := strings.CutPrefix(content, "-> "); is {
			h, content = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}, ""
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// SAFE-2: whatever lies at a path is no image, or one whose root has its digest's form.
func FuzzImage(f *testing.F) {
	for _, files := range []map[string]string{
		{"index.json": `{"manifests":[{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":3}]}`, "blobs/sha256/" + strings.Repeat("0", 64): "abc"},
		{"manifest.json": `[{"Config":"c.json","Layers":["l"]}]`, "c.json": `{"rootfs":{"diff_ids":["x"]}}`, "l": "-> c.json"},
	} {
		data, err := os.ReadFile(tarOf(f, files))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := readArchive(bytes.NewReader(data))
		if err != nil {
			return
		}
		s, err := l.image()
		if err != nil {
			return
		}
		if body, err := s.fetch(t.Context(), s.Root); err == nil {
			body.Close()
		}
		if s.Root.Digest.Validate() != nil {
			t.Errorf("%q", s.Root.Digest)
		}
	})
}
