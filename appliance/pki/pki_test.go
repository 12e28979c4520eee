package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/pki"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func key(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func authority(t testing.TB) *pki.Authority {
	t.Helper()
	mesh, k := appliance.NewMeshID(), key(t)
	der, err := pki.NewAuthority(mesh, k, now)
	if err != nil {
		t.Fatal(err)
	}
	a, err := pki.LoadAuthority(mesh, der, k)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t testing.TB, a *pki.Authority, k *ecdsa.PrivateKey, usage pki.Usage, names ...string) *x509.Certificate {
	t.Helper()
	der, err := a.Issue(pki.Request{Public: &k.PublicKey, Names: names, Usage: usage, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func verify(cert *x509.Certificate, a *pki.Authority, between []*x509.Certificate, name string, at time.Time) error {
	roots, pool := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(a.Certificate)
	for _, c := range between {
		pool.AddCert(c)
	}
	_, err := cert.Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// PKI-1, PKI-4
func TestIssue(t *testing.T) {
	a, k := authority(t), key(t)
	cert := issue(t, a, k, pki.Server, pki.BrokerName(a.Mesh), "gitea.internal")
	if err := verify(cert, a, nil, pki.BrokerName(a.Mesh), now); err != nil {
		t.Error(err)
	}
	if cert.IsCA || !k.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != "" || len(cert.DNSNames) != 2 {
		t.Errorf("certificate %+v", cert.Subject)
	}
	if got := cert.NotAfter; !got.Equal(now.Add(pki.Lifetime)) {
		t.Errorf("it ends %s", got)
	}
	if len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth {
		t.Errorf("usage %v", cert.ExtKeyUsage)
	}
	if cert.SerialNumber.Cmp(issue(t, a, k, pki.Server, "x.internal").SerialNumber) == 0 {
		t.Error("one serial twice")
	}
	late, err := a.Issue(pki.Request{Public: &k.PublicKey, Names: []string{"x.internal"}, Usage: pki.Client, Now: now.Add(15 * 365 * 24 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := x509.ParseCertificate(late); c.NotAfter.After(a.Certificate.NotAfter) {
		t.Error("it outlives its authority")
	}
}

// PKI-1: mesh-internal names and endpoints, and nothing else.
func TestIssueRefuses(t *testing.T) {
	a, k, other := authority(t), key(t), authority(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(change func(*pki.Request)) error {
		r := pki.Request{Public: &k.PublicKey, Names: []string{"a.internal"}, Usage: pki.Server, Now: now,
			Endpoints: []string{"hub.example.org", "192.0.2.1", "2001:db8::1", "evil\nname"}}
		change(&r)
		_, err := a.Issue(r)
		return err
	}
	names := func(names ...string) func(*pki.Request) { return func(r *pki.Request) { r.Names = names } }
	node := appliance.NewNodeID()
	for _, good := range [][]string{{"a.internal"}, {"gitea.box.internal"}, {pki.BrokerName(a.Mesh)}, {pki.DownloadsName(a.Mesh)}, {pki.NodeCertName(node)}, {"hub.example.org"}} {
		if err := request(names(good...)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if err := request(func(r *pki.Request) {
		r.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*pki.Request){
		"public name":           names("example.org"),
		"below an endpoint":     names("a.hub.example.org"),
		"wildcard":              names("*.internal"),
		"internal itself":       names("internal"),
		"deep":                  names("a.b.c.internal"),
		"suffix only":           names("a.notinternal"),
		"another mesh's broker": names(pki.BrokerName(other.Mesh)),
		"node without id":       names("node.x"),
		"capitals":              names("A.internal"),
		"newline":               names("a.internal\n"),
		"a good and a bad":      names("a.internal", "example.org"),
		"endpoint that is none": names("evil\nname"),
		"none":                  names(),
		"too many":              names(strings.Fields(strings.Repeat("a.internal ", 65))...),
		"address of nobody":     func(r *pki.Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.2")} },
		"no key":                func(r *pki.Request) { r.Public = nil },
		"another curve":         func(r *pki.Request) { r.Public = &p384.PublicKey },
		"the authority's own":   func(r *pki.Request) { r.Public = a.Certificate.PublicKey.(*ecdsa.PublicKey) },
		"no usage":              func(r *pki.Request) { r.Usage = 0 },
		"another usage":         func(r *pki.Request) { r.Usage = 4 },
		"negative lifetime":     func(r *pki.Request) { r.Lifetime = -time.Hour },
		"after the authority":   func(r *pki.Request) { r.Now = now.Add(40 * 365 * 24 * time.Hour) },
		"at no time":            func(r *pki.Request) { r.Now = time.Time{} },
	} {
		if err := request(change); err == nil || appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// PKI-1: it cannot sign another authority, a leaf signs nothing, and another mesh's certificate does not verify.
func TestNobodyElseSigns(t *testing.T) {
	a, other, leafKey, childKey := authority(t), authority(t), key(t), key(t)
	leaf := issue(t, a, leafKey, pki.Server|pki.Client, "a.internal")
	child := func(parent *x509.Certificate, by *ecdsa.PrivateKey, ca bool) *x509.Certificate {
		template := &x509.Certificate{SerialNumber: big.NewInt(7), DNSNames: []string{"b.internal"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			IsCA: ca, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, Subject: pkix.Name{CommonName: "b"}}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &childKey.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	if err := verify(child(leaf, leafKey, false), a, []*x509.Certificate{leaf}, "b.internal", now); err == nil {
		t.Error("a leaf signed another certificate")
	}
	// Even with the authority's key an authority beneath it is believed by nobody: MaxPathLen is 0.
	mesh, rootKey := appliance.NewMeshID(), key(t)
	der, err := pki.NewAuthority(mesh, rootKey, now)
	if err != nil {
		t.Fatal(err)
	}
	root, err := pki.LoadAuthority(mesh, der, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	sub := child(root.Certificate, rootKey, true)
	grandchild := child(sub, childKey, false)
	if err := verify(grandchild, root, []*x509.Certificate{sub}, "b.internal", now); err == nil {
		t.Error("an authority beneath the authority was believed")
	}
	if _, err := pki.ParseAuthority(sub.Raw); err == nil {
		t.Error("an authority beneath the authority was read as one")
	}
	if err := verify(issue(t, other, leafKey, pki.Server, "a.internal"), a, []*x509.Certificate{other.Certificate}, "a.internal", now); err == nil {
		t.Error("another mesh's certificate verifies")
	}
	if _, err := pki.ParseAuthority(leaf.Raw); err == nil {
		t.Error("a leaf was read as an authority")
	}
}

func TestLoadAuthorityRefuses(t *testing.T) {
	a, k := authority(t), key(t)
	if _, err := pki.LoadAuthority(a.Mesh, a.Certificate.Raw, k); err == nil {
		t.Error("with another key")
	}
	if _, err := pki.LoadAuthority(a.Mesh, a.Certificate.Raw, nil); err == nil {
		t.Error("without a key")
	}
	der, err := pki.NewAuthority(a.Mesh, k, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadAuthority(appliance.NewMeshID(), der, k); err == nil {
		t.Error("another mesh's")
	}
	if _, err := pki.LoadAuthority(a.Mesh, append(der, 0), k); err == nil {
		t.Error("with a byte more")
	}
	if _, err := pki.NewAuthority("", k, now); err == nil {
		t.Error("for no mesh")
	}
}

// It certifies exactly the key asked about. PKI-1
func TestRequests(t *testing.T) {
	k := key(t)
	der, err := pki.MakeRequest(k)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pki.ParseRequest(der)
	if err != nil || !got.Equal(&k.PublicKey) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range der {
		bad := append([]byte{}, der...)
		bad[i] ^= 0x10
		if got, err := pki.ParseRequest(bad); err == nil {
			t.Errorf("byte %d flipped: gives %v", i, got)
		}
		if _, err := pki.ParseRequest(der[:i]); err == nil {
			t.Errorf("cut at %d", i)
		}
	}
	if _, err := pki.ParseRequest(make([]byte, 20<<10)); err == nil || !strings.Contains(err.Error(), "16384") {
		t.Errorf("a large one: %v", err)
	}
}

// shake connects two ends over TCP on this machine and gives what each said.
func shake(t *testing.T, server, client *tls.Config) (clientErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		s := tls.Server(conn, server)
		if err = s.Handshake(); err == nil {
			_, err = s.Write([]byte("x"))
		}
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	c := tls.Client(conn, client)
	if err = c.Handshake(); err == nil {
		_, err = io.ReadFull(c, make([]byte, 1)) // in TLS 1.3 a refused client learns it with the first read
	}
	conn.Close()
	return err, <-done
}

func at(t time.Time) func() time.Time { return func() time.Time { return t } }

func serving(t *testing.T, a *pki.Authority, name string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	t.Helper()
	k := key(t)
	cert, err := pki.Chain(issue(t, a, k, pki.Server, name).Raw, a.Certificate.Raw, k)
	if err != nil {
		t.Fatal(err)
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }
}

// PKI-6: the fixed name is verified whatever address was dialled; NODE-3: the joiner is told pin from clock.
func TestHandshakes(t *testing.T) {
	a, other := authority(t), authority(t)
	broker := pki.BrokerName(a.Mesh)
	server := pki.ServerTLS(serving(t, a, broker), a.Certificate, nil, at(now))
	pin := pki.Fingerprint(a.Certificate.Raw)

	for name, client := range map[string]*tls.Config{
		"a joiner": pki.PinnedTLS(pin, broker, at(now)),
		"a node":   pki.ClientTLS(a.Certificate, broker, nil, at(now)),
	} {
		if c, s := shake(t, server, client); c != nil || s != nil {
			t.Errorf("%s: %v, %v", name, c, s)
		}
	}
	foreign := pki.ServerTLS(serving(t, other, pki.BrokerName(other.Mesh)), other.Certificate, nil, at(now))
	downloads := pki.ServerTLS(serving(t, a, pki.DownloadsName(a.Mesh)), a.Certificate, nil, at(now))
	// a leaf of another authority, presented together with the pinned one
	k := key(t)
	forged := pki.ServerTLS(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{selfSigned(t, k, broker), a.Certificate.Raw}, PrivateKey: k}, nil
	}, a.Certificate, nil, at(now))
	early, late := now.Add(-2*time.Hour), now.Add(11*365*24*time.Hour)
	for name, c := range map[string]struct {
		server, client *tls.Config
		want           appliance.Reason
		says           string
	}{
		"joiner, another mesh":   {foreign, pki.PinnedTLS(pin, broker, at(now)), pki.WrongPin, pki.BrokerName(other.Mesh)},
		"joiner, another server": {downloads, pki.PinnedTLS(pin, broker, at(now)), pki.WrongPin, pki.DownloadsName(a.Mesh)},
		"joiner, forged leaf":    {forged, pki.PinnedTLS(pin, broker, at(now)), pki.WrongPin, "another authority"},
		"joiner, clock behind":   {server, pki.PinnedTLS(pin, broker, at(early)), pki.WrongClock, "2026-12-01T10:00:00Z"},
		"joiner, clock ahead":    {server, pki.PinnedTLS(pin, broker, at(late)), pki.WrongClock, late.Format(time.RFC3339)},
		"joiner without a pin":   {server, pki.PinnedTLS([32]byte{}, broker, at(now)), "", "no fingerprint"},
		"node, another mesh":     {foreign, pki.ClientTLS(a.Certificate, broker, nil, at(now)), pki.WrongPin, pki.BrokerName(other.Mesh)},
		"node, another server":   {downloads, pki.ClientTLS(a.Certificate, broker, nil, at(now)), pki.WrongPin, pki.DownloadsName(a.Mesh)},
		"node, forged leaf":      {forged, pki.ClientTLS(a.Certificate, broker, nil, at(now)), pki.WrongPin, "another authority"},
		"node, clock far behind": {server, pki.ClientTLS(a.Certificate, broker, nil, at(early)), pki.WrongClock, "holds from"},
		"node without a trust":   {server, pki.ClientTLS(nil, broker, nil, at(now)), pki.WrongPin, ""},
	} {
		err, _ := shake(t, c.server, c.client)
		err = pki.Explain(err, broker, now)
		if err == nil || appliance.AsError(err).Reason != c.want || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want reason %q that says %s", name, err, c.want, c.says)
		}
	}
	old := pki.ClientTLS(a.Certificate, broker, nil, at(now))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err, _ := shake(t, server, old); err == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

func selfSigned(t *testing.T, k *ecdsa.PrivateKey, name string) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), Subject: pkix.Name{CommonName: "x"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// PKI-6: our servers check what is revoked, and take no stranger's certificate.
func TestClientCertificates(t *testing.T) {
	a, other := authority(t), authority(t)
	broker, node := pki.BrokerName(a.Mesh), appliance.NewNodeID()
	own := func(by *pki.Authority, usage pki.Usage) *tls.Certificate {
		k := key(t)
		cert, err := pki.Chain(issue(t, by, k, usage, pki.NodeCertName(node)).Raw, by.Certificate.Raw, k)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	good, gone := own(a, pki.Client), own(a, pki.Client)
	revoked := func(serial string) bool { return serial == pki.Serial(gone.Leaf) }
	server := pki.ServerTLS(serving(t, a, broker), a.Certificate, revoked, at(now))
	for name, c := range map[string]struct {
		cert *tls.Certificate
		ok   bool
	}{"none": {nil, true}, "good": {good, true}, "revoked": {gone, false}, "another mesh's": {own(other, pki.Client), false}, "a server's": {own(a, pki.Server), false}} {
		client := pki.ClientTLS(a.Certificate, broker, nil, at(now))
		if c.cert != nil { // offered even where the server's list of authorities would not ask for it
			client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.cert, nil }
		}
		clientErr, serverErr := shake(t, server, client)
		if (serverErr == nil) != c.ok || (clientErr == nil) != c.ok {
			t.Errorf("%s: %v, %v", name, clientErr, serverErr)
		}
	}
	if got := pki.ClientTLS(a.Certificate, broker, good, at(now)); len(got.Certificates) != 1 {
		t.Error("the own certificate is not offered")
	}
}

// PKI-7
func TestVerifyTime(t *testing.T) {
	built, signed := now, now.Add(time.Hour)
	for _, c := range []struct{ clock, built, signed, want time.Time }{
		{time.Unix(0, 0), built, time.Time{}, built},
		{time.Unix(0, 0), built, signed, signed},
		{time.Unix(0, 0), time.Time{}, time.Time{}, time.Unix(0, 0)},
		{now.Add(2 * time.Hour), built, signed, now.Add(2 * time.Hour)},
	} {
		if got := pki.VerifyTime(c.clock, c.built, c.signed); !got.Equal(c.want) {
			t.Errorf("clock %s, built %s, signed %s: %s", c.clock, c.built, c.signed, got)
		}
	}
	future := time.Now().Add(time.Hour)
	if got := pki.Clock(func() time.Time { return future })(); !got.Equal(future) {
		t.Errorf("the clock gives %s before the last signed time %s", got, future)
	}
	if got := pki.Clock(nil)(); time.Since(got) > time.Minute {
		t.Errorf("the clock gives %s", got)
	}
	// A machine that starts in 1970 still gets in.
	a := authority(t)
	broker := pki.BrokerName(a.Mesh)
	client := pki.PinnedTLS(pki.Fingerprint(a.Certificate.Raw), broker, func() time.Time { return pki.VerifyTime(time.Unix(0, 0), now, time.Time{}) })
	if err, _ := shake(t, pki.ServerTLS(serving(t, a, broker), a.Certificate, nil, at(now)), client); err != nil {
		t.Error(err)
	}
}

func TestChainAndPEM(t *testing.T) {
	a, k := authority(t), key(t)
	leaf := issue(t, a, k, pki.Server, "a.internal").Raw
	if _, err := pki.Chain(leaf, a.Certificate.Raw, key(t)); err == nil {
		t.Error("with another key")
	}
	der, err := pki.DecodePEM(pki.EncodePEM(leaf))
	if err != nil || string(der) != string(leaf) {
		t.Errorf("PEM: %v", err)
	}
	if _, err := pki.DecodePEM([]byte("no")); err == nil {
		t.Error("no PEM was read")
	}
	if err := pki.Explain(io.EOF, "x", now); !errors.Is(err, io.EOF) {
		t.Errorf("another error became %v", err)
	}
}

// PKI-1: exactly the key asked about, and exactly the names.
func TestCertifies(t *testing.T) {
	a, k, another := authority(t), key(t), key(t)
	cert := issue(t, a, k, pki.Server, "b.internal", "a.internal").Raw
	for name, c := range map[string]struct {
		der   []byte
		key   *ecdsa.PublicKey
		names []string
		good  bool
	}{
		"it does":        {cert, &k.PublicKey, []string{"a.internal", "b.internal"}, true},
		"another key":    {cert, &another.PublicKey, []string{"a.internal", "b.internal"}, false},
		"a name less":    {cert, &k.PublicKey, []string{"a.internal", "b.internal", "c.internal"}, false},
		"a name more":    {cert, &k.PublicKey, []string{"a.internal"}, false},
		"none":           {nil, &k.PublicKey, nil, false},
		"no bytes of it": {cert[:len(cert)-1], &k.PublicKey, []string{"a.internal", "b.internal"}, false},
	} {
		if err := pki.Certifies(c.der, c.key, c.names); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// SAFE-2
func FuzzCertificates(f *testing.F) {
	a, k := authority(f), key(f)
	request, err := pki.MakeRequest(k)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	f.Add(a.Certificate.Raw)
	f.Add(issue(f, a, k, pki.Server, "a.internal").Raw)
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := pki.ParseRequest(data); err == nil && got == nil {
			t.Error("a request without a key")
		}
		if got, err := pki.ParseAuthority(data); err == nil && (!got.IsCA || string(got.Raw) != string(data)) {
			t.Error("no authority, or other bytes, were read as one")
		}
	})
}
