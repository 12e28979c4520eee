package pki

import (
	"crypto/ecdsa"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/novox/mesh/appliance"
)

// Reasons of refusals that a joiner tells apart.
const (
	WrongPin   appliance.Reason = "pin"
	WrongClock appliance.Reason = "clock"
)

// VerifyTime is the time certificates are judged at: a clock that lags is not believed before the build date or the last signed time
// seen (PKI-7).
func VerifyTime(now, built, lastSigned time.Time) time.Time {
	return slices.MaxFunc([]time.Time{now, built, lastSigned}, time.Time.Compare)
}

// built is the date of the source, RFC 3339; the build sets it with -ldflags -X.
var built string

// Built is the date of the source this binary was made from; zero when the build did not say.
var Built = sync.OnceValue(func() time.Time {
	t, _ := time.Parse(time.RFC3339, built)
	return t
})

// Clock gives the time to verify at. lastSigned may be nil.
func Clock(lastSigned func() time.Time) func() time.Time {
	return func() time.Time {
		var last time.Time
		if lastSigned != nil {
			last = lastSigned()
		}
		return VerifyTime(time.Now(), Built(), last)
	}
}

// ServerTLS is the configuration of every server of the mesh. Clients need no certificate; one that is presented must be the
// authority's and not revoked. Revoked may be nil.
func ServerTLS(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), authority *x509.Certificate, revoked func(serial string) bool, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         certificate,
		ClientAuth:             tls.VerifyClientCertIfGiven,
		ClientCAs:              pool(authority),
		Time:                   now,
		SessionTicketsDisabled: true, // a resumed session would not ask again what is revoked
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) > 0 && revoked != nil && revoked(Serial(cs.PeerCertificates[0])) {
				return appliance.Errorf(appliance.Denied, "verify client: certificate %s is revoked", Serial(cs.PeerCertificates[0]))
			}
			return nil
		},
	}
}

// Serial is how a certificate is named in the revocation list.
func Serial(cert *x509.Certificate) string { return cert.SerialNumber.Text(16) }

// ClientTLS is the configuration of a node's clients: the server must have the fixed name under the authority, whatever address was
// dialled. Own may be nil.
func ClientTLS(authority *x509.Certificate, name string, own *tls.Certificate, now func() time.Time) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool(authority), ServerName: name, Time: now}
	if own != nil {
		c.Certificates = []tls.Certificate{*own}
	}
	return c
}

// PinnedTLS is the configuration of a joiner, who knows only the authority's fingerprint: the presented chain must contain the pinned
// authority and verify under it with the fixed name.
func PinnedTLS(pin [32]byte, name string, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         name,
		Time:               now,
		InsecureSkipVerify: true, // VerifyConnection decides instead, on every connection
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := VerifyPinned(cs.PeerCertificates, pin, name, now())
			return err
		},
	}
}

// VerifyPinned checks a presented chain against a pinned authority and gives the authority.
func VerifyPinned(chain []*x509.Certificate, pin [32]byte, name string, now time.Time) (*x509.Certificate, error) {
	if pin == [32]byte{} {
		return nil, appliance.Errorf(appliance.Invalid, "verify %s: no fingerprint to verify against", name)
	}
	for _, cert := range chain {
		print := Fingerprint(cert.Raw)
		if subtle.ConstantTimeCompare(print[:], pin[:]) != 1 {
			continue
		}
		authority, err := ParseAuthority(cert.Raw)
		if err != nil {
			return nil, err
		}
		_, err = chain[0].Verify(x509.VerifyOptions{
			DNSName: name, Roots: pool(authority), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		})
		return authority, Explain(err, name, now)
	}
	said := "nothing"
	if len(chain) > 0 && len(chain[0].DNSNames) > 0 {
		said = appliance.Quote(strings.Join(chain[0].DNSNames, ", "))
	}
	return nil, appliance.Errorf(appliance.Denied, "verify %s: the presented chain does not contain the pinned authority; the server calls itself %s", name, said).
		WithReason(WrongPin).WithHint("somebody else answers at this address; compare it with the hub's, and look for a proxy in between")
}

// Explain makes a refusal out of what crypto/x509 says; other errors stay as they are.
func Explain(err error, name string, now time.Time) error {
	var (
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return appliance.Errorf(appliance.Denied, "verify %s: the certificate holds from %s to %s, and here it is %s", name,
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).
			WithReason(WrongClock).WithHint("set this machine's clock; if it is right, the certificate must be renewed on the hub")
	case errors.As(err, &unknown):
		return appliance.Errorf(appliance.Denied, "verify %s: the certificate is of another authority", name).
			WithReason(WrongPin).WithHint("another mesh, or a proxy, answers at this address")
	case errors.As(err, &host):
		return appliance.Errorf(appliance.Denied, "verify %s: the server calls itself %s", name, appliance.Quote(strings.Join(host.Certificate.DNSNames, ", "))).
			WithReason(WrongPin).WithHint("another mesh, or another server of this one, answers at this address; compare address and port")
	}
	return err
}

func pool(authority *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	if authority != nil {
		p.AddCert(authority)
	}
	return p
}

// Certifies refuses a certificate that is not for exactly this key and these names, sorted.
func Certifies(der []byte, key *ecdsa.PublicKey, names []string) error {
	cert, err := parse(der)
	if err != nil {
		return err
	}
	if !key.Equal(cert.PublicKey) {
		return appliance.Errorf(appliance.Invalid, "use certificate: it is for another key")
	}
	if have := slices.Sorted(slices.Values(cert.DNSNames)); !slices.Equal(have, names) {
		return appliance.Errorf(appliance.Invalid, "use certificate: it is for %s, not for %s", appliance.Quote(strings.Join(have, ", ")), strings.Join(names, ", "))
	}
	return nil
}
