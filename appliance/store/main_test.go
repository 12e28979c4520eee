package store_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

var (
	start    = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	meshes   = netip.MustParsePrefix("10.64.0.0/16")
	address1 = netip.MustParseAddr("10.64.0.1")
)

// by is who makes the changes of a test.
func by() store.By { return store.By{Who: "test", At: start} }

func random32() string {
	b := make([]byte, 32)
	rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

func busKey(t testing.TB) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func signingKey(t testing.TB) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func sealingKey(t testing.TB) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id.Recipient().String()
}

// nodeKeys are public halves in the wire's form; the private ones are of no use to a store.
func nodeKeys(t testing.TB) wire.PublicKeys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return wire.PublicKeys{Identity: random32(), Overlay: random32(), Sealing: sealingKey(t), TLS: base64.StdEncoding.EncodeToString(spki), Bus: busKey(t)}
}

func operator(t testing.TB, name string) store.Operator {
	return store.Operator{ID: appliance.NewOperatorID(), Name: appliance.OperatorName(name), Role: "admin", Signing: signingKey(t), Bus: busKey(t)}
}

func capabilities() wire.Capabilities {
	return wire.Capabilities{Wire: 1, Binary: "v1.0.0", OS: "linux", Architecture: "amd64", Distribution: "debian", Init: "none", Kinds: wire.ResourceKinds}
}

// genesis is a mesh with a hub and no module.
func genesis(t testing.TB) store.Genesis {
	return store.Genesis{
		Mesh: store.Mesh{ID: appliance.NewMeshID(), Name: "home", Range: meshes, OverlayPort: 51820, Endpoints: []string{"203.0.113.1:4222"},
			Signing: signingKey(t), Sealing: sealingKey(t), Bus: busKey(t), BusModules: busKey(t), Authority: []byte("authority of " + t.Name())},
		Hub: store.Hub{ID: appliance.NewNodeID(), Name: "hub", State: "/var/lib/mesh", Endpoint: "203.0.113.1:51820", Address: address1,
			Keys: nodeKeys(t), Certificate: []byte("certificate of hub"), Capabilities: capabilities()},
		Operator: operator(t, "first"),
	}
}

// founded is a store with the mesh of genesis.
func founded(t testing.TB) (*store.Store, store.Genesis) {
	t.Helper()
	s, g := storetest.New(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	return s, g
}

// newToken records a token for some uses, open for an hour from start.
func newToken(t testing.TB, s *store.Store, uses int, change ...func(*store.Token)) store.Token {
	t.Helper()
	token := store.Token{ID: appliance.NewTokenID(), Uses: uses, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: start.Add(time.Hour)}
	for _, c := range change {
		c(&token)
	}
	if err := s.CreateToken(t.Context(), by(), token); err != nil {
		t.Fatal(err)
	}
	return token
}

// claim is an enrolment of a machine with fresh keys.
func claim(t testing.TB, token store.Token, name string) store.Enrolment {
	t.Helper()
	return store.Enrolment{
		Token: token.ID, Keys: nodeKeys(t), Name: appliance.NodeName(name), State: "/var/lib/mesh", Capabilities: capabilities(),
		Allocate: func(used []netip.Addr) (netip.Addr, error) { return overlay.Allocate(meshes, used) },
		Issue: func(id appliance.NodeID, name appliance.NodeName, a netip.Addr) ([]byte, error) {
			return fmt.Appendf(nil, "certificate of %s %s %s", id, name, a), nil
		},
	}
}

// enrolledNode adds a node to a mesh.
func enrolledNode(t testing.TB, s *store.Store, name string) store.Enrolled {
	t.Helper()
	done, err := s.Enrol(t.Context(), by(), claim(t, newToken(t, s, 1), name))
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func parse(t testing.TB, text string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// web is a module with one port that the mesh may assign and one that it may not.
const web = `{"module": "web", "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}, "admin": {"port": 9090, "from": "node"}}}`

// wantRefusal holds an error to its kind and reason, and to a way out.
func wantRefusal(t testing.TB, err error, kind appliance.Kind, reason appliance.Reason) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s %s", kind, reason)
	}
	e := appliance.AsError(err)
	if e.Kind != kind || e.Reason != reason {
		t.Fatalf("got %s %q: %v\nwant %s %q", e.Kind, e.Reason, err, kind, reason)
	}
	if e.Hint == "" && e.Next == "" {
		t.Errorf("%v: no way out", err)
	}
}

// speaker is the machine that is a node now.
func speaker(t testing.TB, s *store.Store, id appliance.NodeID) store.Speaker {
	t.Helper()
	nodes, err := s.Nodes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.ID == id {
			return speakerWith(t, id, n.Keys.Identity)
		}
	}
	return store.Speaker{Node: id}
}

func speakerWith(t testing.TB, id appliance.NodeID, identity string) store.Speaker {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(identity)
	if err != nil {
		t.Fatal(err)
	}
	return store.Speaker{Node: id, Identity: key}
}
