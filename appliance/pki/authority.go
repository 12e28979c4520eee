package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"

	"github.com/novox/mesh/appliance"
)

const (
	// Lifetime is how long a certificate lasts where nothing else is asked for.
	Lifetime = 10 * 365 * 24 * time.Hour
	// AuthorityLifetime is how long the authority itself lasts: twice the longest certificate.
	AuthorityLifetime = 2 * Lifetime
	// backdate is how far before now a certificate begins, for clocks that lag.
	backdate = time.Hour
)

// Authority signs certificates for one mesh.
type Authority struct {
	Mesh        appliance.MeshID
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes the authority's own certificate, DER. It can sign leaves only, never another authority.
func NewAuthority(mesh appliance.MeshID, key *ecdsa.PrivateKey, now time.Time) ([]byte, error) {
	if !mesh.Valid() || key == nil || key.Curve != elliptic.P256() {
		return nil, appliance.Errorf(appliance.Invalid, "make authority: a mesh id and a P-256 key are needed")
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      subject(mesh),
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(AuthorityLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make authority: %w", err)
	}
	return der, nil
}

// LoadAuthority joins a recorded authority with its key. A certificate that is another mesh's, another key's, or no authority is refused.
func LoadAuthority(mesh appliance.MeshID, der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	cert, err := ParseAuthority(der)
	if err != nil {
		return nil, err
	}
	switch {
	case cert.Subject.String() != subject(mesh).String():
		return nil, appliance.Errorf(appliance.Invalid, "load authority: it is %q, not mesh %s", cert.Subject.CommonName, mesh)
	case key == nil || !key.PublicKey.Equal(cert.PublicKey):
		return nil, appliance.Errorf(appliance.Invalid, "load authority: the key on this machine is not the recorded authority's").
			WithHint("restore authority.key of this mesh from its backup")
	}
	return &Authority{Mesh: mesh, Certificate: cert, key: key}, nil
}

// ParseAuthority reads an authority's certificate: one that signs leaves and nothing else, with a P-256 key, signed by itself.
func ParseAuthority(der []byte) (*x509.Certificate, error) {
	cert, err := parse(der)
	if err != nil {
		return nil, err
	}
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	switch {
	case !cert.IsCA || !cert.BasicConstraintsValid || cert.MaxPathLen != 0 || !cert.MaxPathLenZero || cert.KeyUsage&x509.KeyUsageCertSign == 0:
		return nil, appliance.Errorf(appliance.Invalid, "read authority: %q may not sign leaves, or may sign more", cert.Subject.CommonName)
	case !ok || key.Curve != elliptic.P256():
		return nil, appliance.Errorf(appliance.Invalid, "read authority: its key is not P-256")
	}
	if err := cert.CheckSignatureFrom(cert); err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read authority: %w", err)
	}
	return cert, nil
}

// maxCertificate bounds a certificate, in bytes.
const maxCertificate = 16 << 10

func parse(der []byte) (*x509.Certificate, error) {
	if len(der) > maxCertificate {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate: %d bytes, at most %d", len(der), maxCertificate)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate: %w", err)
	}
	if !bytes.Equal(cert.Raw, der) {
		return nil, appliance.Errorf(appliance.Invalid, "read certificate: bytes after it")
	}
	return cert, nil
}

// Fingerprint is what a token pins: the SHA-256 of an authority's DER.
func Fingerprint(der []byte) [32]byte { return sha256.Sum256(der) }

func subject(mesh appliance.MeshID) pkix.Name { return pkix.Name{CommonName: "mesh " + string(mesh)} }

// serial draws 127 random bits; never zero or negative.
func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] &= 0x7f
	return new(big.Int).Add(new(big.Int).SetBytes(b[:]), big.NewInt(1))
}
