package artifacts

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// BLD-6, SAFE-4: a node pulls what its declaration names and what lies beneath; a grant pushes to its module while it holds; nothing else.
func TestAccess(t *testing.T) {
	public, key, _ := ed25519.GenerateKey(rand.Reader)
	_, foreign, _ := ed25519.GenerateKey(rand.Reader)
	mesh, other, now := appliance.NewMeshID(), appliance.NewMeshID(), time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	n1, n2, gone := appliance.NewNodeID(), appliance.NewNodeID(), appliance.NewNodeID()
	of := func(s string) appliance.Digest { return appliance.DigestOf([]byte(s)) }
	web, layer, mail := of("web's manifest"), of("web's layer"), of("mail's manifest")
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	former, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	access := Access{Mesh: mesh, Signing: public,
		Declared: func(node appliance.NodeID, key *ecdsa.PublicKey) ([]appliance.Digest, error) {
			switch {
			case node == gone:
				return nil, appliance.Errorf(appliance.Denied, "node %s is not in the mesh", node)
			case !own.PublicKey.Equal(key):
				return nil, appliance.Errorf(appliance.Denied, "node %s has another key now", node)
			case node == n1:
				return []appliance.Digest{web}, nil
			}
			return []appliance.Digest{mail}, nil
		},
		Beneath: func(d appliance.Digest, manifests []appliance.Digest) bool {
			return d == layer && slices.Contains(manifests, web)
		}}
	issue := func(g Grant, mesh appliance.MeshID, key ed25519.PrivateKey) string {
		text, err := IssueGrant(g, wire.Header{Version: wire.Version, Mesh: mesh, From: string(mesh), To: string(appliance.NewOperatorID()), Nonce: rand.Text(), Time: now}, key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	soon := now.Add(time.Minute)
	good := issue(Grant{Module: "web", MaxBytes: 100, Expires: soon}, mesh, key)
	narrow := issue(Grant{Module: "web", Artifact: "image", MaxBytes: 7, Expires: soon}, mesh, key)
	otherKind, err := wire.Seal(wire.Header{Kind: wire.KindNotice, Mesh: mesh, From: string(mesh), Time: now}, []byte(`{"module":"web","maxBytes":1,"expires":"2027-01-01T00:00:00Z"}`), key)
	if err != nil {
		t.Fatal(err)
	}
	node := func(id appliance.NodeID) Asker { return Asker{Node: id, Key: &own.PublicKey} }
	with := func(grant string) Asker { return Asker{Grant: grant} }
	for _, c := range []struct {
		name     string
		who      Asker
		action   Action
		artifact string
		d        appliance.Digest
		max      int64
		says     string // empty: allowed
	}{
		{"its own image", node(n1), Pull, "image", web, 0, ""},
		{"a layer of it", node(n1), Pull, "image", layer, 0, ""},
		{"whether it is there", node(n1), Look, "image", web, 0, ""},
		{"another node's image", node(n2), Pull, "image", web, 0, "names nothing"},
		{"another node's layer", node(n2), Pull, "image", layer, 0, "names nothing"},
		{"whether another's is there", node(n2), Look, "image", web, 0, "names nothing"},
		{"what it is not declared", node(n1), Pull, "image", mail, 0, "names nothing"},
		{"nothing by name", node(n1), Pull, "image", "", 0, "names nothing"},
		{"a removed node", node(gone), Pull, "image", web, 0, "not in the mesh"},
		{"a node's former key", Asker{Node: n1, Key: &former.PublicKey}, Pull, "image", web, 0, "another key"},
		{"a stranger", Asker{}, Pull, "image", web, 0, "needs the certificate of a node"},
		{"a module's certificate", Asker{Key: &own.PublicKey}, Pull, "image", web, 0, "needs the certificate of a node"},
		{"a stranger looks", Asker{}, Look, "image", web, 0, "needs the certificate of a node"},
		{"a node pushes", node(n1), Push, "image", web, 0, "needs a grant"},
		{"a stranger pushes", Asker{}, Push, "image", web, 0, "needs a grant"},
		{"a grant", with(good), Push, "image", "", 100, ""},
		{"a grant looks", with(good), Look, "image", web, 100, ""},
		{"a grant for one artifact", with(narrow), Push, "image", "", 7, ""},
		{"a grant for another artifact", with(narrow), Push, "tree", "", 0, "is for web/image, not for web/tree"},
		{"a grant pulls", with(good), Pull, "image", web, 0, "needs the certificate of a node"},
		{"a node with a grant pulls its own", Asker{Node: n1, Key: &own.PublicKey, Grant: good}, Pull, "image", web, 0, ""},
		{"a grant for another module", with(issue(Grant{Module: "mail", MaxBytes: 1, Expires: soon}, mesh, key)), Push, "image", "", 0, "is for module mail, not for web/image"},
		{"a grant that ended", with(issue(Grant{Module: "web", MaxBytes: 1, Expires: now}, mesh, key)), Push, "image", "", 0, "has ended 2026-12-01T12:00:00Z"},
		{"a grant without an end", with(issue(Grant{Module: "web", MaxBytes: 1}, mesh, key)), Push, "image", "", 0, "has ended"},
		{"a grant under another key", with(issue(Grant{Module: "web", MaxBytes: 1, Expires: soon}, mesh, foreign)), Push, "image", "", 0, "not one of this mesh's"},
		{"another mesh's grant", with(issue(Grant{Module: "web", MaxBytes: 1, Expires: soon}, other, key)), Push, "image", "", 0, "another mesh's"},
		{"a notice as a grant", with(base64.RawURLEncoding.EncodeToString(otherKind)), Push, "image", "", 0, "not one of this mesh's"},
		{"a spoiled grant", with(good[:len(good)-2] + "AA"), Push, "image", "", 0, "not one of this mesh's"},
		{"a grant that is none", with("hello, world"), Push, "image", "", 0, "is none"},
		{"a long grant", with(strings.Repeat("a", 5000)), Push, "image", "", 0, "too long"},
	} {
		max, err := access.Allow(c.who, c.action, "web", c.artifact, c.d, now)
		switch {
		case c.says == "" && (err != nil || max != c.max):
			t.Errorf("%s: %d, %v", c.name, max, err)
		case c.says != "" && (appliance.KindOf(err) != appliance.Denied || !strings.Contains(err.Error(), c.says) || max != 0):
			t.Errorf("%s: %d, %v, want %q", c.name, max, err, c.says)
		case strings.Contains(c.says, "needs") != appliance.IsReason(err, Unproven):
			t.Errorf("%s: whether who asks is known: %v", c.name, err)
		}
	}
}

// SAFE-2: no text makes a grant that the mesh has not signed.
func FuzzGrant(f *testing.F) {
	public, key, _ := ed25519.GenerateKey(rand.Reader)
	mesh := appliance.NewMeshID()
	text, err := IssueGrant(Grant{Module: "web"}, wire.Header{Mesh: mesh, From: string(mesh), Time: time.Now()}, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := OpenGrant(s, mesh, public, time.Time{}); err == nil && s != text {
			t.Errorf("%q is %v", s, g)
		}
	})
}
