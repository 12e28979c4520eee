package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
)

// PullFiles makes dir of the file tree that ref names, for a platform "os/architecture": whole, verified and on disk, or not at all. What was
// interrupted goes on where it was: until dir is there, what has come lies beside it in dir.layer.
func (c Client) PullFiles(ctx context.Context, ref Reference, platform, dir string) error {
	l := c.open()
	defer l.close()
	layer, bound, err := l.layer(ctx, ref, platform)
	if err != nil {
		return explain("pull "+ref.String(), err)
	}
	part := dir + ".layer"
	if err := l.fetch(ctx, ref, layer, part); err != nil {
		return explain("pull "+ref.String(), err)
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unpack(f, bound, dir); err != nil {
		os.Remove(part)
		return fmt.Errorf("unpack %s: %w", ref, err)
	}
	return os.Remove(part)
}

// layer finds what is to be fetched, and what its manifest says that it takes.
func (l line) layer(ctx context.Context, ref Reference, platform string) (ocispec.Descriptor, extent, error) {
	var none ocispec.Descriptor
	m, err := l.manifest(ctx, ref)
	if err == nil && m.Manifests != nil {
		var of appliance.Digest
		if of, err = choose(m.Manifests, platform); err == nil {
			m, err = l.manifest(ctx, Reference{ref.Module, ref.Artifact, of})
		}
	}
	if err != nil {
		return none, extent{}, err
	}
	if m.ArtifactType != FilesType || len(m.Layers) != 1 || m.Layers[0].MediaType != layerType {
		return none, extent{}, appliance.Errorf(appliance.Invalid, "it is no file tree but %s", appliance.Quote(m.ArtifactType))
	}
	layer := m.Layers[0]
	entries, err1 := strconv.Atoi(layer.Annotations[entriesNote])
	bytes, err2 := strconv.ParseInt(layer.Annotations[sizeNote], 10, 64)
	bound := extent{entries, bytes}
	switch {
	case err1 != nil || err2 != nil || entries < 0 || bytes < 0:
		return none, bound, appliance.Errorf(appliance.Invalid, "its manifest does not say how much it is")
	case entries > MaxEntries || bytes > MaxBytes || layer.Size < 0 || layer.Size > MaxBytes:
		return none, bound, appliance.Errorf(appliance.Invalid, "%d files, folders and links with %d bytes, at most %d and %d are taken", entries, bytes, MaxEntries, int64(MaxBytes))
	}
	return layer, bound, nil
}

// choose picks an index's manifest for the platform.
func choose(manifests []ocispec.Descriptor, platform string) (appliance.Digest, error) {
	var others []string
	for _, m := range manifests {
		if m.Platform == nil {
			continue
		}
		p := m.Platform.OS + "/" + m.Platform.Architecture
		if p == platform {
			return appliance.Digest(m.Digest), nil
		}
		others = append(others, p)
	}
	slices.Sort(others)
	return "", appliance.Errorf(appliance.NotFound, "it is not for %s, only for %s", platform, strings.Join(others, ", ")).WithHint("push it for that platform too")
}

// manifestOrIndex is read as either.
type manifestOrIndex struct {
	ocispec.Manifest
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// manifest gives what has the reference's digest.
func (l line) manifest(ctx context.Context, ref Reference) (m manifestOrIndex, err error) {
	body, err := l.get(ctx, "manifests", ref, ocispec.Descriptor{Digest: digest.Digest(ref.Digest), Size: maxManifest}, 0)
	if err != nil {
		return m, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, maxManifest+1))
	if err != nil {
		return m, err
	}
	if got := appliance.DigestOf(data); got != ref.Digest {
		return m, appliance.Errorf(appliance.Denied, "what came has digest %s, not %s", got, ref.Digest)
	}
	return m, json.Unmarshal(data, &m)
}

// fetch brings a blob to path, going on where path ends. It has its digest then.
func (l line) fetch(ctx context.Context, ref Reference, d ocispec.Descriptor, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	had, err := io.Copy(hash, f)
	if err != nil {
		return err
	}
	if had > d.Size {
		had = 0
	}
	if had == 0 {
		hash.Reset()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	if had < d.Size {
		body, err := l.get(ctx, "blobs", ref, d, had)
		if err != nil {
			return err
		}
		defer body.Close()
		if _, err := io.Copy(io.MultiWriter(f, hash), io.LimitReader(body, d.Size-had+1)); err != nil {
			return err
		}
	}
	if got := digest.NewDigest(digest.SHA256, hash); got != d.Digest {
		os.Remove(path)
		return appliance.Errorf(appliance.Denied, "what came has digest %s, not %s", got, d.Digest)
	}
	return nil
}

// get asks for a blob or a manifest from an offset on.
func (l line) get(ctx context.Context, kind string, ref Reference, d ocispec.Descriptor, from int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.name+"/v2/"+ref.Repository()+"/"+kind+"/"+string(d.Digest), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	want := http.StatusOK
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		want = http.StatusPartialContent
	}
	res, err := l.http.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if res.StatusCode != want {
		defer cancel()
		defer res.Body.Close()
		var said struct{ Errors []struct{ Message string } }
		text := res.Status
		if json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&said) == nil && len(said.Errors) > 0 {
			text = said.Errors[0].Message
		}
		return nil, refused(res.StatusCode, text)
	}
	b := &body{ReadCloser: res.Body, d: d, done: from}
	if kind == "blobs" {
		b.tell = l.progress
	}
	b.stalled = time.AfterFunc(stalledAfter, cancel)
	b.end = func() {
		b.stalled.Stop()
		cancel()
	}
	return b, nil
}

// body is a blob on its way; one that stalls is given up.
type body struct {
	io.ReadCloser
	d       ocispec.Descriptor
	done    int64
	tell    Progress
	stalled *time.Timer
	end     func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.stalled.Reset(stalledAfter) && errors.Is(err, context.Canceled) {
		err = fmt.Errorf("no byte came for %s", stalledAfter)
	}
	b.done += int64(n)
	if b.tell != nil {
		b.tell(appliance.Digest(b.d.Digest), b.done, b.d.Size)
	}
	return n, err
}

func (b *body) Close() error {
	b.end()
	return b.ReadCloser.Close()
}
