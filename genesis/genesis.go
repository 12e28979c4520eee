// Package genesis turns a fresh machine into the hub of a new mesh: an ordered list of typed steps, each check-then-do, so that the same
// command finishes what a kill left half done. A step lives in the process that owns its effect; what the parts do is theirs.
package genesis

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/embedded/postgres"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/serve"
	"github.com/novox/mesh/genesis/services"
)

// Options are what a person decides. Only Endpoints must be given.
type Options struct {
	Install     installation.Installation
	Name        string             // of the mesh; empty: the machine's host name
	Node        appliance.NodeName // of the hub's node; empty: hub
	Endpoints   []string           // where other machines reach the hub: host or host:port
	Range       netip.Prefix       // of the overlay; zero: one that overlaps nothing here
	Ports       serve.Ports        // zero: 4222, 4280, 4281, 51820
	StoreFile   string             // a file with the DSN of an existing server
	PostgresBin string
	Ballast     *disk.Size // what the hub holds in reserve for a full disk; nil: 64 MiB
	LeastFree   *disk.Size // what has to stay free on the disk, see installation.Record; nil: not said
	Log         *slog.Logger
}

// Event tells how a step goes.
type Event struct {
	Step  string        `json:"step"`
	State State         `json:"state"`
	Took  time.Duration `json:"-"`
	Text  string        `json:"text,omitempty"` // a detail, or the error
}

// State of a step.
type State string

const (
	Started State = "started"
	Already State = "already" // it was done before
	Done    State = "done"
	Waiting State = "waiting" // says for what
	Failed  State = "failed"
)

// Defaults of the hub's ports.
const (
	defaultBroker    = 4222
	defaultDownloads = 4280
	defaultOverlay   = 51820
)

// needFree is the free space below which genesis does not begin, in bytes.
const needFree = 512 << 20

// step is one thing that has to be true. Check says whether it is; Do makes it so. A nil Check means: always do.
type step struct {
	name  string
	check func(ctx context.Context) (bool, error)
	do    func(ctx context.Context) error
}

// run takes the steps in order and tells each.
func run(ctx context.Context, steps []step, tell func(Event)) error {
	for _, s := range steps {
		begun := time.Now()
		tell(Event{Step: s.name, State: Started})
		done := false
		var err error
		if s.check != nil {
			done, err = s.check(ctx)
		}
		if err == nil && !done {
			err = s.do(ctx)
		}
		e := Event{Step: s.name, State: Done, Took: time.Since(begun)}
		switch {
		case err != nil:
			e.State, e.Text = Failed, err.Error()
		case done:
			e.State = Already
		}
		tell(e)
		if err != nil {
			return err
		}
	}
	return nil
}

// Take takes one step that is always done and tells it.
func Take(name string, tell func(Event), do func() error) error {
	return run(context.Background(), []step{{name: name, do: func(context.Context) error { return do() }}}, tell)
}

// prepare fills in what was left open and refuses what cannot be.
func (o *Options) prepare() error {
	if o.Ports.Broker == 0 {
		o.Ports.Broker = defaultBroker
	}
	if o.Ports.Downloads == 0 {
		o.Ports.Downloads = defaultDownloads
	}
	if o.Ports.Artifacts == 0 {
		o.Ports.Artifacts = serve.DefaultArtifacts
	}
	if o.Ports.Overlay == 0 {
		o.Ports.Overlay = defaultOverlay
	}
	taken := map[uint16]string{}
	for _, p := range []struct {
		name string
		port uint16
	}{{"broker", o.Ports.Broker}, {"downloads", o.Ports.Downloads}, {"artifacts", o.Ports.Artifacts}} {
		if taken[p.port] != "" {
			return appliance.Errorf(appliance.Invalid, "genesis: port %d is given to %s and %s", p.port, taken[p.port], p.name).
				WithHint("each listens on a port of its own: --broker-port, --downloads-port, --artifacts-port")
		}
		taken[p.port] = p.name
	}
	if o.Node == "" {
		o.Node = "hub"
	}
	if _, err := appliance.ParseName[appliance.NodeName]("node", string(o.Node)); err != nil {
		return err
	}
	if _, err := appliance.ParseName[appliance.NodeName]("mesh", o.Name); err != nil {
		return err
	}
	if len(o.Endpoints) == 0 {
		return appliance.Errorf(appliance.Invalid, "genesis: no endpoint is given").WithHint("the address or name at which other machines reach this one: --endpoint HOST[:PORT]")
	}
	for i, e := range o.Endpoints {
		full, err := endpoint(e, o.Ports.Broker)
		if err != nil {
			return err
		}
		o.Endpoints[i] = full
	}
	if o.Range.IsValid() {
		return overlay.Check(o.Range)
	}
	return nil
}

// endpoint gives host:port; a missing port is the broker's, IPv6 literals included (BUS-6).
func endpoint(s string, port uint16) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return net.JoinHostPort(a.String(), strconv.Itoa(int(port))), nil
	}
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		host, p = s, strconv.Itoa(int(port))
	}
	if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 || !hostname.MatchString(host) && !isAddress(host) {
		return "", appliance.Errorf(appliance.Invalid, "genesis: endpoint %s is not HOST or HOST:PORT", appliance.Quote(s)).
			WithHint("an address or name of this machine that others reach; a port only where it is not the broker's")
	}
	return net.JoinHostPort(host, p), nil
}

func isAddress(s string) bool { _, err := netip.ParseAddr(s); return err == nil }

// probes refuse by name before anything is changed (GEN-4).
func (g *genesis) probes(ctx context.Context) error {
	o := g.options
	if err := probe.TUN(); err != nil {
		return err
	}
	if _, err := services.OtherBinaries(); err != nil {
		return err
	}
	if err := probe.Disk(o.Install.Dir, needFree); err != nil {
		return err
	}
	if err := probe.Room(o.Install.Dir, o.LeastFree); err != nil {
		return err
	}
	if o.StoreFile != "" {
		if err := serve.ReachStore(ctx, o.StoreFile); err != nil {
			return err
		}
	}
	if o.PostgresBin != "" {
		if _, _, err := postgres.Find(o.PostgresBin); err != nil {
			return appliance.Errorf(appliance.Invalid, "look for PostgreSQL: %w", err).WithHint("--postgres-bin names the folder with initdb, postgres and pg_controldata; without it genesis takes what the distribution has")
		}
	}
	own := func(pid int) bool { return probe.Executable(pid) == o.Install.Binary() }
	for _, p := range []struct {
		network string
		port    uint16
		what    string
	}{{"tcp", o.Ports.Broker, "broker"}, {"tcp", o.Ports.Downloads, "downloads"}, {"tcp", o.Ports.Artifacts, "artifacts"}, {"udp", o.Ports.Overlay, "overlay"}} {
		if err := probe.Port(p.network, p.port, p.what, own); err != nil {
			return err
		}
	}
	return g.probeRange()
}

// probeRange refuses a range that overlaps a route of this machine, or chooses one that overlaps none (NET-2).
func (g *genesis) probeRange() error {
	if _, err := serve.ReadSettings(g.options.Install); err == nil {
		return nil // decided; the routes of our own device are there now
	}
	routes, err := probe.Routes()
	if err != nil {
		return err
	}
	if g.options.Range.IsValid() {
		return overlay.Overlaps(g.options.Range, routes)
	}
	g.options.Range, err = overlay.ChooseRange(overlay.Candidates(), routes)
	if err != nil {
		return fmt.Errorf("choose a range: %w", err)
	}
	return nil
}
