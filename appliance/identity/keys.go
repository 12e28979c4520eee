package identity

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"

	"filippo.io/age"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance/wire"
)

// NodeKeys are the five keys of a node. No key has two uses.
type NodeKeys struct {
	Identity ed25519.PrivateKey  // signs what the node says
	Overlay  [32]byte            // WireGuard
	Sealing  *age.X25519Identity // opens what is sealed to the node
	TLS      *ecdsa.PrivateKey   // P-256
	Bus      nkeys.KeyPair       // logs in, and signs nothing else
}

// String and MarshalText keep private halves out of messages, logs and JSON.
func (k NodeKeys) String() string               { return "keys of a node" }
func (k NodeKeys) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// GenerateNode makes the keys of a new node. They live nowhere until Save.
func GenerateNode() (NodeKeys, error) {
	var k NodeKeys
	var g generator
	k.Identity, k.Overlay, k.Sealing, k.TLS, k.Bus = g.ed25519(), g.x25519(), g.age(), g.ecdsa(), g.user()
	return k, g.err
}

func (k *NodeKeys) parts() []part {
	return []part{
		pemPart("identity.key", &k.Identity),
		rawPart("overlay.key", &k.Overlay),
		agePart("sealing.key", &k.Sealing),
		pemPart("tls.key", &k.TLS),
		nkeyPart("bus.key", &k.Bus),
	}
}

// Save writes each key that has no file in dir yet; an existing key is never replaced, so what holds afterwards is what Load gives.
func (k NodeKeys) Save(dir string) error { return save(dir, k.parts()) }

// LoadNode reads the keys from dir. A missing one is NotFound, one that others can read is Denied.
func LoadNode(dir string) (NodeKeys, error) {
	var k NodeKeys
	if err := load(dir, k.parts()); err != nil {
		return NodeKeys{}, err
	}
	return k, nil
}

// Public gives the public halves as they go over the wire. A key that is not there stays empty, which ParsePublic refuses.
func (k NodeKeys) Public() wire.PublicKeys {
	encode := base64.StdEncoding.EncodeToString
	overlay := OverlayPublic(k.Overlay)
	w := wire.PublicKeys{Overlay: encode(overlay[:])}
	if len(k.Identity) == ed25519.PrivateKeySize {
		w.Identity = encode(k.Identity.Public().(ed25519.PublicKey))
	}
	if k.Sealing != nil {
		w.Sealing = k.Sealing.Recipient().String()
	}
	if k.TLS != nil {
		spki, _ := x509.MarshalPKIXPublicKey(&k.TLS.PublicKey)
		w.TLS = encode(spki)
	}
	if k.Bus != nil {
		w.Bus, _ = k.Bus.PublicKey()
	}
	return w
}

// OverlayPublic is the public half of a WireGuard key; zeros for zeros.
func OverlayPublic(private [32]byte) (public [32]byte) {
	key, err := ecdh.X25519().NewPrivateKey(private[:])
	if err == nil && private != public {
		copy(public[:], key.PublicKey().Bytes())
	}
	return public
}

// MeshKeys are the keys of the mesh; they live on the hub.
type MeshKeys struct {
	Signing              ed25519.PrivateKey  // declarations, membership, enrolment answers, notices; pinned by tokens and nodes
	Sealing              *age.X25519Identity // secrets at rest
	Authority            *ecdsa.PrivateKey   // certificates
	Challenge            [32]byte            // enrolment challenges are derived from it
	ControllerBus        nkeys.KeyPair       // the controller's login in the control account
	ControllerModulesBus nkeys.KeyPair       // and in the modules account
}

// String and MarshalText are as NodeKeys'.
func (k MeshKeys) String() string               { return "keys of a mesh" }
func (k MeshKeys) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// GenerateMesh makes the keys of a new mesh.
func GenerateMesh() (MeshKeys, error) {
	var k MeshKeys
	var g generator
	k.Signing, k.Sealing, k.Authority, k.Challenge = g.ed25519(), g.age(), g.ecdsa(), g.x25519()
	k.ControllerBus, k.ControllerModulesBus = g.user(), g.user()
	return k, g.err
}

func (k *MeshKeys) parts() []part {
	return []part{
		pemPart("signing.key", &k.Signing),
		agePart("sealing.key", &k.Sealing),
		pemPart("authority.key", &k.Authority),
		rawPart("challenge.key", &k.Challenge),
		nkeyPart("controller-bus.key", &k.ControllerBus),
		nkeyPart("controller-modules-bus.key", &k.ControllerModulesBus),
	}
}

// Save is check-then-do per key, as NodeKeys.Save.
func (k MeshKeys) Save(dir string) error { return save(dir, k.parts()) }

// LoadMesh reads the keys from dir.
func LoadMesh(dir string) (MeshKeys, error) {
	var k MeshKeys
	if err := load(dir, k.parts()); err != nil {
		return MeshKeys{}, err
	}
	return k, nil
}

// ServerKey gives the TLS key of one of the hub's servers, made where there is none yet. Machines that know nothing else of the mesh pin it,
// so it stays until somebody removes its file.
func ServerKey(dir, server string) (*ecdsa.PrivateKey, error) {
	var g generator
	key := g.ecdsa()
	if g.err != nil {
		return nil, g.err
	}
	parts := []part{pemPart(server+".key", &key)}
	if err := save(dir, parts); err != nil {
		return nil, err
	}
	if err := load(dir, parts); err != nil {
		return nil, err
	}
	return key, nil
}

// generator keeps the first error of several keys.
type generator struct{ err error }

func keep[K any](g *generator) func(K, error) K {
	return func(k K, err error) K {
		if g.err == nil && err != nil {
			g.err = fmt.Errorf("make a key: %w", err)
		}
		return k
	}
}

func (g *generator) ed25519() ed25519.PrivateKey {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return keep[ed25519.PrivateKey](g)(key, err)
}

// x25519 gives 32 random bytes, clamped as WireGuard shows them.
func (g *generator) x25519() (key [32]byte) {
	rand.Read(key[:])
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}

func (g *generator) age() *age.X25519Identity {
	return keep[*age.X25519Identity](g)(age.GenerateX25519Identity())
}
func (g *generator) user() nkeys.KeyPair { return keep[nkeys.KeyPair](g)(nkeys.CreateUser()) }
func (g *generator) ecdsa() *ecdsa.PrivateKey {
	return keep[*ecdsa.PrivateKey](g)(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
}

// Secrets are the lines of the key files, by which a key could come to light in a log.
func (k NodeKeys) Secrets() (lines []string) {
	for _, p := range k.parts() {
		text, err := p.encode()
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
