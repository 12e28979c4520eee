package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
)

// pushArtifact asks the hub for leave and pushes. A push that takes longer than the leave lasts goes on with another.
func (g *global) pushArtifact(c *cobra.Command, module appliance.ModuleName, artifact string, s *artifacts.Source, limit int64) (artifacts.Reference, error) {
	p := newProgress(c.ErrOrStderr(), "push "+string(module)+"/"+artifact)
	defer p.end()
	for {
		var granted operators.GrantedPush
		if err := g.call(c, operators.ArtifactGrant, operators.GrantPush{Module: module, Artifact: artifact, MaxBytes: limit}, &granted); err != nil {
			return artifacts.Reference{}, err
		}
		client, err := g.artifactClient(granted)
		if err != nil {
			return artifacts.Reference{}, err
		}
		client.Progress = p.tell
		ref, err := client.Push(c.Context(), module, artifact, s)
		if appliance.KindOf(err) == appliance.Denied && time.Now().After(granted.Expires) {
			continue
		}
		return ref, err
	}
}

// artifactClient reaches the artifact store where the hub is reached.
func (g *global) artifactClient(granted operators.GrantedPush) (artifacts.Client, error) {
	credential, err := g.credential()
	if err != nil {
		return artifacts.Client{}, err
	}
	authority, err := pki.ParseAuthority(credential.Authority)
	if err != nil {
		return artifacts.Client{}, err
	}
	client := artifacts.Client{TLS: pki.ClientTLS(authority, pki.ArtifactsName(credential.Mesh), nil, pki.Clock(nil)), Grant: granted.Grant}
	for _, b := range credential.Broker {
		host, _, err := net.SplitHostPort(b)
		if err != nil {
			return client, err
		}
		client.Addresses = append(client.Addresses, net.JoinHostPort(host, strconv.Itoa(int(granted.Port))))
	}
	return client, nil
}

// pushBuilt packs what build makes of a module's files, pushes it, and fills in the digests. What is missing beside is refused before.
func (g *global) pushBuilt(c *cobra.Command, dir string, m *manifest.Manifest) error {
	sources := map[string]*artifacts.Source{}
	defer func() {
		for _, s := range sources {
			s.Close()
		}
	}()
	for name, recipe := range m.Files() {
		s, err := artifacts.PackFiles(dir, recipe)
		if err != nil {
			return err
		}
		sources[name] = s
		of := m.Artifacts[name]
		of.Digest = s.Digest()
		m.Artifacts[name] = of
	}
	if err := m.Registrable(); err != nil {
		return err
	}
	for name, s := range sources {
		if _, err := g.pushArtifact(c, m.Module, name, s, 0); err != nil {
			return err
		}
	}
	return nil
}

// progress tells how much has gone: over one line of a terminal, else in a line now and then.
type progress struct {
	w        io.Writer
	what     string
	terminal bool

	mu    sync.Mutex
	blobs map[appliance.Digest][2]int64 // done, of
	told  time.Time
	shown bool
}

func newProgress(w io.Writer, what string) *progress {
	f, is := w.(*os.File)
	return &progress{w: w, what: what, terminal: is && term.IsTerminal(int(f.Fd())), blobs: map[appliance.Digest][2]int64{}, told: time.Now()}
}

func (p *progress) tell(blob appliance.Digest, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blobs[blob] = [2]int64{done, total}
	every := 5 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(p.told) < every {
		return
	}
	p.told, p.shown = time.Now(), true
	var sum [2]int64
	for _, b := range p.blobs {
		sum[0], sum[1] = sum[0]+b[0], sum[1]+b[1]
	}
	line := fmt.Sprintf("%s: %s of %s", p.what, disk.Size(sum[0]), disk.Size(sum[1]))
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	} else {
		fmt.Fprintln(p.w, line)
	}
}

func (p *progress) end() {
	if p.terminal && p.shown {
		fmt.Fprintln(p.w)
	}
}
