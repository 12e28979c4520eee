package artifacts

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
)

// Source is an artifact that is complete on this machine, to be pushed.
type Source struct {
	Root  ocispec.Descriptor // its manifest or index
	fetch func(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
	close func()
}

// Close removes what was made for the push.
func (s *Source) Close() { s.close() }

// Digest names the artifact.
func (s *Source) Digest() appliance.Digest { return appliance.Digest(s.Root.Digest) }

// PackFiles makes an artifact of the files and folders that paths name in folder dir; "." is all of it. The same files make the same bytes:
// sorted, without times and owners, of modes only whether a file can be executed. Links that lead out, devices and what else is no file
// are refused.
func PackFiles(dir string, paths []string) (*Source, error) {
	return pack(dir, paths, extent{MaxEntries, MaxBytes})
}

func pack(dir string, paths []string, bound extent) (*Source, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "pack %s: %w", dir, err)
	}
	defer root.Close()
	layer, err := os.CreateTemp("", "mesh-artifact-*")
	if err != nil {
		return nil, err
	}
	s := &Source{close: func() {
		layer.Close()
		os.Remove(layer.Name())
	}}
	hash := digest.SHA256.Digester()
	size, err := packLayer(root, paths, bound, io.MultiWriter(layer, hash.Hash()))
	if err == nil {
		err = s.describe(layer, hash.Digest(), size)
	}
	if err != nil {
		s.close()
		return nil, packError(dir, err)
	}
	return s, nil
}

// packError says what was being packed, and keeps what a refusal says beyond.
func packError(dir string, err error) error {
	var e *appliance.Error
	if !errors.As(err, &e) {
		e = appliance.Errorf(appliance.Invalid, "%w", err)
	}
	return appliance.Errorf(e.Kind, "pack %s: %w", dir, err).WithHint(e.Hint)
}

// describe makes the manifest around a written layer.
func (s *Source) describe(layer *os.File, d digest.Digest, size extent) error {
	written, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	of := ocispec.Descriptor{MediaType: layerType, Digest: d, Size: written,
		Annotations: map[string]string{sizeNote: strconv.FormatInt(size.bytes, 10), entriesNote: strconv.Itoa(size.entries)}}
	config := ocispec.DescriptorEmptyJSON
	config.Data = nil
	manifest, err := json.Marshal(ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: FilesType, Config: config, Layers: []ocispec.Descriptor{of}})
	if err != nil {
		return err
	}
	s.Root = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}
	s.fetch = func(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
		switch d.Digest {
		case s.Root.Digest:
			return io.NopCloser(bytes.NewReader(manifest)), nil
		case config.Digest:
			return io.NopCloser(strings.NewReader("{}")), nil
		case of.Digest:
			return io.NopCloser(io.NewSectionReader(layer, 0, written)), nil
		}
		return nil, appliance.Errorf(appliance.NotFound, "the artifact has no %s", d.Digest)
	}
	return nil
}

// packLayer writes the tree as a compressed tar.
func packLayer(root *os.Root, paths []string, bound extent, to io.Writer) (extent, error) {
	names, err := walk(root, paths, bound.entries)
	if err != nil {
		return extent{}, err
	}
	z, err := zstd.NewWriter(to, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return extent{}, err
	}
	w := tar.NewWriter(z)
	var size extent
	for _, name := range names {
		if err := packEntry(root, name, w, &size, bound); err != nil {
			z.Close()
			return size, err
		}
	}
	return size, errors.Join(w.Close(), z.Close())
}

// walk gives the names of everything that paths name, with the folders above, sorted.
func walk(root *os.Root, paths []string, most int) ([]string, error) {
	seen := map[string]bool{}
	add := func(name string) error {
		if err := checkName(name); err != nil {
			return err
		}
		seen[name] = true
		if len(seen) > most {
			return appliance.Errorf(appliance.Invalid, "more than %d files, folders and links", most)
		}
		return nil
	}
	for _, p := range paths {
		p = path.Clean(p)
		if p != "." {
			if err := checkName(p); err != nil {
				return nil, err
			}
			for above := path.Dir(p); above != "."; above = path.Dir(above) {
				if info, err := root.Lstat(above); err != nil || !info.IsDir() {
					return nil, appliance.Errorf(appliance.Invalid, "%s: %s is no folder of the tree", appliance.Quote(p), appliance.Quote(above))
				}
				if err := add(above); err != nil {
					return nil, err
				}
			}
		}
		if info, err := root.Lstat(p); err != nil || info.Mode().Type() == fs.ModeSymlink { // walking begins behind a link
			if err == nil {
				err = add(p)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		err := fs.WalkDir(root.FS(), p, func(name string, _ fs.DirEntry, err error) error {
			if err != nil || name == "." {
				return err
			}
			return add(name)
		})
		if err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names) // a folder comes before what is in it
	if len(names) == 0 {
		return nil, appliance.Errorf(appliance.Invalid, "there is nothing in it")
	}
	return names, nil
}

func packEntry(root *os.Root, name string, w *tar.Writer, size *extent, bound extent) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: 0o644}
	if info.Mode().Perm()&0o111 != 0 {
		h.Mode = 0o755
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
	case fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = root.Readlink(name); err != nil {
			return err
		}
		if err := checkLink(name, h.Linkname); err != nil {
			return err
		}
	case 0:
		return packFile(root, name, h, w, size, bound)
	default:
		return appliance.Errorf(appliance.Invalid, "%s: neither a file, a folder nor a symbolic link", appliance.Quote(name))
	}
	if err := size.add(bound, 0); err != nil {
		return err
	}
	return w.WriteHeader(h)
}

func packFile(root *os.Root, name string, h *tar.Header, w *tar.Writer, size *extent, bound extent) error {
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return appliance.Errorf(appliance.Invalid, "%s: it changed while it was packed", appliance.Quote(name))
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := size.add(bound, h.Size); err != nil {
		return err
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(w, io.LimitReader(f, h.Size)); err != nil || n != h.Size {
		return errors.Join(err, appliance.Errorf(appliance.Conflict, "%s: it changed while it was packed", appliance.Quote(name)))
	}
	return nil
}
