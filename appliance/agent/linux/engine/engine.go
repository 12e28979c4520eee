// Package engine makes containers true on the machine's Docker or Podman engine, through its socket. A container is the mesh's by its
// labels, never by its name, and nothing else of the engine's is touched. Which containers there shall be is decided elsewhere.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/linux/run"
)

// Sockets are where engines listen.
var Sockets = []string{"/var/run/docker.sock", "/run/podman/podman.sock"}

const (
	patience = 30 * time.Second // for one answer
	glance   = 2 * time.Second  // for whether there is an engine
	absence  = time.Minute      // how long one that has just answered still counts as there: it restarts
)

// Config says whose containers these are and what they need of the node. Every field is required unless it says otherwise.
type Config struct {
	Mesh        appliance.MeshID
	Node        appliance.NodeName
	State       string                      // state folder of the installation: two may share an engine
	Sockets     []string                    // nil: Sockets
	Trust       string                      // folder in which engines look for what to trust registries by; empty: /etc/docker/certs.d
	Record      string                      // file that remembers what was there before
	Credentials func() (Credentials, error) // asked before each pull
}

// Credentials are what a node shows to the artifact store, and trusts it by; PEM.
type Credentials struct{ Authority, Certificate, Key []byte }

// String keeps the key out of messages and logs.
func (Credentials) String() string { return "credentials of a node" }

// Engine is the effector, a host.Processes and host.Attacher.
type Engine struct {
	config   Config
	mu       sync.Mutex
	runtime  string    // that answered last
	answered time.Time // and when
	restarts map[string]restarts
}

// New gives the effector. Whether there is an engine is found out each time: one may be installed, or restart, at any time.
func New(c Config) *Engine {
	if c.Sockets == nil {
		c.Sockets = Sockets
	}
	c.Trust = cmp.Or(c.Trust, "/etc/docker/certs.d")
	return &Engine{config: c, restarts: map[string]restarts{}}
}

// Runtime names the engine that answers: docker, podman; empty where none does.
func (e *Engine) Runtime() string {
	ctx, cancel := context.WithTimeout(context.Background(), glance)
	defer cancel()
	if c, err := e.open(ctx); err == nil {
		c.Close()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.answered) < absence {
		return e.runtime
	}
	return ""
}

// connection is one to an engine that has answered.
type connection struct {
	*client.Client
	socket string
	podman bool
}

// open connects to the first engine that answers. Every task opens its own, so that an engine that was restarted, or replaced by another
// version, is spoken to as what it is now.
func (e *Engine) open(ctx context.Context) (*connection, error) {
	var last error
	for _, socket := range e.config.Sockets {
		api, err := client.New(client.WithHost("unix://" + socket))
		if err != nil {
			return nil, err
		}
		version, err := api.ServerVersion(ctx, client.ServerVersionOptions{})
		if err != nil {
			api.Close()
			if last == nil || !errors.Is(err, os.ErrNotExist) { // what is there and does not answer says more
				last = err
			}
			continue
		}
		c := &connection{Client: api, socket: socket}
		for _, part := range version.Components {
			c.podman = c.podman || part.Name == "Podman Engine"
		}
		e.mu.Lock()
		e.runtime, e.answered = c.runtime(), time.Now()
		e.mu.Unlock()
		return c, nil
	}
	return nil, failed("talk to the container engine", last)
}

func (c *connection) runtime() string {
	if c.podman {
		return "podman"
	}
	return "docker"
}

// gone says that there is no engine that could be running anything: neither one that listens nor one to start.
func (e *Engine) gone() bool {
	listens := func(socket string) bool { _, err := os.Lstat(socket); return err == nil }
	installed := func(program string) bool { _, err := run.Find(program); return err == nil }
	return !slices.ContainsFunc(e.config.Sockets, listens) && !slices.ContainsFunc([]string{"dockerd", "podman"}, installed)
}

// failed says what could not be done, by what kind of error that was.
func failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err):
		return appliance.Errorf(appliance.Unavailable, "%s: %w", what, err).WithHint("it is tried again by itself; see whether the engine runs")
	case errdefs.IsNotFound(err):
		return appliance.Errorf(appliance.NotFound, "%s: %w", what, err)
	case errdefs.IsConflict(err):
		return appliance.Errorf(appliance.Conflict, "%s: %w", what, err)
	case errdefs.IsInvalidArgument(err):
		return appliance.Errorf(appliance.Invalid, "%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
