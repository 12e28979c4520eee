package genesis

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/leave"
	"github.com/novox/mesh/genesis/serve"
	"github.com/novox/mesh/genesis/services"
)

var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)

// Machine makes the machine that an installation's effects happen on.
type Machine func(mesh appliance.MeshID, node appliance.NodeName) (host.Machine, error)

// genesis is one run.
type genesis struct {
	options  Options
	machine  Machine
	services services.Services
	tell     func(Event)
	settings serve.Settings
	content  wire.Content
}

// Result is what the closing screen shows.
type Result struct {
	Settings   serve.Settings
	Credential operators.Credential
	Already    bool     // the hub was finished before
	Unheeded   []string // endpoints asked for that the mesh does not have: they were decided the first time
}

// Run brings the hub up and waits until its own node is current. Settled is asked for that, with the first operator's credential.
func Run(ctx context.Context, o Options, machine Machine, s services.Services, settled func(context.Context, operators.Credential, func(waiting string)) error, tell func(Event)) (Result, error) {
	if err := o.prepare(); err != nil {
		return Result{}, err
	}
	if err := refuseForeign(o); err != nil {
		return Result{}, err
	}
	g := &genesis{options: o, machine: machine, services: s, tell: tell}
	if err := run(ctx, []step{{name: "look at the machine", do: g.probes}}, tell); err != nil {
		return Result{}, err
	}
	release, err := o.Install.Lock("mesh genesis")
	if err != nil {
		return Result{}, err
	}
	defer release()
	already := g.finished(ctx)
	steps := g.steps()
	if already {
		steps = nil
		if _, err := g.decided(ctx); err != nil {
			return Result{}, err
		}
	}
	if err := run(ctx, steps, tell); err != nil {
		return Result{}, err
	}
	credential, err := operators.ReadCredential(o.Install.Operator())
	if err != nil {
		return Result{}, err
	}
	err = run(ctx, []step{{name: "wait until the hub is current", do: func(ctx context.Context) error {
		return settled(ctx, credential, func(waiting string) {
			tell(Event{Step: "wait until the hub is current", State: Waiting, Text: waiting})
		})
	}}}, tell)
	if err != nil {
		err = appliance.AsError(err).WithHint("the hub goes on trying; its processes' logs say what stands against it").WithNext(s.Logs())
	}
	unheeded := slices.DeleteFunc(slices.Clone(g.options.Endpoints), func(e string) bool { return slices.Contains(g.settings.Endpoints, e) })
	return Result{Settings: g.settings, Credential: credential, Already: already, Unheeded: unheeded}, err
}

// refuseForeign refuses on a node of another mesh (GEN-3).
func refuseForeign(o Options) error {
	r, err := o.Install.Read()
	switch {
	case appliance.KindOf(err) == appliance.NotFound:
		return nil
	case err != nil:
		return err
	case !r.Hub:
		return appliance.Errorf(appliance.Conflict, "genesis: this machine is node %s of mesh %s (%s)", r.Name, r.MeshName, r.Mesh).
			WithHint("a machine is in one mesh per state folder; a second one goes into another folder with --state").WithNext("mesh genesis --state FOLDER …")
	}
	return leave.Refuse(o.Install, "genesis")
}

// finished says whether an earlier run got to the end and everything it started still runs. Where not, the steps are taken once more:
// they also mend what was done to the hub's files since.
func (g *genesis) finished(ctx context.Context) bool {
	if r, err := g.options.Install.Read(); err != nil || !r.Keeps(g.options.LeastFree) {
		return false
	}
	s, err := serve.ReadSettings(g.options.Install)
	if err != nil {
		return false
	}
	if running, err := g.services.Running(ctx); err != nil || !running {
		return false
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", loopback(s.Ports.Broker))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (g *genesis) steps() []step {
	i := g.options.Install
	steps := []step{
		{"prepare the state folder", nil, g.folders},
		{"make the keys", nil, g.keys},
		{"decide what the mesh is", g.decided, g.decide},
		{"compose the bus users", exists(serve.UsersFile(i)), g.users},
		{"stop the agent", nil, g.stopAgent},
		{"render the base bundles", nil, g.render},
	}
	for _, name := range []appliance.InstanceName{serve.StoreModule, "mesh-broker", "artifact-store"} {
		steps = append(steps, step{"raise " + string(name), nil, func(ctx context.Context) error { return g.raise(ctx, name) }})
	}
	return append(steps,
		step{"hand the hub's files to user " + serve.User, nil, g.handOver},
		step{"raise mesh-controller", nil, func(ctx context.Context) error { return g.raise(ctx, "mesh-controller") }},
		step{"say what this machine is", nil, g.record},
		step{"start the agent", nil, g.services.Start},
	)
}

func exists(path string) func(context.Context) (bool, error) {
	return func(context.Context) (bool, error) {
		_, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
}

// folders makes the state folder and puts the binary into it, from where everything of the installation runs; and those of other
// architectures, which the hub hands out.
func (g *genesis) folders(context.Context) error {
	i := g.options.Install
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{i.Dir, 0o755}, {i.Node(), 0o700}, {i.Hub(), 0o700}, {filepath.Dir(i.Operator()), 0o700}, {i.Run(), 0o755}, {filepath.Dir(i.Binary()), 0o755}} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return err
		}
		if err := os.Chmod(d.path, d.mode); err != nil {
			return err
		}
	}
	if err := services.InstallBinary(i); err != nil {
		return err
	}
	return services.InstallOthers(i)
}

// keys makes what has no file yet: the mesh's keys, the authority, the hub node's keys, the first operator's.
func (g *genesis) keys(context.Context) error {
	i := g.options.Install
	mesh, err := identity.GenerateMesh()
	if err == nil {
		err = mesh.Save(i.HubKeys())
	}
	if err != nil {
		return err
	}
	node, err := identity.GenerateNode()
	if err == nil {
		err = node.Save(i.NodeKeys())
	}
	return err
}

func (g *genesis) decided(context.Context) (bool, error) {
	s, err := serve.ReadSettings(g.options.Install)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	o := g.options
	if o.Name != s.Name || o.Range.IsValid() && o.Range != s.Range {
		return false, appliance.Errorf(appliance.Conflict, "genesis: %s holds mesh %s with range %s, and is asked for %s", o.Install.Dir, s.Name, s.Range, o.Name).
			WithHint("finish it with the name and the range of the first time, or choose another folder with --state").
			WithNext(fmt.Sprintf("mesh genesis --name %s --endpoint %s", s.Name, s.Endpoints[0]))
	}
	g.settings = s
	return true, nil
}

// decide writes down, once, everything that has to be the same when genesis is run again.
func (g *genesis) decide(context.Context) error {
	o, i := g.options, g.options.Install
	meshKeys, err := identity.LoadMesh(i.HubKeys())
	if err != nil {
		return err
	}
	nodeKeys, err := identity.LoadNode(i.NodeKeys())
	if err != nil {
		return err
	}
	s := serve.Settings{Mesh: appliance.NewMeshID(), Name: o.Name, Endpoints: o.Endpoints, Range: o.Range, Ports: o.Ports, PostgresBin: o.PostgresBin, Ballast: o.Ballast,
		Founded: time.Now().UTC()}
	authority, err := g.authority(&s, meshKeys)
	if err != nil {
		return err
	}
	s.Hub = serve.Hub{ID: appliance.NewNodeID(), Name: o.Node, Keys: nodeKeys.Public()}
	if s.Hub.Address, err = overlay.Allocate(s.Range, nil); err != nil {
		return err
	}
	if s.Hub.Certificate, err = authority.Issue(pki.Request{Public: &nodeKeys.TLS.PublicKey, Names: []string{pki.NodeCertName(s.Hub.ID), string(o.Node) + ".internal"},
		Usage: pki.Client | pki.Server, Now: time.Now()}); err != nil {
		return err
	}
	machine, err := g.machine(s.Mesh, s.Hub.Name)
	if err != nil {
		return err
	}
	s.Hub.Capabilities = machine.Capabilities()
	if err := g.operator(&s, meshKeys, authority); err != nil {
		return err
	}
	if o.StoreFile != "" {
		if s.StoreFile, err = g.keepDSN(); err != nil {
			return err
		}
	}
	if o.PostgresBin != "" {
		if err := g.linkPostgres(); err != nil {
			return err
		}
	}
	g.settings = s
	return s.Write(i)
}

// authority makes the mesh's certificate, or takes the one of an interrupted run together with the mesh id it names.
func (g *genesis) authority(s *serve.Settings, keys identity.MeshKeys) (*pki.Authority, error) {
	der, err := pki.NewAuthority(s.Mesh, keys.Authority, time.Now())
	if err != nil {
		return nil, err
	}
	// hub.json follows and names this mesh id; a run killed in between makes both anew, under the same key.
	if err := durable.WriteFile(serve.AuthorityFile(g.options.Install), pki.EncodePEM(der), 0o600); err != nil {
		return nil, err
	}
	return pki.LoadAuthority(s.Mesh, der, keys.Authority)
}

// operator makes the first operator's credential.
func (g *genesis) operator(s *serve.Settings, keys identity.MeshKeys, authority *pki.Authority) error {
	_, signing, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	bus, err := nkeys.CreateUser()
	if err != nil {
		return err
	}
	seed, err := bus.Seed()
	if err != nil {
		return err
	}
	c := operators.Credential{Mesh: s.Mesh, MeshName: s.Name, Operator: appliance.NewOperatorID(), Name: "admin", Role: operators.Admin,
		Broker: append([]string{loopback(s.Ports.Broker)}, s.Endpoints...), Authority: authority.Certificate.Raw,
		Signing: keys.Signing.Public().(ed25519.PublicKey), Key: signing.Seed(), Bus: string(seed)}
	s.Operator.ID, s.Operator.Name = c.Operator, appliance.OperatorName(c.Name)
	if s.Operator.Signing, s.Operator.Bus, err = c.Public(); err != nil {
		return err
	}
	return operators.WriteCredential(g.options.Install.Operator(), c)
}

func loopback(port uint16) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String()
}

// keepDSN copies the DSN to where only the hub reads it.
func (g *genesis) keepDSN() (string, error) {
	dsn, err := serve.ReadDSN(g.options.StoreFile)
	if err != nil {
		return "", err
	}
	path := filepath.Join(g.options.Install.Hub(), "store.dsn")
	return path, durable.WriteFile(path, []byte(dsn+"\n"), 0o600)
}

// linkPostgres puts the named programs where the mesh-store bundle looks first, so that it installs no package.
func (g *genesis) linkPostgres() error {
	dir := g.options.Install.Module(serve.StoreModule)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err := os.Symlink(g.options.PostgresBin, filepath.Join(dir, "postgresql"))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// users composes the first users file from what genesis has in hand; afterwards every one is composed from the records.
func (g *genesis) users(context.Context) error {
	keys, err := identity.LoadMesh(g.options.Install.HubKeys())
	if err != nil {
		return err
	}
	control, err := keys.ControllerBus.PublicKey()
	if err != nil {
		return err
	}
	modules, err := keys.ControllerModulesBus.PublicKey()
	if err != nil {
		return err
	}
	s := g.settings
	file, _, err := busauth.Compose(busauth.Records{
		Controller: busauth.Controller{ControlKey: control, ModulesKey: modules}, Holder: s.Hub.ID,
		Nodes:     []busauth.Node{{ID: s.Hub.ID, Bus: s.Hub.Keys.Bus}},
		Operators: []busauth.Operator{{ID: s.Operator.ID, Bus: s.Operator.Bus}},
	})
	if err != nil {
		return err
	}
	return durable.WriteFile(serve.UsersFile(g.options.Install), file, 0o600)
}

// stopAgent makes sure that only one engine works on the node's records while genesis raises.
func (g *genesis) stopAgent(ctx context.Context) error { return g.services.StopAgent(ctx) }

// render makes the base bundles' resources exactly as the first declaration will have them.
func (g *genesis) render(context.Context) error {
	s := g.settings
	modules, err := s.BaseModules()
	if err != nil {
		return err
	}
	intent := resolve.Intent{Mesh: s.Mesh, MeshName: s.Name, Nodes: []resolve.Node{{ID: s.Hub.ID, Name: s.Hub.Name, Hub: true}}, Modules: serve.ByName(modules)}
	for _, m := range modules {
		intent.Assignments = append(intent.Assignments, resolve.Assignment{Instance: appliance.InstanceName(m.Module), Node: s.Hub.ID, Module: m.Module})
	}
	plans, err := resolve.Resolve(intent)
	if err != nil {
		return err
	}
	g.content, err = render.Render(plans[s.Hub.ID], render.Facts{Mesh: s.Mesh, Range: s.Range,
		Nodes: map[appliance.NodeID]render.NodeFacts{s.Hub.ID: {Name: s.Hub.Name, Address: s.Hub.Address, State: g.options.Install.Dir}}})
	return err
}

// raise applies one bundle's resources through the engine that applies declarations everywhere.
func (g *genesis) raise(ctx context.Context, instance appliance.InstanceName) error {
	machine, err := g.machine(g.settings.Mesh, g.settings.Hub.Name)
	if err != nil {
		return err
	}
	var resources []wire.Resource
	for _, r := range g.content.Resources {
		if r.Instance == instance {
			resources = append(resources, r)
		}
	}
	return agent.Raise(ctx, machine, g.options.Install.Node(), resources, func(o wire.Outcome) {
		if o.Status != wire.Unchanged {
			g.tell(Event{Step: "raise " + string(instance), State: Waiting, Text: fmt.Sprintf("%s %s", o.ID, o.Status)})
		}
	})
}

// handOver gives the hub's folder to the user that serve runs as.
func (g *genesis) handOver(context.Context) error {
	return services.Own(g.options.Install.Hub(), serve.User)
}

// record writes what the hub's node trusts, and last of all what this installation is.
func (g *genesis) record(context.Context) error {
	i, s := g.options.Install, g.settings
	keys, err := identity.LoadMesh(i.HubKeys())
	if err != nil {
		return err
	}
	der, err := serve.ReadAuthority(i)
	if err != nil {
		return err
	}
	trust := identity.Trust{Mesh: s.Mesh, MeshName: s.Name, Signing: keys.Signing.Public().(ed25519.PublicKey), Authority: der,
		Broker: append([]string{loopback(s.Ports.Broker)}, s.Endpoints...), Node: s.Hub.ID, Name: s.Hub.Name}
	if err := trust.Write(i.Node()); err != nil {
		return err
	}
	if err := durable.WriteFile(i.Certificate(), pki.EncodePEM(s.Hub.Certificate), 0o644); err != nil {
		return err
	}
	least := g.options.LeastFree
	if before, err := i.Read(); err == nil && least == nil {
		least = before.LeastFree
	}
	return i.Write(installation.Record{Mesh: s.Mesh, MeshName: s.Name, Node: s.Hub.ID, Name: s.Hub.Name, Hub: true, Created: s.Founded, LeastFree: least})
}
