package appliancetest_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/artifacts"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
)

// storeClient is a client of the mesh's artifact store with a certificate, or without.
func storeClient(m *appliancetest.Mesh, own *tls.Certificate) artifacts.Client {
	return artifacts.Client{Addresses: []string{fmt.Sprintf("127.0.0.1:%d", m.Artifacts.Port())}, TLS: pki.ClientTLS(m.Authority.Certificate, pki.ArtifactsName(m.ID), own, time.Now)}
}

// pushFiles pushes a tree with one file, as an operator does.
func pushFiles(t *testing.T, m *appliancetest.Mesh, module appliance.ModuleName, artifact, content string) artifacts.Reference {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	s := must(artifacts.PackFiles(dir, []string{"."}))(t)
	defer s.Close()
	var granted operators.GrantedPush
	m.Must(operators.ArtifactGrant, operators.GrantPush{Module: module, Artifact: artifact}, &granted)
	c := storeClient(m, nil)
	c.Grant = granted.Grant
	return must(c.Push(t.Context(), module, artifact, s))(t)
}

// withTree is a module that is made of one tree.
func withTree(module appliance.ModuleName, d appliance.Digest) operators.RegisterModule {
	return operators.RegisterModule{Manifest: fmt.Appendf(nil, `{"module": %q, "description": "for tests", "artifacts": {"tree": {"kind": "files", "digest": %q}}}`, module, d)}
}

// certificateOf gives a node's own.
func certificateOf(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node) *tls.Certificate {
	t.Helper()
	nodes := must(m.Store.Nodes(t.Context()))(t)
	for _, r := range nodes {
		if r.ID == n.ID {
			return must(pki.Chain(r.Certificate, m.Authority.Certificate.Raw, n.Keys.TLS))(t)
		}
	}
	t.Fatal("no such node")
	return nil
}

// shows is a certificate to show that the mesh's authority, or another, gives to a fresh key.
func shows(t *testing.T, a *pki.Authority, names ...string) *tls.Certificate {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := must(a.Issue(pki.Request{Public: &key.PublicKey, Names: names, Usage: pki.Client | pki.Server, Now: time.Now()}))(t)
	return must(pki.Chain(der, a.Certificate.Raw, key))(t)
}

// BLD-6, SAFE-1: with real certificates on real connections: a node gets what its present declaration names and what lies beneath, also
// while the controller is away; another node, a stranger, a foreign or former certificate, a grant get nothing.
func TestWhoMayPull(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n1, n2 := m.Enrol("n1"), m.Enrol("n2")
	web, mail := pushFiles(t, m, "web", "tree", "web's"), pushFiles(t, m, "mail", "tree", "mail's")
	m.Must(operators.ModuleRegister, withTree("web", web.Digest), nil)
	m.Must(operators.ModuleRegister, withTree("mail", mail.Digest), nil)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "web", Node: "n1"}, nil)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "mail", Node: "n2"}, nil)
	m.Must(operators.PlanPush, operators.Scope{}, nil)

	var granted operators.GrantedPush
	m.Must(operators.ArtifactGrant, operators.GrantPush{Module: "web"}, &granted)
	foreignKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	foreignID := appliance.NewMeshID()
	foreign := must(pki.LoadAuthority(foreignID, must(pki.NewAuthority(foreignID, foreignKey, time.Now()))(t), foreignKey))(t)
	layer := layerOf(t, m, certificateOf(t, m, n1), web)
	kept := func(own *tls.Certificate) bool { // whether a connection may be used again
		t.Helper()
		c := http.Client{Transport: &http.Transport{TLSClientConfig: storeClient(m, own).TLS}}
		defer c.CloseIdleConnections()
		res := must(c.Get(fmt.Sprintf("https://127.0.0.1:%d/v2/", m.Artifacts.Port())))(t)
		res.Body.Close()
		return !res.Close && res.StatusCode == http.StatusOK
	}
	get := func(own *tls.Certificate, grant, path string) (int, string) {
		t.Helper()
		config := storeClient(m, nil).TLS
		if own != nil { // whatever authorities the server says it knows
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }
		}
		c := http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		req := must(http.NewRequest(http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/v2/%s", m.Artifacts.Port(), path), nil))(t)
		if grant != "" {
			req.Header.Set("Authorization", "Bearer "+grant)
		}
		res, err := c.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer res.Body.Close()
		return res.StatusCode, string(must(io.ReadAll(res.Body))(t))
	}
	ask := func(when string, table []row) {
		t.Helper()
		for _, r := range table {
			status, said := get(r.own, r.grant, r.path)
			if status != r.status || !strings.Contains(said, r.says) {
				t.Errorf("%s: %s asks %s: %d %.200s, want %d %s", when, r.who, r.path, status, said, r.status, r.says)
			}
		}
	}
	manifest := func(r artifacts.Reference) string { return r.Repository() + "/manifests/" + string(r.Digest) }
	blob := web.Repository() + "/blobs/" + layer
	own1, own2 := certificateOf(t, m, n1), certificateOf(t, m, n2)
	table := []row{
		{"n1", own1, "", manifest(web), 200, "files.v1"},
		{"n1", own1, "", blob, 200, ""},
		{"n1", own1, "", manifest(mail), 403, "names nothing with"},
		{"n2", own2, "", manifest(mail), 200, "files.v1"},
		{"n2", own2, "", manifest(web), 403, "names nothing with"},
		{"n2", own2, "", blob, 403, "names nothing with"},
		{"n2 by way of its own repository", own2, "", mail.Repository() + "/blobs/" + layer, 403, "names nothing with"},
		{"the hub", certificateOf(t, m, m.Hub), "", manifest(web), 403, "names nothing with"},
		{"a stranger", nil, "", manifest(web), 401, "needs the certificate of a node"},
		{"a stranger", nil, "", blob, 401, "needs the certificate of a node"},
		{"a stranger with a grant", nil, granted.Grant, manifest(web), 401, "needs the certificate of a node"},
		{"a removed node", shows(t, m.Authority, pki.NodeCertName(appliance.NewNodeID())), "", manifest(web), 403, "is not in the mesh"},
		{"n1 under another key", shows(t, m.Authority, pki.NodeCertName(n1.ID)), "", manifest(web), 403, "not under this key"},
		{"a module", shows(t, m.Authority, "web.internal"), "", manifest(web), 401, "needs the certificate of a node"},
		{"n1 of another mesh", shows(t, foreign, pki.NodeCertName(n1.ID)), "", manifest(web), 0, "tls"},
	}
	ask("at first", table)
	if !kept(own1) || kept(nil) {
		t.Errorf("connections that are kept: a node's %t, a stranger's %t", kept(own1), kept(nil))
	}
	if err := storeClient(m, own1).PullFiles(t.Context(), web, "linux/amd64", filepath.Join(t.TempDir(), "tree")); err != nil {
		t.Error(err)
	}
	if err := storeClient(m, own2).PullFiles(t.Context(), web, "linux/amd64", filepath.Join(t.TempDir(), "tree")); appliance.KindOf(err) != appliance.Denied || !strings.Contains(err.Error(), "names nothing with") {
		t.Errorf("n2 pulls web: %v", err)
	}
	m.StopController()
	ask("while the controller is away", table)
	m.StartController()
	ask("once it is back", table)
	m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "web", Node: "n1"}, nil)
	ask("before the push", table)
	m.Must(operators.PlanPush, operators.Scope{}, nil)
	ask("after it", []row{{"n1", own1, "", manifest(web), 403, "names nothing with"}, {"n1", own1, "", blob, 403, "names nothing with"}, {"n2", own2, "", manifest(mail), 200, ""}})
}

// row is one request, and what comes of it.
type row struct {
	who    string
	own    *tls.Certificate
	grant  string
	path   string
	status int
	says   string
}

func layerOf(t *testing.T, m *appliancetest.Mesh, own *tls.Certificate, ref artifacts.Reference) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{TLSClientConfig: storeClient(m, own).TLS, DisableKeepAlives: true}}
	res := must(c.Get(fmt.Sprintf("https://127.0.0.1:%d/v2/%s/manifests/%s", m.Artifacts.Port(), ref.Repository(), ref.Digest)))(t)
	defer res.Body.Close()
	var manifest ocispec.Manifest
	if err := json.NewDecoder(res.Body).Decode(&manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatalf("%s: %v", res.Status, err)
	}
	return string(manifest.Layers[0].Digest)
}

// BLD-6, OP-2: leave to push is given for one module or artifact and a while, is audited, and is no leave for anything else.
func TestGrants(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	var granted operators.GrantedPush
	m.Must(operators.ArtifactGrant, operators.GrantPush{Module: "web", Artifact: "tree", MaxBytes: 500}, &granted)
	if left := time.Until(granted.Expires); left < 10*time.Minute || left > 15*time.Minute || granted.MaxBytes != 500 || granted.Port != m.Artifacts.Port() {
		t.Errorf("granted %+v", granted)
	}
	var audit []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{Limit: 1}, &audit)
	if len(audit) != 1 || audit[0].What != "artifact grant" || audit[0].Subject != "web/tree" || audit[0].Who != "operator admin" || strings.Contains(string(audit[0].After), granted.Grant) {
		t.Errorf("audited %+v", audit)
	}
	for name, ask := range map[string]operators.GrantPush{
		"no module": {}, "no name": {Module: "../web"}, "a reserved one": {Module: "mesh"}, "no artifact's name": {Module: "web", Artifact: "a/b"},
		"less than nothing": {Module: "web", MaxBytes: -1}, "too much": {Module: "web", MaxBytes: 1 << 50},
	} {
		if err := m.Call(operators.ArtifactGrant, ask, nil); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := storeClient(m, nil)
	c.Grant = granted.Grant
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	small := must(artifacts.PackFiles(dir, []string{"."}))(t)
	defer small.Close()
	for repo, kind := range map[string]appliance.Kind{"web/other": appliance.Denied, "mail/tree": appliance.Denied} {
		module, artifact, _ := strings.Cut(repo, "/")
		if _, err := c.Push(t.Context(), appliance.ModuleName(module), artifact, small); appliance.KindOf(err) != kind {
			t.Errorf("%s: %v", repo, err)
		}
	}
	noise := make([]byte, 1000)
	rand.Read(noise)
	if err := os.WriteFile(filepath.Join(dir, "file"), noise, 0o600); err != nil {
		t.Fatal(err)
	}
	large := must(artifacts.PackFiles(dir, []string{"."}))(t)
	defer large.Close()
	if _, err := c.Push(t.Context(), "web", "tree", large); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), "may hold 500") {
		t.Errorf("more than was granted: %v", err)
	}
	var all operators.Artifacts
	m.Must(operators.ArtifactList, operators.ListArtifacts{}, &all)
	if len(all.Artifacts) != 0 {
		t.Errorf("what was refused is there: %+v", all)
	}
}

// BLD-6: an artifact stays while the registered module, a node's approved plan, or one of the ten before it names it; list and show say
// what is there and who names it; what is damaged is a warning until it is pushed again.
func TestArtifactsAreKept(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	m.Enrol("n1")
	var refs []artifacts.Reference
	for i := range 14 {
		refs = append(refs, pushFiles(t, m, "web", "tree", fmt.Sprint(i)))
	}
	m.Must(operators.ModuleRegister, withTree("web", refs[0].Digest), nil)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "web", Node: "n1"}, nil)
	for _, ref := range refs[:13] {
		m.Must(operators.ModuleRegister, withTree("web", ref.Digest), nil)
		m.Must(operators.PlanPush, operators.Scope{}, nil)
	}
	m.Must(operators.ModuleRegister, withTree("web", refs[13].Digest), nil) // recorded, and not pushed
	pushFiles(t, m, "web", "tree", "nobody's")
	pushFiles(t, m, "other", "tree", "nobody's")

	m.StopController()
	m.Collect = 20 * time.Millisecond
	m.StartController()
	digests := func(refs []artifacts.Reference) (out []string) {
		for _, r := range refs {
			out = append(out, r.String())
		}
		return out
	}
	listed := func(module appliance.ModuleName) (out []string) {
		var all operators.Artifacts
		m.Must(operators.ArtifactList, operators.ListArtifacts{Module: module}, &all)
		for _, a := range all.Artifacts {
			out = append(out, a.Reference)
			if a.Kind != "files" || a.Size < 300 || time.Since(a.Pushed).Abs() > time.Hour {
				t.Errorf("listed %+v", a)
			}
		}
		return out
	}
	want := digests(refs[2:]) // eleven plans, and the module as it is registered now
	m.Wait("what nobody names is collected", func() string { return cmp.Diff(want, listed("")) })
	if got := listed("other"); got != nil {
		t.Errorf("listed of another module: %v", got)
	}
	var shown operators.ShownArtifact
	m.Must(operators.ArtifactShow, operators.ShowArtifact{Digest: refs[12].Digest}, &shown)
	if len(shown.Stored) != 1 || shown.Stored[0].Reference != refs[12].String() || !slices.Equal(shown.Nodes, []appliance.NodeName{"n1"}) || len(shown.Modules) != 0 {
		t.Errorf("shown %+v", shown)
	}
	m.Must(operators.ArtifactShow, operators.ShowArtifact{Digest: refs[13].Digest}, &shown)
	if !slices.Equal(shown.Modules, []appliance.ModuleName{"web"}) || len(shown.Nodes) != 0 {
		t.Errorf("shown %+v", shown)
	}
	if err := m.Call(operators.ArtifactShow, operators.ShowArtifact{Digest: refs[0].Digest}, nil); appliance.KindOf(err) != appliance.NotFound || appliance.AsError(err).Next == "" {
		t.Errorf("what was collected: %v", err)
	}

	// A bit flips on the disk.
	m.StopController()
	m.Scrub = 20 * time.Millisecond
	m.StartController()
	path := filepath.Join(m.ArtifactsDir, "blobs", "sha256", digest.Digest(refs[13].Digest).Encoded())
	data := must(os.ReadFile(path))(t)
	if err := os.WriteFile(path, bytes.Replace(data, []byte("mesh"), []byte("mash"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := func() string {
		for _, w := range m.Node("hub").Warnings {
			if w.Code == "artifact-damaged" && strings.Contains(w.Text, refs[13].Digest.Short()) && strings.Contains(w.Text, "web/tree") {
				return ""
			}
		}
		return "no warning"
	}
	m.Wait("the damage is told", damaged)
	m.Must(operators.ArtifactShow, operators.ShowArtifact{Digest: refs[13].Digest}, &shown)
	if len(shown.Stored) != 1 || !slices.Equal(shown.Stored[0].Damaged, []appliance.Digest{refs[13].Digest}) {
		t.Errorf("shown %+v", shown)
	}
	pushFiles(t, m, "web", "tree", "13")
	if damaged() == "" {
		t.Error("still damaged after it was pushed again")
	}
}
