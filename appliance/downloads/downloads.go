// Package downloads hands binaries from the hub to machines over HTTPS: to agents by digest, under the mesh's own authority; to machines
// that have none yet by the kind of machine, under a key that they pin. What a machine does with one is decided elsewhere.
package downloads

import (
	"context"
	"crypto/ecdsa"
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
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/fair"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

const (
	maxBinary      = 512 << 20 // bytes of a binary
	maxConnections = 256       // further ones wait: a stranger who only connects takes no more of the process
	maxEach        = 64        // of one address; further ones are turned away
)

// machines are what `uname -m` calls the architectures.
var machines = map[string]string{"x86_64": "amd64", "aarch64": "arm64"}

// Server hands binaries out.
type Server struct {
	port     int
	pin      string
	binaries map[string]*binary // by architecture
}

// New makes the server that listens on port under key, and hands out the file of each architecture. A file may be missing, or come later.
func New(port uint16, key *ecdsa.PublicKey, files map[string]string) (*Server, error) {
	pin, err := pki.KeyPin(key)
	if err != nil {
		return nil, err
	}
	s := &Server{port: int(port), pin: pin, binaries: map[string]*binary{}}
	for architecture, path := range files {
		s.binaries[architecture] = &binary{path: path}
	}
	return s, nil
}

// Architectures are those of which there is a binary.
func (s *Server) Architectures() []string {
	var out []string
	for architecture, b := range s.binaries {
		if _, err := os.Stat(b.path); err == nil {
			out = append(out, architecture)
		}
	}
	slices.Sort(out)
	return out
}

// Replace is what a version-0 declaration says so that an agent on a machine of this architecture becomes the hub's binary; an agent
// that states none gets that of the hub's own.
func (s *Server) Replace(architecture string) (wire.Replace, error) {
	var r wire.Replace
	if architecture == "" {
		architecture = runtime.GOARCH
	}
	if !slices.Contains(s.Architectures(), architecture) {
		return r, appliance.Errorf(appliance.NotFound, "replace the agent: the hub has no binary for %s", appliance.Quote(architecture)).
			WithHint("put one of the hub's version beside the hub's own, as bin/" + installation.OtherBinary(architecture))
	}
	digest, size, err := s.binaries[architecture].digested()
	if err != nil {
		return r, err
	}
	r.Agent.Digest, r.Agent.Size, r.Agent.Path, r.Agent.Port = digest, size, "/binary/"+string(digest), s.port
	return r, nil
}

// Curl is the line that makes a machine without the binary one that runs `mesh join TOKEN`. The certificate's name is not the address
// dialled, so curl is told to look at the key alone (-k): it compares that before it asks for anything. The binary appears under its
// name whole, and what follows is run only then.
func (s *Server) Curl(host, token string) string {
	const path = "/usr/local/bin/mesh"
	url := "https://" + net.JoinHostPort(host, strconv.Itoa(s.port)) + "/mesh/$(uname -m)"
	return strings.Join([]string{
		fmt.Sprintf(`curl -fk --connect-timeout 10 --pinnedpubkey %s -o %s.new "%s"`, s.pin, path, url),
		"chmod 755 " + path + ".new",
		"mv -f " + path + ".new " + path,
		path + " join " + token,
	}, " && ")
}

// Serve answers on l until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener, config *tls.Config) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /binary/{digest}", s.byDigest)
	mux.HandleFunc("GET /mesh/{machine}", s.byMachine)
	server := &http.Server{Handler: mux, TLSConfig: config, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, WriteTimeout: 10 * time.Minute, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(netutil.LimitListener(fair.Listener(l, maxEach), maxConnections), "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve downloads: %w", err)
	}
	return nil
}

func (s *Server) byDigest(w http.ResponseWriter, r *http.Request) {
	for _, b := range s.binaries {
		if digest, _, err := b.digested(); err == nil && r.PathValue("digest") == string(digest) {
			b.give(w, r)
			return
		}
	}
	http.Error(w, "no such binary here", http.StatusNotFound)
}

func (s *Server) byMachine(w http.ResponseWriter, r *http.Request) {
	there := s.Architectures()
	if architecture := machines[r.PathValue("machine")]; slices.Contains(there, architecture) {
		s.binaries[architecture].give(w, r)
		return
	}
	http.Error(w, fmt.Sprintf("there is no binary for a machine of kind %s here; the hub has those for linux %s",
		appliance.Quote(r.PathValue("machine")), strings.Join(there, " and ")), http.StatusNotFound)
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
