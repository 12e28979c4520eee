package artifacts

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
)

const (
	maxManifest = 4 << 20 // bytes
	maxFiles    = 10_000  // of an image's archive
)

// OpenImage reads an image that lies on a disk: a folder or a tar in OCI's layout, or a tar as docker save writes it.
func OpenImage(name string) (*Source, error) {
	s, err := openImage(name)
	if err != nil {
		var e *appliance.Error
		if !errors.As(err, &e) {
			e = appliance.Errorf(appliance.Invalid, "%w", err)
		}
		return nil, appliance.Errorf(e.Kind, "read image %s: %w", name, err).WithHint("an OCI layout, as a folder or a tar, or what `docker save` writes, with one image in it")
	}
	return s, nil
}

func openImage(name string) (*Source, error) {
	l, err := openLayout(name)
	if err != nil {
		return nil, err
	}
	s, err := l.image()
	if err != nil {
		l.close()
	}
	return s, err
}

// image reads what says which image it is.
func (l layout) image() (*Source, error) {
	s := &Source{close: l.close}
	data, err := l.read("index.json")
	if err == nil {
		return s, s.fromIndex(l, data)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if data, err = l.read("manifest.json"); err != nil {
		return nil, err
	}
	return s, s.fromSaved(l, data)
}

// layout gives the files of an image, wherever they lie.
type layout struct {
	open  func(name string) (io.ReadCloser, int64, error)
	close func()
}

func (l layout) read(name string) ([]byte, error) {
	f, size, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxManifest {
		return nil, appliance.Errorf(appliance.Invalid, "%s: %d bytes, at most %d", name, size, maxManifest)
	}
	return io.ReadAll(f)
}

func openLayout(name string) (layout, error) {
	info, err := os.Stat(name)
	if err != nil {
		return layout{}, err
	}
	if !info.IsDir() {
		return openArchive(name)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return layout{}, err
	}
	return layout{close: func() { root.Close() }, open: func(name string) (io.ReadCloser, int64, error) {
		f, err := root.Open(name)
		if err != nil {
			return nil, 0, err
		}
		info, err := f.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = appliance.Errorf(appliance.Invalid, "%s is no file", appliance.Quote(name))
		}
		if err != nil {
			f.Close()
			return nil, 0, err
		}
		return f, info.Size(), nil
	}}, nil
}

// place is where a file lies in an archive.
type place struct {
	from, size int64
	link       string // another file's name instead
}

func openArchive(name string) (layout, error) {
	f, err := os.Open(name)
	if err != nil {
		return layout{}, err
	}
	l, err := readArchive(f)
	if err != nil {
		f.Close()
		return l, err
	}
	l.close = func() { f.Close() }
	return l, nil
}

// archive is a file, or what a test has in its place.
type archive interface {
	io.ReadSeeker
	io.ReaderAt
}

// readArchive notes where an archive's files lie; nothing of it is unpacked.
func readArchive(f archive) (layout, error) {
	places := map[string]place{}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		var at int64
		if err == nil {
			at, err = f.Seek(0, io.SeekCurrent) // the reader takes whole blocks: a file's content begins here
		}
		if err == nil && len(places) >= maxFiles {
			err = appliance.Errorf(appliance.Invalid, "more than %d files in it", maxFiles)
		}
		if err != nil {
			return layout{}, err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			places[path.Clean(h.Name)] = place{from: at, size: h.Size}
		case tar.TypeSymlink: // docker save links to a layer that it has written before
			places[path.Clean(h.Name)] = place{link: path.Join(path.Dir(h.Name), h.Linkname)}
		}
	}
	return layout{close: func() {}, open: func(name string) (io.ReadCloser, int64, error) {
		p, ok := places[name]
		if ok && p.link != "" {
			p, ok = places[p.link]
		}
		if !ok || p.link != "" {
			return nil, 0, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
		}
		return io.NopCloser(io.NewSectionReader(f, p.from, p.size)), p.size, nil
	}}, nil
}

// fromIndex takes the one image of an OCI layout.
func (s *Source) fromIndex(l layout, data []byte) error {
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return err
	}
	if len(index.Manifests) != 1 {
		return appliance.Errorf(appliance.Invalid, "%d images in it, only one can be pushed", len(index.Manifests))
	}
	root := index.Manifests[0]
	s.Root = ocispec.Descriptor{MediaType: root.MediaType, Digest: root.Digest, Size: root.Size}
	if err := root.Digest.Validate(); err != nil {
		return err
	}
	s.fetch = func(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		if err := d.Digest.Validate(); err != nil {
			return nil, err
		}
		f, _, err := l.open(path.Join("blobs", string(d.Digest.Algorithm()), d.Digest.Encoded()))
		return f, err
	}
	return nil
}

// fromSaved makes a manifest of what older engines save, who write none: the configuration names each layer's digest.
func (s *Source) fromSaved(l layout, data []byte) error {
	var saved []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(data, &saved); err != nil {
		return err
	}
	if len(saved) != 1 {
		return appliance.Errorf(appliance.Invalid, "%d images in it, only one can be pushed", len(saved))
	}
	config, err := l.read(saved[0].Config)
	if err != nil {
		return err
	}
	var image ocispec.Image
	if err := json.Unmarshal(config, &image); err != nil {
		return err
	}
	if len(image.RootFS.DiffIDs) != len(saved[0].Layers) {
		return appliance.Errorf(appliance.Invalid, "its configuration names %d layers, the archive has %d", len(image.RootFS.DiffIDs), len(saved[0].Layers))
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))}, Layers: []ocispec.Descriptor{}}
	files := map[digest.Digest]string{}
	for i, name := range saved[0].Layers {
		f, size, err := l.open(name)
		if err != nil {
			return err
		}
		f.Close()
		d := image.RootFS.DiffIDs[i]
		files[d] = name
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d, Size: size})
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return err
	}
	s.Root = ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	s.fetch = func(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		switch d.Digest {
		case s.Root.Digest:
			return io.NopCloser(bytes.NewReader(manifest)), nil
		case m.Config.Digest:
			return io.NopCloser(bytes.NewReader(config)), nil
		}
		f, _, err := l.open(files[d.Digest])
		return f, err
	}
	return nil
}

// IsImage says whether what lies at name looks like an image rather than a folder of files.
func IsImage(name string) bool {
	info, err := os.Stat(name)
	if err != nil {
		return false
	}
	if !info.IsDir() {
		return true
	}
	_, err = os.Lstat(path.Join(strings.TrimSuffix(name, "/"), ocispec.ImageLayoutFile))
	return err == nil
}
