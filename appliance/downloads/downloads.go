// Package downloads hands binaries from the hub to machines, by digest, over HTTPS under the mesh's own authority. What a machine does
// with one is decided elsewhere.
package downloads

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/wire"
)

const (
	maxBinary      = 512 << 20 // bytes of a binary
	maxConnections = 256       // further ones wait: a stranger who only connects takes no more of the process
)

// Binary is a binary on this machine, digested once.
type Binary struct {
	path string
	once func() (appliance.Digest, int64, error)
}

func New(path string) *Binary {
	b := &Binary{path: path}
	var digest appliance.Digest
	var size int64
	var err error
	var once sync.Once
	b.once = func() (appliance.Digest, int64, error) {
		once.Do(func() { digest, size, err = digestFile(path) })
		return digest, size, err
	}
	return b
}

func digestFile(path string) (appliance.Digest, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return "", 0, fmt.Errorf("digest %s: %w", path, err)
	}
	return appliance.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))), n, nil
}

// DigestOf is the digest under which the hub would hand out the file at path.
func DigestOf(path string) (appliance.Digest, error) {
	digest, _, err := digestFile(path)
	return digest, err
}

// Replace is what a version-0 declaration says so that an agent becomes this binary.
func (b *Binary) Replace(port int) (wire.Replace, error) {
	var r wire.Replace
	digest, size, err := b.once()
	if err != nil {
		return r, err
	}
	r.Agent.Digest, r.Agent.Size, r.Agent.Path, r.Agent.Port = digest, size, "/binary/"+string(digest), port
	return r, nil
}

// Serve answers on l until ctx ends.
func (b *Binary) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /binary/{digest}", func(w http.ResponseWriter, r *http.Request) {
		digest, _, err := b.once()
		if err != nil || r.PathValue("digest") != string(digest) {
			http.Error(w, "no such binary here", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeFile(w, r, b.path)
	})
	server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, WriteTimeout: 10 * time.Minute, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(netutil.LimitListener(l, maxConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve downloads: %w", err)
	}
	return nil
}

// Fetch brings the binary to path, trying the hosts of endpoints in turn. It is in place whole, with the right digest and mode 0755, or
// not at all.
func Fetch(ctx context.Context, endpoints []string, config *tls.Config, what wire.Replace, path string) error {
	switch {
	case !what.Agent.Digest.Valid() || what.Agent.Size <= 0 || what.Agent.Size > maxBinary:
		return appliance.Errorf(appliance.Invalid, "fetch binary: digest or size is not one (at most %d bytes)", int64(maxBinary))
	case !strings.HasPrefix(what.Agent.Path, "/binary/") || what.Agent.Port < 1 || what.Agent.Port > 65535:
		return appliance.Errorf(appliance.Invalid, "fetch binary: %s is no place of the download server", appliance.Quote(what.Agent.Path))
	}
	client := &http.Client{
		Transport:     &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: 10 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var all []error
	for _, e := range endpoints {
		host, _, err := net.SplitHostPort(e)
		if err != nil {
			host = e
		}
		err = fetch(ctx, client, "https://"+net.JoinHostPort(host, strconv.Itoa(what.Agent.Port))+what.Agent.Path, what, path)
		if err == nil {
			return nil
		}
		all = append(all, err)
	}
	return appliance.Errorf(appliance.Unavailable, "fetch binary %s: %w", what.Agent.Digest.Short(), errors.Join(all...))
}

func fetch(ctx context.Context, client *http.Client, url string, what wire.Replace, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, res.Status)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".fetched-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(res.Body, what.Agent.Size+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", url, err)
	}
	if got := appliance.Digest("sha256:" + hex.EncodeToString(h.Sum(nil))); n != what.Agent.Size || got != what.Agent.Digest {
		return appliance.Errorf(appliance.Denied, "%s gave %d bytes with digest %s, not %d with %s", url, n, got.Short(), what.Agent.Size, what.Agent.Digest.Short())
	}
	if err := f.Chmod(0o755); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return durable.SyncFolder(filepath.Dir(path))
}
