package appliancetest_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/certificates"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// secured is a module with a certificate; its process reloads when that changes.
const secured = `{
  "module": "site", "description": "for tests",
  "seats": [{"name": "front", "scope": "node"}], "claims": ["front"],
  "certificates": {"web": {"names": ["NAMES"], "authority": true}},
  "resources": [
    {"kind": "user", "name": "site"},
    {"kind": "process", "name": "web", "user": "site", "command": ["site", "${cert:web:cert}", "${cert:web:key}"], "on-change": {"certificate/web": "reload"}}
  ]
}`

const siteFolder = "/var/lib/mesh/modules/site/certificates/web"

// certified waits until a node has a certificate of the mesh for its key, with these names, and gives it.
func certified(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node, names ...string) *x509.Certificate {
	t.Helper()
	var cert *x509.Certificate
	m.Wait("a certificate on "+string(n.Name), func() string {
		e, ok := n.Machine.Path(siteFolder + "/cert.pem")
		if !ok {
			return "there is none"
		}
		der := must(pki.DecodePEM([]byte(e.Content)))(t)
		if err := pki.Certifies(der, &n.Machine.Key(siteFolder).PublicKey, names); err != nil {
			return err.Error()
		}
		cert = must(x509.ParseCertificate(der))(t)
		return ""
	})
	roots := x509.NewCertPool()
	roots.AddCert(m.Authority.Certificate)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := cert.Verify(x509.VerifyOptions{DNSName: names[0], Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	return cert
}

func registerSite(m *appliancetest.Mesh, names ...string) {
	m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: []byte(strings.ReplaceAll(secured, "NAMES", strings.Join(names, `", "`)))}, nil)
}

// issued is how many certificates were ever issued to instances.
func issued(t *testing.T, m *appliancetest.Mesh) int {
	t.Helper()
	db := m.Database.SQL(t)
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM certificate`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// PKI-3, PKI-1, DEC-11: two nodes make a key each and are given a certificate for exactly that, without anybody pushing twice; what runs
// with it waits until then. Other names need no other key, another key is certified anew, and the process acts on each. Started again,
// neither side issues anything more.
func TestCertificates(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	registerSite(m, "site.internal")
	for _, node := range []appliance.NodeName{"n1", "n2"} {
		m.Must(operators.ModuleAssign, operators.AssignModule{Module: "site", Node: node}, nil)
	}
	m.Push()
	m.Current()
	first, other := certified(t, m, n1, "site.internal", "site.n1.internal"), certified(t, m, n2, "site.internal", "site.n2.internal")
	if first.PublicKey.(*ecdsa.PublicKey).Equal(other.PublicKey) || first.IsCA {
		t.Error("one key for two nodes, or an authority")
	}
	want := []string{"useradd --system --home-dir /nonexistent site", "install -d -o root -g root -m 0755 /var/lib/mesh/modules/site",
		"openssl req -new -keyout " + siteFolder + "/key.pem # site", "openssl x509 -out " + siteFolder + "/cert.pem"}
	did := slices.DeleteFunc(n1.Machine.Commands(), func(c string) bool {
		return !strings.Contains(c, "site") || strings.Contains(c, "hosts")
	})
	if len(did) != 5 || !strings.HasPrefix(did[4], "systemctl start site-web") {
		t.Errorf("n1 did %q", did)
	} else if d := cmp.Diff(want, did[:4]); d != "" {
		t.Error("n1 (-want +got):\n" + d)
	}
	reloaded := func(n *appliancetest.Node) {
		t.Helper()
		m.Wait("the process takes it up", func() string {
			if slices.Contains(n.Machine.Commands(), "systemctl reload site-web") {
				return ""
			}
			return "it did not"
		})
	}

	registerSite(m, "site.internal", "front.internal")
	m.Push("n1")
	renamed := certified(t, m, n1, "front.internal", "site.internal", "site.n1.internal")
	if !renamed.PublicKey.(*ecdsa.PublicKey).Equal(first.PublicKey) {
		t.Error("another name, another key")
	}
	reloaded(n1)
	m.Current("n1")
	if s := m.Node("n1"); s.Drift != nil {
		t.Errorf("a change is told as drift: %+v", s.Drift)
	}

	n1.Machine.LoseKey(siteFolder)
	m.Must(operators.NodeCheck, operators.CheckNodes{Nodes: []appliance.NodeName{"n1"}}, nil)
	m.Wait("there is another key", func() string {
		if n1.Machine.Key(siteFolder) == nil {
			return "there is none"
		}
		return ""
	})
	again := certified(t, m, n1, "front.internal", "site.internal", "site.n1.internal")
	if again.PublicKey.(*ecdsa.PublicKey).Equal(renamed.PublicKey) {
		t.Error("the lost key is certified still")
	}
	reloaded(n1)
	m.Current()

	n := issued(t, m)
	n1.Restart()
	n2.Restart()
	m.StopController()
	m.StartController()
	m.Current()
	for _, node := range []*appliancetest.Node{n1, n2, m.Hub} {
		node.Stop()
	}
	still(t, m)
	if now := issued(t, m); n != 4 || now != n {
		t.Errorf("%d were issued, after a restart %d; want 4", n, now)
	}

	n1.Start()
	m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "site", Node: "n1"}, nil)
	m.Push("n1")
	m.Current("n1")
	if _, ok := n1.Machine.Path(siteFolder + "/cert.pem"); ok || n1.Machine.Key(siteFolder) != nil {
		t.Error("key and certificate stay behind")
	}
	m.Wait("it asks for nothing more", func() string {
		all := must(m.Store.CertificateRequests(t.Context()))(t)
		return count(len(slices.DeleteFunc(all, func(r certificates.Request) bool { return r.Node != n1.ID })), 0)
	})
}

// PKI-3, SAFE-5: what was asked while no controller heard, or recorded by one that was killed before it signed, is signed by the next.
func TestCertificatesAfterAKill(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	registerSite(m, "site.internal")
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "site", Node: "n1"}, nil)
	n.Stop()
	m.Push()
	m.StopController()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	asks := []wire.CertificateRequest{{Instance: "site", Name: "web", Request: must(pki.MakeRequest(key))(t)}}
	if _, err := m.Store.RecordReport(t.Context(), store.Speaker{Node: n.ID, Identity: n.Keys.Identity.Public().(ed25519.PublicKey)}, sequence(t, n)+1, time.Now(), wire.Report{Facts: &wire.Facts{Requests: &asks}}, false); err != nil {
		t.Fatal(err)
	}
	m.StartController()
	all := must(m.Store.Certificates(t.Context()))(t)
	if len(all) != 1 || pki.Certifies(all[0].DER, &key.PublicKey, []string{"site.internal", "site.n1.internal"}) != nil {
		t.Errorf("issued: %+v", all)
	}
}

// PKI-3, PKI-5, SAFE-1: a node that asks for what its approved plan does not name, or with what is no request, is given nothing.
func TestCertificatesOfOthers(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.AddNode("n1"), m.AddNode("n2")
	registerSite(m, "site.internal")
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "site", Node: "n1"}, nil)
	m.Push()
	m.Current()
	certified(t, m, n1, "site.internal", "site.n1.internal")
	for _, node := range []*appliancetest.Node{n1, n2, m.Hub} {
		node.Stop()
	}
	still(t, m)
	request := must(pki.MakeRequest(must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)))(t)
	spoilt := slices.Clone(request)
	spoilt[len(spoilt)-1] ^= 1
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "site", Node: "n2", As: "mine"}, nil) // recorded, not approved
	before := issued(t, m)
	report := func(asks ...wire.CertificateRequest) {
		data := say(t, m, n2, wire.KindReport, sequence(t, n2)+uint64(time.Now().Unix()), wire.Report{Version: wire.Version, Facts: &wire.Facts{Requests: &asks}})
		stored(t, m, n2.Connect(), wire.ReportSubject(n2.ID), data)
		m.Wait("it is recorded", func() string {
			all := must(m.Store.CertificateRequests(t.Context()))(t)
			return count(len(slices.DeleteFunc(all, func(r certificates.Request) bool { return r.Node != n2.ID })), len(asks))
		})
	}
	report(wire.CertificateRequest{Instance: "site", Name: "web", Request: request}, wire.CertificateRequest{Instance: "mine", Name: "web", Request: request},
		wire.CertificateRequest{Instance: "mesh-network", Name: "web", Request: request}, wire.CertificateRequest{Instance: "hub", Name: "web", Request: request})
	still(t, m)
	if n := issued(t, m); n != before {
		t.Errorf("%d were issued", n-before)
	}
	m.Push("n2")
	m.Wait("what is approved now is signed", func() string { return count(issued(t, m), before+1) })
	report(wire.CertificateRequest{Instance: "mine", Name: "web", Request: spoilt})
	m.Wait("it is said that this is no request", func() string { return count(min(1, m.Log.Count("certificate not issued", "mine")), 1) })
	still(t, m)
	if n := issued(t, m); n != before+1 {
		t.Errorf("%d were issued", n-before)
	}
}
