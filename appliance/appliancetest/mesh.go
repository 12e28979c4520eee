// Package appliancetest is a whole mesh in one process: the controller on a real store and a real broker, and agents on machines that
// exist in memory, enrolled over the bus as any machine is. Tests of what the mesh as a whole does begin with New; TestMain is
// storetest.Main. Nothing of the product imports it, and what one package decides is tested there.
package appliancetest

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/artifactstore"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/controller"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/bundles"
	"github.com/novox/mesh/embedded/natsd"
)

// Range is the overlay's.
var Range = netip.MustParsePrefix("10.64.0.0/16")

// Mesh is a founded mesh with its hub's agent and its controller running.
type Mesh struct {
	ID           appliance.MeshID
	Keys         identity.MeshKeys
	Authority    *pki.Authority
	Database     *storetest.Database
	Store        *store.Store
	Broker       *natsd.Server
	Hub          *Node
	Admin        operators.Credential
	Log          *Log              // what controller, agents and links say
	Downloads    *downloads.Server // has a file for every architecture; nobody listens
	Artifacts    *artifactstore.Store
	ArtifactsDir string // where it keeps them
	// SetUsers stands between controller and broker; nil: nothing does. Set it while the controller does not run.
	SetUsers func(file []byte) error
	// Collect and Scrub are the pauses between two; 0: an hour, a day. Set them while the controller does not run.
	Collect, Scrub time.Duration

	t          testing.TB
	link       *bus.Link // the controller's
	controller *running
	admin      *client.Client // made at the first call
}

// New founds a mesh and waits until its hub is current.
func New(t testing.TB) *Mesh {
	t.Helper()
	m := &Mesh{ID: appliance.NewMeshID(), t: t, Log: &Log{}}
	m.Keys = must(identity.GenerateMesh())(t)
	der := must(pki.NewAuthority(m.ID, m.Keys.Authority, time.Now()))(t)
	m.Authority = must(pki.LoadAuthority(m.ID, der, m.Keys.Authority))(t)
	m.Downloads = newDownloads(t)
	m.startArtifacts()
	m.startBroker()
	m.Database = storetest.NewDatabase(t)
	m.Store = m.Database.Open(t)
	m.found()
	m.StartController()
	m.Hub.Start()
	m.Current("hub")
	return m
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (m *Mesh) startBroker() {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(m.t)
	leaf := must(m.Authority.Issue(pki.Request{Public: &key.PublicKey, Names: []string{pki.BrokerName(m.ID)}, Usage: pki.Server, Now: time.Now()}))(m.t)
	chain := must(pki.Chain(leaf, m.Authority.Certificate.Raw, key))(m.t)
	dir := m.t.TempDir()
	m.Broker = must(natsd.Start(natsd.Config{Name: pki.BrokerName(m.ID), Host: "127.0.0.1", Port: -1, StoreDir: filepath.Join(dir, "data"), Users: filepath.Join(dir, "users.conf"),
		TLS: &tls.Config{Certificates: []tls.Certificate{*chain}}, Logger: m.logger("broker")}))(m.t)
	m.t.Cleanup(m.Broker.Close)
}

// endpoint is where everybody reaches the broker.
func (m *Mesh) endpoint() string { return m.Broker.Addr().String() }

// found writes the first records, as genesis does, and lets in those whom they name.
func (m *Mesh) found() {
	keys := must(identity.GenerateNode())(m.t)
	m.Hub = &Node{Name: "hub", ID: appliance.NewNodeID(), Keys: keys, Machine: hosttest.New(), Dir: m.t.TempDir(), mesh: m}
	m.Hub.trust = identity.Trust{Mesh: m.ID, MeshName: "test", Signing: m.Keys.Signing.Public().(ed25519.PublicKey), Authority: m.Authority.Certificate.Raw,
		Broker: []string{m.endpoint()}, Node: m.Hub.ID, Name: m.Hub.Name}
	certificate := must(m.Authority.Issue(pki.Request{Public: &keys.TLS.PublicKey, Names: []string{pki.NodeCertName(m.Hub.ID), "hub.internal"},
		Usage: pki.Client | pki.Server, Now: time.Now()}))(m.t)
	var operator store.Operator
	m.Admin, operator = m.credential("admin", operators.Admin)
	g := store.Genesis{
		Mesh: store.Mesh{ID: m.ID, Name: "test", Range: Range, OverlayPort: 51820, Endpoints: []string{m.endpoint()}, Signing: m.Hub.trust.Signing,
			Sealing: m.Keys.Sealing.Recipient().String(), Bus: must(m.Keys.ControllerBus.PublicKey())(m.t),
			BusModules: must(m.Keys.ControllerModulesBus.PublicKey())(m.t), Authority: m.Authority.Certificate.Raw},
		Hub: store.Hub{ID: m.Hub.ID, Name: m.Hub.Name, State: "/var/lib/mesh", Address: Range.Addr().Next(), Keys: keys.Public(), Certificate: certificate,
			Capabilities: m.Hub.Machine.Host().Capabilities()},
		Operator: operator,
	}
	for _, b := range bundles.Base() {
		module := must(manifest.Parse(b.Manifest))(m.t)
		g.Modules = append(g.Modules, module)
		g.Assignments = append(g.Assignments, resolve.Assignment{Instance: appliance.InstanceName(b.Name), Node: m.Hub.ID, Module: module.Module})
	}
	if err := m.Store.Found(m.t.Context(), store.By{Who: "genesis", At: time.Now()}, g); err != nil {
		m.t.Fatal(err)
	}
	m.ComposeUsers()
}

// ComposeUsers lets in exactly those whom the records name.
func (m *Mesh) ComposeUsers() {
	m.t.Helper()
	file, left, err := busauth.Compose(must(m.Store.BusUsers(m.t.Context()))(m.t))
	if err == nil {
		err = m.Broker.SetUsers(file)
	}
	if err != nil || len(left) > 0 {
		m.t.Fatal("compose users:", err, left)
	}
}

// credential makes an operator's keys and record.
func (m *Mesh) credential(name string, role operators.Role) (operators.Credential, store.Operator) {
	_, signing, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		m.t.Fatal(err)
	}
	seed := must(must(nkeys.CreateUser())(m.t).Seed())(m.t)
	c := operators.Credential{Mesh: m.ID, MeshName: "test", Operator: appliance.NewOperatorID(), Name: name, Role: role, Broker: []string{m.endpoint()},
		Authority: m.Authority.Certificate.Raw, Signing: m.Keys.Signing.Public().(ed25519.PublicKey), Key: signing.Seed(), Bus: string(seed)}
	o := store.Operator{ID: c.Operator, Name: appliance.OperatorName(name), Role: string(role)}
	if o.Signing, o.Bus, err = c.Public(); err != nil {
		m.t.Fatal(err)
	}
	return c, o
}

// AddOperator records another operator and lets it in.
func (m *Mesh) AddOperator(name string, role operators.Role) operators.Credential {
	m.t.Helper()
	c, o := m.credential(name, role)
	if err := m.Store.AddOperator(m.t.Context(), store.By{Who: "test", At: time.Now()}, o); err != nil {
		m.t.Fatal(err)
	}
	m.ComposeUsers()
	return c
}

// Dial connects as an operator, until the test ends.
func (m *Mesh) Dial(c operators.Credential) *client.Client {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	operator := must(client.Dial(ctx, c, m.logger("operator")))(m.t)
	m.t.Cleanup(operator.Close)
	return operator
}

// Call asks as the first operator.
func (m *Mesh) Call(verb operators.Verb, arguments, result any) error {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	if m.admin == nil {
		m.admin = m.Dial(m.Admin)
	}
	return m.admin.Call(ctx, verb, arguments, result)
}

// Must is Call for what has to succeed.
func (m *Mesh) Must(verb operators.Verb, arguments, result any) {
	m.t.Helper()
	if err := m.Call(verb, arguments, result); err != nil {
		m.t.Fatalf("%s: %v", verb, err)
	}
}

func newDownloads(t testing.TB) *downloads.Server {
	t.Helper()
	key := must(identity.ServerKey(t.TempDir(), "downloads"))(t)
	dir, files := t.TempDir(), map[string]string{}
	for _, architecture := range wire.Architectures {
		files[architecture] = filepath.Join(dir, architecture)
		if err := os.WriteFile(files[architecture], []byte("mesh for "+architecture), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return must(downloads.New(4280, &key.PublicKey, files))(t)
}

// startArtifacts serves an artifact store on a loopback port until the test ends.
func (m *Mesh) startArtifacts() {
	l := must(net.Listen("tcp", "127.0.0.1:0"))(m.t)
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(m.t)
	leaf := must(m.Authority.Issue(pki.Request{Public: &key.PublicKey, Names: []string{pki.ArtifactsName(m.ID), "hub.internal"}, Usage: pki.Server, Now: time.Now()}))(m.t)
	chain := must(pki.Chain(leaf, m.Authority.Certificate.Raw, key))(m.t)
	m.ArtifactsDir = m.t.TempDir()
	m.Artifacts = artifactstore.New(artifactstore.Config{Dir: m.ArtifactsDir, Port: uint16(l.Addr().(*net.TCPAddr).Port), Mesh: m.ID,
		Signing: m.Keys.Signing.Public().(ed25519.PublicKey), Grace: time.Millisecond, Log: m.logger("artifacts")})
	config := pki.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return chain, nil }, m.Authority.Certificate, nil, time.Now)
	run(m.t, func(ctx context.Context) error { return m.Artifacts.Serve(ctx, l, config, 0) })
}

// StartController runs the controller, which must not be running, and waits until it answers.
func (m *Mesh) StartController() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	m.link = must(m.controllerLink(ctx))(m.t)
	link, users := m.link, m.SetUsers
	if users == nil {
		users = m.Broker.SetUsers
	}
	m.controller = run(m.t, func(ctx context.Context) error {
		defer link.Close()
		return controller.Run(ctx, controller.Config{Store: m.Store, Link: link, Keys: m.Keys, Authority: m.Authority, SetUsers: users,
			Downloads: m.Downloads, Artifacts: m.Artifacts, Collect: m.Collect, Scrub: m.Scrub, Log: m.logger("controller")})
	})
	m.Wait("the controller answers", func() string {
		if err := m.Call(operators.OverlayShow, struct{}{}, nil); err != nil {
			return err.Error()
		}
		return ""
	})
}

// StopController ends the controller; broker and store go on.
func (m *Mesh) StopController() {
	m.t.Helper()
	m.controller.stop(m.t)
}

// Bus says how the controller's link is.
func (m *Mesh) Bus() bus.Status { return m.link.Status() }

// Impostor is another connection under the controller's bus user, until the test ends: what somebody could do who has its bus key alone.
func (m *Mesh) Impostor() *bus.Link {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	link := must(m.controllerLink(ctx))(m.t)
	m.t.Cleanup(link.Close)
	return link
}

func (m *Mesh) controllerLink(ctx context.Context) (*bus.Link, error) {
	return bus.Connect(ctx, bus.Options{InProcess: m.Broker.InProcess(), User: wire.ControllerUser, Key: m.Keys.ControllerBus, Logger: m.logger("controller"), Wait: true})
}

// DeadLetters are the messages that the controller has set aside, newest first.
func (m *Mesh) DeadLetters() []bus.DeadLetter {
	m.t.Helper()
	return must(bus.DeadLetters(m.t.Context(), m.link, 1000))(m.t)
}

func (m *Mesh) logger(part string) *slog.Logger { return slog.New(m.Log).With("part", part) }

// Stranger is a credential of this mesh that the records do not name.
func (m *Mesh) Stranger() operators.Credential {
	c, _ := m.credential("stranger", operators.Admin)
	return c
}
