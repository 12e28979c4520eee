package registry

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// layout is the folder on disk:
//
//	blobs/sha256/<hex>                             content, of manifests too
//	damaged/<hex>                                  what lay there and had another digest
//	repositories/<owner>/<name>/blobs/<hex>        empty: the repository has this blob
//	repositories/<owner>/<name>/manifests/<hex>    the manifest's media type; its time is when it was pushed last
//	uploads/<id>                                   what has come so far; emptied at start
//
// A file comes into place by a rename after it was synced, and its folder is synced before the push is acknowledged. The order is
// content first, then the link: what a power cut leaves between the two is content without a link, which is collected.
type layout string

func (l layout) contents() string               { return filepath.Join(string(l), "blobs", "sha256") }
func (l layout) content(d digest.Digest) string { return filepath.Join(l.contents(), d.Encoded()) }
func (l layout) asides() string                 { return filepath.Join(string(l), "damaged") }
func (l layout) aside(d digest.Digest) string   { return filepath.Join(l.asides(), d.Encoded()) }
func (l layout) upload(id string) string        { return filepath.Join(string(l), "uploads", id) }

func (l layout) link(repo string, d digest.Digest, isManifest bool) string {
	kind := "blobs"
	if isManifest {
		kind = "manifests"
	}
	return filepath.Join(string(l), "repositories", filepath.FromSlash(repo), kind, d.Encoded())
}

func (l layout) make() error {
	for _, dir := range []string{".", "blobs/sha256", "damaged", "repositories", "uploads"} {
		if err := makeFolder(filepath.Join(string(l), dir)); err != nil {
			return err
		}
	}
	left, err := os.ReadDir(filepath.Join(string(l), "uploads"))
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.Remove(l.upload(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// walk gives every link. What lies there under another kind of name is not ours and stays.
func (l layout) walk(f func(repo string, d digest.Digest, isManifest bool, found *link) error) error {
	root := filepath.Join(string(l), "repositories")
	names, err := filepath.Glob(filepath.Join(root, "*", "*"))
	if err != nil {
		return err
	}
	for _, dir := range names {
		repo, err := filepath.Rel(root, dir)
		if err != nil {
			return err
		}
		repo = filepath.ToSlash(repo)
		if !repositoryName.MatchString(repo) {
			continue
		}
		for kind, isManifest := range map[string]bool{"blobs": false, "manifests": true} {
			entries, err := os.ReadDir(filepath.Join(dir, kind))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			for _, e := range entries {
				d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
				if d.Validate() != nil {
					continue
				}
				found, err := l.readLink(repo, d, isManifest)
				if err != nil {
					return err
				}
				if err := f(repo, d, isManifest, found); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (l layout) readLink(repo string, d digest.Digest, isManifest bool) (*link, error) {
	path := l.link(repo, d, isManifest)
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	found := &link{pushed: info.ModTime(), seen: info.ModTime()}
	if isManifest {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found.mediaType = string(text)
	}
	return found, nil
}

// errDamaged says that content is not what its digest names.
var errDamaged = errors.New("the content does not have its digest any more")

// read gives content of at most a manifest's size.
func (l layout) read(d digest.Digest) ([]byte, error) {
	f, err := os.Open(l.content(d))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if errors.Is(err, syscall.EIO) || err == nil && digest.FromBytes(data) != d {
		return nil, errDamaged
	}
	return data, err
}

// platform reads from an image's configuration what it runs on; nil where that says nothing.
func (l layout) platform(config digest.Digest) *ocispec.Platform {
	data, err := l.read(config)
	if err != nil {
		return nil
	}
	var p ocispec.Platform
	if json.Unmarshal(data, &p) != nil || p.OS == "" || p.Architecture == "" {
		return nil
	}
	return &p
}

// putLink records durably that a repository has a blob. MediaType is set for a manifest.
func (l layout) putLink(repo string, d digest.Digest, mediaType string) error {
	path := l.link(repo, d, mediaType != "")
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	f, err := os.Create(l.upload("link-" + rand.Text())) // a rest of it is removed at the next start
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(mediaType)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	return err
}

// makeFolder makes a folder and those above it, each durably.
func makeFolder(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is no folder", dir)
		}
		return nil
	}
	above := filepath.Dir(dir)
	if err := makeFolder(above); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(above)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// free is what an unprivileged user may still write on the disk.
func (l layout) free() (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(string(l), &fs); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", string(l), err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}
