package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
)

// Usage is what a certificate is for.
type Usage int

const (
	Server Usage = 1 << iota
	Client
)

// BrokerName is the fixed name of the broker, whatever address was dialled (PKI-6).
func BrokerName(mesh appliance.MeshID) string { return "broker." + string(mesh) }

// DownloadsName is the fixed name of the download server.
func DownloadsName(mesh appliance.MeshID) string { return "downloads." + string(mesh) }

// ArtifactsName is the fixed name of the artifact store.
func ArtifactsName(mesh appliance.MeshID) string { return "artifacts." + string(mesh) }

// NodeCertName is the name in a node's certificate.
func NodeCertName(node appliance.NodeID) string { return "node." + string(node) }

// NodeOf gives the node that a certificate names, with its key; no node where it is something else's.
func NodeOf(cert *x509.Certificate) (appliance.NodeID, *ecdsa.PublicKey) {
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return "", nil
	}
	for _, name := range cert.DNSNames {
		id, node := strings.CutPrefix(name, "node.")
		if node && appliance.NodeID(id).Valid() {
			return appliance.NodeID(id), key
		}
	}
	return "", nil
}

// Request asks for one certificate.
type Request struct {
	Public    *ecdsa.PublicKey // required, P-256; the certificate is for exactly this key
	Names     []string         // DNS names: mesh-internal ones, or of Endpoints
	Addresses []netip.Addr     // of Endpoints
	Endpoints []string         // hosts that the mesh itself is reached at, names and addresses; may be certified as well
	Usage     Usage            // required
	Now       time.Time        // required
	Lifetime  time.Duration    // 0: Lifetime; cut where the authority ends
}

// Issue signs a leaf. It refuses names that are neither the mesh's own nor its endpoints', and never signs an authority (PKI-1).
func (a *Authority) Issue(r Request) ([]byte, error) {
	if err := a.check(r); err != nil {
		return nil, err
	}
	lifetime := r.Lifetime
	if lifetime == 0 {
		lifetime = Lifetime
	}
	end := r.Now.Add(lifetime)
	if end.After(a.Certificate.NotAfter) {
		end = a.Certificate.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{}, // names are in the alternative names only
		NotBefore:    r.Now.Add(-backdate), NotAfter: end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		DNSNames:              slices.Clone(r.Names),
	}
	for _, addr := range r.Addresses {
		template.IPAddresses = append(template.IPAddresses, addr.Unmap().AsSlice())
	}
	if r.Usage&Server != 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if r.Usage&Client != 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, r.Public, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %s: %w", strings.Join(r.Names, ", "), err)
	}
	return der, nil
}

func (a *Authority) check(r Request) error {
	refuse := func(format string, args ...any) *appliance.Error {
		return appliance.Errorf(appliance.Invalid, "issue certificate: "+format, args...)
	}
	switch {
	case r.Public == nil || r.Public.Curve != elliptic.P256():
		return refuse("the key is not P-256")
	case r.Public.Equal(a.Certificate.PublicKey):
		return refuse("the key is the authority's own")
	case len(r.Names)+len(r.Addresses) == 0 || len(r.Names)+len(r.Addresses) > 64:
		return refuse("%d names, between 1 and 64", len(r.Names)+len(r.Addresses))
	case r.Usage&^(Server|Client) != 0 || r.Usage == 0:
		return refuse("no usage")
	case r.Lifetime < 0 || r.Now.IsZero() || r.Now.After(a.Certificate.NotAfter):
		return refuse("no time in which it would hold; the authority ends %s", a.Certificate.NotAfter.Format(time.RFC3339))
	}
	for _, name := range r.Names {
		if !a.own(name) && !slices.Contains(r.Endpoints, name) {
			return refuse("%s is not a name of this mesh", appliance.Quote(name)).
				WithHint("the mesh certifies <name>.internal, its own servers and nodes, and the endpoints it is reached at")
		}
		if !dnsName.MatchString(name) || len(name) > 253 {
			return refuse("%s is not a host name", appliance.Quote(name))
		}
	}
	for _, addr := range r.Addresses {
		if !slices.Contains(r.Endpoints, addr.String()) {
			return refuse("%s is not an address of this mesh", addr)
		}
	}
	return nil
}

var (
	dnsName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	internal = regexp.MustCompile(`^([a-z]([a-z0-9-]{0,38}[a-z0-9])?\.){1,2}internal$`)
)

// own says whether a name lies in what is the mesh's alone.
func (a *Authority) own(name string) bool {
	id, node := strings.CutPrefix(name, "node.")
	return internal.MatchString(name) || name == BrokerName(a.Mesh) || name == DownloadsName(a.Mesh) || name == ArtifactsName(a.Mesh) || node && appliance.NodeID(id).Valid()
}

// MakeRequest makes a certificate request that proves possession of key; it names nothing, since the mesh chooses the names.
func MakeRequest(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return der, nil
}

// ParseRequest gives the key of a request that its key signed. Nothing else in a request counts.
func ParseRequest(der []byte) (*ecdsa.PublicKey, error) {
	if len(der) > maxCertificate {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate request: %d bytes, at most %d", len(der), maxCertificate)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate request: %w", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate request: its key is not P-256")
	}
	if err := r.CheckSignature(); err != nil {
		return nil, appliance.Errorf(appliance.Denied, "read certificate request: %w", err)
	}
	return key, nil
}

// Chain is what a server presents: its certificate and the authority, so that a joiner finds the one its token pins.
func Chain(leaf, authority []byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	cert, err := parse(leaf)
	if err != nil {
		return nil, err
	}
	if key == nil || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, appliance.Errorf(appliance.Invalid, "use certificate: it is for another key")
	}
	return &tls.Certificate{Certificate: [][]byte{leaf, authority}, PrivateKey: key, Leaf: cert}, nil
}

// KeyPin names a server's key for curl's --pinnedpubkey.
func KeyPin(key *ecdsa.PublicKey) (string, error) {
	spki, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("pin a key: %w", err)
	}
	sum := sha256.Sum256(spki)
	return "sha256//" + base64.StdEncoding.EncodeToString(sum[:]), nil
}

// EncodePEM and DecodePEM are how certificates lie in files.
func EncodePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func DecodePEM(text []byte) ([]byte, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate: not PEM")
	}
	return block.Bytes, nil
}
