package appliancetest

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// Beat is the agents' heartbeat.
const Beat = 200 * time.Millisecond

// Node is one machine of the mesh.
type Node struct {
	ID      appliance.NodeID
	Name    appliance.NodeName
	Keys    identity.NodeKeys
	Machine *hosttest.Machine
	Dir     string // the agent's folder
	// Become is what a version-0 declaration leads to; nil: an error. Set it before Start.
	Become func(wire.Replace) error
	// Secrets are what its agent strikes out of logs. Set it before Start.
	Secrets func() []string

	mesh  *Mesh
	adopt bool
	trust identity.Trust
	agent *running
}

// Believes is what the node's agent believes.
func (n *Node) Believes() agent.Believes {
	return agent.Believes{Mesh: n.trust.Mesh, Node: n.ID, Signing: n.trust.Signing}
}

// Start runs the node's agent, which must not be running.
func (n *Node) Start() {
	n.mesh.t.Helper()
	n.agent = n.mesh.runAgent(n, n.Dir)
}

// Stop ends the agent; the machine stays as it is.
func (n *Node) Stop() {
	n.mesh.t.Helper()
	n.agent.stop(n.mesh.t)
}

// Restart is a stop and a start.
func (n *Node) Restart() {
	n.mesh.t.Helper()
	n.Stop()
	n.Start()
}

// Clone runs a second agent with everything copied from this node, on a machine of its own; stop it with the function.
func (n *Node) Clone() (stop func()) {
	t := n.mesh.t
	t.Helper()
	twin := *n
	twin.Machine, twin.Dir = hosttest.New(), t.TempDir()
	twin.Machine.SetMachineID(string(appliance.DigestOf([]byte("twin"))))
	if err := os.CopyFS(twin.Dir, os.DirFS(n.Dir)); err != nil {
		t.Fatal(err)
	}
	r := n.mesh.runAgent(&twin, twin.Dir)
	return func() { r.stop(t) }
}

func (m *Mesh) runAgent(n *Node, dir string) *running {
	var carried []wire.CarriedPort
	if n == m.Hub {
		carried = []wire.CarriedPort{{Port: m.Artifacts.Port(), Protocol: "tcp", Part: "artifacts"}}
	}
	return run(m.t, func(ctx context.Context) error {
		return agent.Run(ctx, agent.Config{
			Believes: n.Believes(), Identity: n.Keys.Identity, Dir: dir, Machine: n.Machine.Host(), Carried: carried, Beat: Beat, Log: m.logger(string(n.Name)), Secrets: n.Secrets,
			Connect: func(ctx context.Context, connected func()) (*bus.Link, error) {
				o := m.options(wire.NodeUser(n.ID), n)
				o.OnConnect, o.Wait = connected, false
				return bus.Connect(ctx, o)
			},
			Become: func(_ context.Context, to wire.Replace) error {
				if n.Become == nil {
					return appliance.Errorf(appliance.Unavailable, "become %s: this test does not", to.Agent.Digest.Short())
				}
				return n.Become(to)
			},
		})
	})
}

func (m *Mesh) options(user string, n *Node) bus.Options {
	return bus.Options{Endpoints: []string{m.endpoint()}, TLS: pki.ClientTLS(m.Authority.Certificate, pki.BrokerName(m.ID), nil, pki.Clock(nil)),
		User: user, Key: n.Keys.Bus, Logger: m.logger(user), Wait: true}
}

// Connect opens a second connection under the node's own bus user, until the test ends: what somebody could do who has its bus key.
func (n *Node) Connect() *bus.Link {
	t := n.mesh.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	link := must(bus.Connect(ctx, n.mesh.options(wire.NodeUser(n.ID), n)))(t)
	t.Cleanup(link.Close)
	return link
}

// Token makes a join token.
func (m *Mesh) Token(uses int) enrol.Token {
	m.t.Helper()
	var made operators.CreatedToken
	m.Must(operators.TokenCreate, operators.NewToken{Uses: uses}, &made)
	return must(enrol.Parse(made.Token))(m.t)
}

// AddNode joins a machine, starts its agent, and waits until it is current.
func (m *Mesh) AddNode(name appliance.NodeName) *Node {
	m.t.Helper()
	n := m.Enrol(name)
	n.Start()
	m.Current(name)
	return n
}

// Enrol joins a machine whose agent does not run yet.
func (m *Mesh) Enrol(name appliance.NodeName) *Node {
	m.t.Helper()
	return must(m.Join(m.t.Context(), m.Token(1), name, must(identity.GenerateNode())(m.t)))(m.t)
}

// Adopt joins a machine on which things are left as they are; its agent does not run yet.
func (m *Mesh) Adopt(name appliance.NodeName) *Node {
	m.t.Helper()
	return must(m.join(m.t.Context(), m.Token(1), &Node{Name: name, Keys: must(identity.GenerateNode())(m.t), adopt: true}))(m.t)
}

// Join enrols over the bus, as a machine with nothing but the token does. What passes by itself is waited for.
func (m *Mesh) Join(ctx context.Context, token enrol.Token, name appliance.NodeName, keys identity.NodeKeys) (*Node, error) {
	return m.join(ctx, token, &Node{Name: name, Keys: keys})
}

func (m *Mesh) join(ctx context.Context, token enrol.Token, n *Node) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*within)
	defer cancel()
	link, err := m.joiner(ctx, token)
	if err != nil {
		return nil, err
	}
	defer link.Close()
	n.Machine, n.Dir, n.mesh = hosttest.New(), m.t.TempDir(), m
	for {
		a, err := n.try(ctx, link, token)
		if err == nil {
			n.ID, n.trust = a.Trust.Node, a.Trust
			return n, os.WriteFile(filepath.Join(n.Dir, "membership"), a.Enrolled.Membership, 0o600)
		}
		if !enrol.Passing(err) || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(200*time.Millisecond + rand.N(300*time.Millisecond)): // so many that they do not come as one
		}
	}
}

func (m *Mesh) joiner(ctx context.Context, token enrol.Token) (*bus.Link, error) {
	key, err := token.BusKey()
	if err != nil {
		return nil, err
	}
	return bus.Connect(ctx, bus.Options{Endpoints: token.Addresses, TLS: pki.PinnedTLS(token.Authority, pki.BrokerName(token.Mesh), pki.Clock(nil)),
		User: wire.TokenUser(token.ID), Key: key, Logger: m.logger("joiner"), Wait: true})
}

// Joiner connects as the token's user, until the test ends.
func (m *Mesh) Joiner(token enrol.Token) *bus.Link {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	link := must(m.joiner(ctx, token))(m.t)
	m.t.Cleanup(link.Close)
	return link
}

// try is one claim; an answer that got lost is asked for again.
func (n *Node) try(ctx context.Context, link *bus.Link, token enrol.Token) (enrol.Admission, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return n.claim(ctx, link, token)
}

// claim says hello, answers the challenge, and reads the answer.
func (n *Node) claim(ctx context.Context, link *bus.Link, token enrol.Token) (a enrol.Admission, err error) {
	var nonce string
	data, err := link.Request(ctx, wire.EnrolSubject(token.ID), func(reply string) (data []byte, err error) {
		data, nonce, err = enrol.MakeHello(token, reply, time.Now())
		return data, err
	})
	if err != nil {
		return a, err
	}
	challenge, err := enrol.OpenChallenge(token, nonce, data, time.Now())
	if err != nil {
		return a, err
	}
	can := n.Machine.Host().Capabilities()
	can.State = "/var/lib/mesh"
	data, err = link.Request(ctx, wire.EnrolSubject(token.ID), func(reply string) ([]byte, error) {
		return enrol.MakeClaim(token, challenge, n.Keys, enrol.Claimant{Name: n.Name, Adopt: n.adopt, Capabilities: can}, reply, time.Now())
	})
	if err != nil {
		return a, err
	}
	return enrol.OpenAnswer(token, nonce, n.Keys, data, pki.Clock(nil)())
}
