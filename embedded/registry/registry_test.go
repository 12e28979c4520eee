package registry

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// BLD-6: what a client pushes another pulls by digest, also after a restart; it is listed with what it runs on.
func TestPushAndPull(t *testing.T) {
	s := serve(t, Config{})
	amd, arm := newImage("amd64", []byte("layer of amd64")), newImage("arm64", []byte("layer of arm64"))
	index, indexData := newIndex(amd, arm)
	s.pushImage("web/image", amd)
	s.pushImage("web/image", arm)
	s.push("web/image", ocispec.MediaTypeImageIndex, indexData)
	s.pushImage("mail/image", arm)

	again := serve(t, Config{Dir: s.cfg.Dir})
	for _, s := range []*served{s, again} {
		for what, want := range map[string][]byte{ocispec.MediaTypeImageIndex: indexData, ocispec.MediaTypeImageManifest: arm.manifest,
			ocispec.MediaTypeImageConfig: arm.config, ocispec.MediaTypeImageLayer: arm.layer} {
			if got, err := s.get("web/image", describe(what, want)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %q, %v", what, got, err)
			}
		}
		if s.has("mail/image", index) || !s.has("mail/image", arm.desc) || s.has("none/such", arm.desc) {
			t.Error("a repository has what was pushed to it, and nothing else")
		}
		size := func(i image) int64 { return int64(len(i.config) + len(i.layer) + len(i.manifest)) }
		want := []Artifact{
			{Repository: "mail/image", Digest: arm.desc.Digest, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ocispec.MediaTypeImageConfig,
				Platforms: []string{"linux/arm64"}, Size: size(arm)},
			{Repository: "web/image", Digest: index.Digest, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: ocispec.MediaTypeImageConfig,
				Platforms: []string{"linux/amd64", "linux/arm64"}, Size: size(amd) + size(arm) + int64(len(indexData))},
		}
		got := s.List()
		if d := cmp.Diff(want, got, cmpopts.IgnoreFields(Artifact{}, "Pushed")); d != "" {
			t.Error(d)
		}
		for _, a := range got {
			if time.Since(a.Pushed).Abs() > time.Minute {
				t.Errorf("pushed %s", a.Pushed)
			}
		}
		if found := s.Find(arm.desc.Digest); len(found) != 2 || found[0].Repository != "mail/image" || found[1].Repository != "web/image" {
			t.Errorf("find: %v", found)
		}
	}
}

// BLD-6: tags, deleting, listing and foreign names are refused, in a sentence.
func TestNotOffered(t *testing.T) {
	s := serve(t, Config{})
	i := newImage("amd64", []byte("layer"))
	s.pushImage("web/image", i)
	before := s.files()
	d := string(i.desc.Digest)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v2/web/image/manifests/latest", 400, "UNSUPPORTED"},
		{"HEAD", "/v2/web/image/manifests/latest", 400, ""},
		{"PUT", "/v2/web/image/manifests/latest", 400, "DIGEST_INVALID"},
		{"DELETE", "/v2/web/image/manifests/" + d, 405, "METHOD_NOT_ALLOWED"},
		{"DELETE", "/v2/web/image/blobs/" + d, 405, "METHOD_NOT_ALLOWED"},
		{"GET", "/v2/_catalog", 400, "UNSUPPORTED"},
		{"GET", "/v2/web/image/tags/list", 400, "UNSUPPORTED"},
		{"GET", "/v2/web/manifests/" + d, 400, "NAME_INVALID"},
		{"GET", "/v2/web/image/deep/manifests/" + d, 400, "NAME_INVALID"},
		{"POST", "/v2/web_x/image/blobs/uploads/", 400, "NAME_INVALID"},
		{"GET", "/v2/web/../image/manifests/" + d, 400, "NAME_INVALID"},
		{"GET", "/v2/web/image/blobs/sha512:" + strings.Repeat("a", 128), 400, "DIGEST_INVALID"},
		{"GET", "/v2/web/image/blobs/" + string(digest.FromString("none")), 404, "BLOB_UNKNOWN"},
		{"GET", "/v2/web/image/manifests/" + string(digest.FromString("none")), 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/web/image/blobs/uploads/bm9uZQ", 404, "BLOB_UPLOAD_UNKNOWN"},
		{"GET", "/", 404, "NAME_UNKNOWN"},
	} {
		a := s.ask(c.method, c.path, bytes.NewReader(i.manifest), "Content-Type", ocispec.MediaTypeImageManifest)
		if a.status != c.status || a.code != c.code || c.code != "" && len(a.text) < 8 {
			t.Errorf("%s %s: %s, want %d %s", c.method, c.path, a, c.status, c.code)
		}
	}
	if a := s.ask("POST", "/v2/web/other/blobs/uploads/?mount="+string(describe("", i.layer).Digest)+"&from=web/image", nil); a.status != 202 {
		t.Errorf("mount: %s; an upload begins instead", a)
	}
	for id := range s.uploads {
		s.uploads[id].drop()
	}
	if after := s.files(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// SAFE-1: whoever may not is refused before anything is looked up or kept, with what the hook says.
func TestAuthorize(t *testing.T) {
	var asked []string
	s := serve(t, Config{Authorize: func(r *http.Request, a Action, repo string, d digest.Digest) (int64, error) {
		asked = append(asked, fmt.Sprintf("%d %s %t", a, repo, d != ""))
		switch r.Header.Get("Authorization") {
		case "":
			return 0, Refuse(401, "show a certificate")
		case "gone":
			return 0, Refuse(404, "no such thing for you")
		case "down":
			return 0, Refuse(503, "the controller is not up")
		case "broken":
			return 0, fmt.Errorf("secret detail")
		}
		return 0, Refuse(403, "n2 has no business here")
	}})
	d := string(digest.FromString("x"))
	for _, c := range []struct{ method, path, asks string }{
		{"GET", "/v2/web/image/manifests/" + d, "1 web/image true"},
		{"HEAD", "/v2/web/image/manifests/" + d, "0 web/image true"},
		{"GET", "/v2/web/image/blobs/" + d, "1 web/image true"},
		{"HEAD", "/v2/web/image/blobs/" + d, "0 web/image true"},
		{"POST", "/v2/web/image/blobs/uploads/", "2 web/image false"},
		{"POST", "/v2/web/image/blobs/uploads/?digest=" + d, "2 web/image true"},
		{"PUT", "/v2/web/image/blobs/uploads/bm9uZQ?digest=" + d, "2 web/image false"},
		{"PATCH", "/v2/web/image/blobs/uploads/bm9uZQ", "2 web/image false"},
		{"GET", "/v2/web/image/blobs/uploads/bm9uZQ", "2 web/image false"},
		{"PUT", "/v2/web/image/manifests/" + string(digest.FromString("{}")), "2 web/image true"},
	} {
		for who, want := range map[string]answer{"": {status: 401, code: "UNAUTHORIZED", text: "show a certificate"}, "n2": {status: 403, code: "DENIED", text: "n2 has no business here"},
			"gone": {status: 404, code: "NAME_UNKNOWN", text: "no such thing for you"}, "down": {status: 503, code: "UNAVAILABLE", text: "the controller is not up"},
			"broken": {status: 500, code: "UNKNOWN", text: "it failed inside; the log says where"}} {
			asked = nil
			a := s.ask(c.method, c.path, strings.NewReader("{}"), "Authorization", who)
			if c.method == "HEAD" {
				want.code, want.text = "", ""
			}
			if a.String() != want.String() || !slices.Equal(asked, []string{c.asks}) {
				t.Errorf("%s %s as %q: %s, asked %q", c.method, c.path, who, a, asked)
			}
		}
	}
	if f := s.files(); f != "" {
		t.Errorf("left: %s", f)
	}
	if a := s.ask("GET", "/v2/", nil); a.status != 200 {
		t.Errorf("version check: %s", a)
	}
}

// SAFE-2: every bound has its name, and what goes beyond leaves nothing.
func TestBounds(t *testing.T) {
	s := serve(t, Config{MaxBlob: 1 << 20, MaxOwner: 3 << 20})
	big := func(n int, c string) []byte { return bytes.Repeat([]byte(c), n) }
	s.push("web/a", octets, big(1<<20, "a"))
	s.push("web/b", octets, big(1<<20, "b"))
	before, held := s.files(), s.owners["web"]
	push := func(repo string, data []byte, length bool) answer { // in one request, with or without its length
		body := bytes.NewReader(data)
		path := "/v2/" + repo + "/blobs/uploads/?digest=" + string(digest.FromBytes(data))
		if length {
			return s.ask("POST", path, body)
		}
		return s.ask("POST", path, struct{ *bytes.Buffer }{bytes.NewBuffer(data)})
	}
	inTwo := func(repo string, data []byte) answer {
		a := s.ask("POST", "/v2/"+repo+"/blobs/uploads/", nil)
		return s.ask("PUT", s.url+a.header.Get("Location")+"?digest="+string(digest.FromBytes(data)), struct{ *bytes.Buffer }{bytes.NewBuffer(data)})
	}
	over := big(1<<20+1, "c")
	for name, a := range map[string]answer{"announced": push("mail/a", over, true), "not announced": push("mail/a", over, false), "in two": inTwo("mail/a", over)} {
		if a.status != 413 || a.code != "TOO_LARGE" || !strings.Contains(a.text, "1048576") {
			t.Errorf("a blob that is too large, %s: %s", name, a)
		}
	}
	s.push("web/b", octets, big(1<<19, "d"))
	full, last := s.files(), big(1<<20, "e")
	for name, a := range map[string]answer{"announced": push("web/c", last, true), "not announced": push("web/c", last, false), "in two": inTwo("web/c", last)} {
		if a.status != 413 || a.code != "QUOTA_EXCEEDED" || !strings.Contains(a.text, "web holds") || !strings.Contains(a.text, "3145728") {
			t.Errorf("an owner that is full, %s: %s", name, a)
		}
	}
	if a := push("web/c", big(1<<10, "f"), true); a.status != 201 {
		t.Errorf("what still fits: %s", a)
	}
	if a := push("web/c", big(1<<10, "f"), true); a.status != 201 {
		t.Errorf("the same again, which takes nothing: %s", a)
	}
	s.pass(48 * time.Hour)
	if _, err := s.Collect(func(digest.Digest) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if s.owners["web"] != 0 || s.files() != "" {
		t.Errorf("%d bytes are held after everything was collected (%d, %d files before)\n%s", s.owners["web"], held, len(before)+len(full), s.files())
	}
	if a := push("web/c", last, true); a.status != 201 {
		t.Errorf("room again: %s", a)
	}

	manifest := append([]byte(`{"schemaVersion":2,"annotations":{"x":"`), append(big(maxManifest, "x"), `"}}`...)...)
	a := s.ask("PUT", "/v2/web/a/manifests/"+string(digest.FromBytes(manifest)), bytes.NewReader(manifest), "Content-Type", ocispec.MediaTypeImageManifest)
	if a.status != 413 || a.code != "TOO_LARGE" || !strings.Contains(a.text, "4194304") {
		t.Errorf("a large manifest: %s", a)
	}
	a = s.ask("PUT", "/v2/web/a/manifests/"+string(digest.FromBytes(manifest)), struct{ *bytes.Buffer }{bytes.NewBuffer(manifest)}, "Content-Type", ocispec.MediaTypeImageManifest)
	if a.status != 411 {
		t.Errorf("a manifest of no length: %s", a)
	}
	for range maxUploads {
		if a := s.ask("POST", "/v2/mail/a/blobs/uploads/", nil); a.status != 202 {
			t.Fatalf("upload: %s", a)
		}
	}
	if a := s.ask("POST", "/v2/mail/b/blobs/uploads/", nil); a.status != 429 || !strings.Contains(a.text, "64 uploads") {
		t.Errorf("one upload too many: %s", a)
	}
	if a := s.ask("POST", "/v2/web/b/blobs/uploads/", nil); a.status != 202 {
		t.Errorf("another owner's: %s", a)
	}

	full2 := serve(t, Config{MinFree: 1 << 60})
	if a := full2.ask("POST", "/v2/web/a/blobs/uploads/?digest="+string(digest.FromString("x")), strings.NewReader("x")); a.status != 507 || a.code != "DISK_FULL" || !strings.Contains(a.text, "stay free") {
		t.Errorf("a full disk: %s", a)
	}
	if f := full2.files(); f != "" {
		t.Errorf("left: %s", f)
	}
}

// BLD-6: the hook's limit bounds an owner in place of the registry's own.
func TestLimitOfOnePush(t *testing.T) {
	s := serve(t, Config{Authorize: func(*http.Request, Action, string, digest.Digest) (int64, error) { return 10, nil }})
	s.push("web/a", octets, []byte("0123456789"))
	if a := s.ask("POST", "/v2/web/a/blobs/uploads/?digest="+string(digest.FromString("x")), strings.NewReader("x")); a.code != "QUOTA_EXCEEDED" {
		t.Errorf("%s", a)
	}
}

// A push goes on where it broke off; nobody else's, and not from elsewhere.
func TestResume(t *testing.T) {
	s := serve(t, Config{})
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	d := string(digest.FromBytes(data))
	begun := s.ask("POST", "/v2/web/a/blobs/uploads/", nil)
	at := s.url + begun.header.Get("Location")
	broken, _ := http.NewRequest("PATCH", at, &breaks{bytes.NewReader(data), 500_000})
	broken.ContentLength = int64(len(data))
	if res, err := http.DefaultClient.Do(broken); err == nil {
		t.Fatalf("the broken request ended with %s", res.Status)
	}
	var had int
	var status answer
	for end := time.Now().Add(10 * time.Second); had != 500_000 && time.Now().Before(end); { // the server notices in its own time
		status = s.ask("GET", at, nil)
		fmt.Sscanf(status.header.Get("Range"), "0-%d", &had)
		had++
	}
	if had != 500_000 || status.status != 204 {
		t.Fatalf("after the break: %s, %d bytes", status, had)
	}
	if a := s.ask("GET", strings.Replace(at, "/web/a/", "/web/b/", 1), nil); a.code != "BLOB_UPLOAD_UNKNOWN" {
		t.Errorf("by way of another repository: %s", a)
	}
	for _, from := range []int{0, had - 1, had + 1} {
		a := s.ask("PATCH", at, bytes.NewReader(data[:1]), "Content-Range", fmt.Sprintf("%d-%d", from, from))
		if from == 0 {
			a = s.ask("PATCH", at, bytes.NewReader(data[:2]), "Content-Range", "0-1")
		}
		if a.status != 416 {
			t.Errorf("from %d on: %s", from, a)
		}
	}
	if a := s.ask("PATCH", at, bytes.NewReader(data[had:900_000]), "Content-Range", fmt.Sprintf("%d-%d", had, 899_999)); a.status != 202 {
		t.Fatalf("on: %s", a)
	}
	if a := s.ask("PUT", at+"?digest="+d, bytes.NewReader(data[900_000:])); a.status != 201 {
		t.Fatalf("end: %s", a)
	}
	if got, err := s.get("web/a", describe(octets, data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// What comes with another digest than it says is nowhere.
	before := s.files()
	if a := s.ask("POST", "/v2/web/a/blobs/uploads/?digest="+d, strings.NewReader("other")); a.code != "DIGEST_INVALID" || !strings.Contains(a.text, d) {
		t.Errorf("another digest: %s", a)
	}
	if after := s.files(); after != before || len(s.uploads) != 0 {
		t.Errorf("left behind: %s", after)
	}
}

// breaks is a body whose connection breaks.
type breaks struct {
	*bytes.Reader
	after int
}

func (b *breaks) Read(p []byte) (int, error) {
	if b.after == 0 {
		return 0, fmt.Errorf("cut")
	}
	n, err := b.Reader.Read(p[:min(len(p), b.after)])
	b.after -= n
	return n, err
}

// Uploads that nobody goes on with are dropped, after a day or at the next start; what they held is free again.
func TestAbandonedUploads(t *testing.T) {
	s := serve(t, Config{})
	begin := func() string {
		at := s.url + s.ask("POST", "/v2/web/a/blobs/uploads/", nil).header.Get("Location")
		if a := s.ask("PATCH", at, strings.NewReader("some bytes")); a.status != 202 {
			t.Fatal(a)
		}
		return at
	}
	old := begin()
	s.pass(23 * time.Hour)
	young := begin()
	s.pass(2 * time.Hour)
	none := func(digest.Digest) bool { return false }
	if _, err := s.Collect(none); err != nil {
		t.Fatal(err)
	}
	if a, b := s.ask("GET", old, nil), s.ask("GET", young, nil); a.status != 404 || b.status != 204 || s.owners["web"] != 10 {
		t.Errorf("old: %s, young: %s, %d bytes held", a, b, s.owners["web"])
	}
	again := serve(t, Config{Dir: s.cfg.Dir})
	if f := again.files(); f != "" || again.owners["web"] != 0 {
		t.Errorf("after a restart: %q, %d bytes", f, again.owners["web"])
	}
}

// Two clients push the same blob at once: both are told yes, and it is there once, whole.
func TestSameBlobTwice(t *testing.T) {
	s := serve(t, Config{})
	data := bytes.Repeat([]byte("same"), 1<<18)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, repo := range []string{"web/a", "mail/a"} {
				if err := s.client(repo).Push(t.Context(), describe(octets, data), bytes.NewReader(data)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := s.get("web/a", describe(octets, data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if s.owners["web"] != int64(len(data)) || s.owners["mail"] != int64(len(data)) || len(s.blobs) != 1 || len(s.uploads) != 0 {
		t.Errorf("held: %v, %d blobs, %d uploads", s.owners, len(s.blobs), len(s.uploads))
	}
}

// BLD-6: what a node may have lies beneath the manifests it is allowed, and nothing else does.
func TestBeneath(t *testing.T) {
	s := serve(t, Config{})
	amd, arm, other := newImage("amd64", []byte("amd64's")), newImage("arm64", []byte("arm64's")), newImage("amd64", []byte("another's"))
	index, data := newIndex(amd, arm)
	for _, i := range []image{amd, arm, other} {
		s.pushImage("web/image", i)
	}
	s.push("web/image", ocispec.MediaTypeImageIndex, data)
	of := func(b []byte) digest.Digest { return digest.FromBytes(b) }
	for _, c := range []struct {
		name string
		d    digest.Digest
		root []digest.Digest
		want bool
	}{
		{"itself", index.Digest, []digest.Digest{index.Digest}, true},
		{"a manifest of an index", arm.desc.Digest, []digest.Digest{index.Digest}, true},
		{"a layer of a manifest of an index", of(arm.layer), []digest.Digest{index.Digest}, true},
		{"a configuration", of(amd.config), []digest.Digest{amd.desc.Digest}, true},
		{"of the second root", of(amd.layer), []digest.Digest{other.desc.Digest, amd.desc.Digest}, true},
		{"the index above", index.Digest, []digest.Digest{amd.desc.Digest}, false},
		{"another platform's layer", of(arm.layer), []digest.Digest{amd.desc.Digest}, false},
		{"another image's layer", of(other.layer), []digest.Digest{index.Digest}, false},
		{"of a layer", of(amd.config), []digest.Digest{of(amd.layer)}, false},
		{"of nothing", of(amd.layer), nil, false},
		{"of an unknown one", of(amd.layer), []digest.Digest{of([]byte("none"))}, false},
	} {
		if got := s.Beneath(c.d, c.root); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// SAFE-2: a manifest is one, and everything it names is there; nothing else is kept.
func TestManifestsThatAreNone(t *testing.T) {
	s := serve(t, Config{})
	i := newImage("amd64", []byte("layer"))
	s.pushImage("web/image", i)
	s.pushImage("mail/image", newImage("amd64", []byte("mail's")))
	index, indexData := newIndex(i)
	s.push("web/image", ocispec.MediaTypeImageIndex, indexData)
	before := s.files()
	config := describe(ocispec.MediaTypeImageConfig, i.config)
	layer := describe(ocispec.MediaTypeImageLayer, i.layer)
	long := layer
	long.Size++
	none := describe(ocispec.MediaTypeImageLayer, []byte("none"))
	mails := describe(ocispec.MediaTypeImageLayer, []byte("mail's"))
	odd := layer
	odd.Digest = "sha256:../../../etc/passwd"
	negative := layer
	negative.Size = -1
	type object = map[string]any
	layers := func(l ...ocispec.Descriptor) object { return object{"schemaVersion": 2, "config": config, "layers": l} }
	manifests := func(m ...ocispec.Descriptor) object { return object{"schemaVersion": 2, "manifests": m} }
	for name, c := range map[string]struct {
		body      any
		mediaType string
		code      string
	}{
		"not JSON":                {json.RawMessage(`{"schemaVersion":`), ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"of no media type":        {layers(layer), "", "MANIFEST_INVALID"},
		"of a foreign media type": {layers(layer), "text/html", "MANIFEST_INVALID"},
		"of schema 1":             {object{"schemaVersion": 1, "config": config}, ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"sent as an index":        {layers(layer), ocispec.MediaTypeImageIndex, "MANIFEST_INVALID"},
		"an index sent as one":    {manifests(i.desc), ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"says another type":       {object{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageIndex, "config": config}, ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"both at once":            {object{"schemaVersion": 2, "config": config, "manifests": []ocispec.Descriptor{i.desc}}, ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"neither":                 {object{"schemaVersion": 2}, ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"a layer that is not":     {layers(none), ocispec.MediaTypeImageManifest, "MANIFEST_BLOB_UNKNOWN"},
		"another's layer":         {layers(mails), ocispec.MediaTypeImageManifest, "MANIFEST_BLOB_UNKNOWN"},
		"a size that is not":      {layers(long), ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"a size below zero":       {layers(negative), ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"a digest that is none":   {layers(odd), ocispec.MediaTypeImageManifest, "MANIFEST_INVALID"},
		"an index of a blob":      {manifests(layer), ocispec.MediaTypeImageIndex, "MANIFEST_BLOB_UNKNOWN"},
		"an index of an index":    {manifests(index), ocispec.MediaTypeImageIndex, "MANIFEST_INVALID"},
		"too many":                {json.RawMessage(`{"schemaVersion":2,"manifests":[` + strings.Repeat("{},", maxObjects) + `{}]}`), ocispec.MediaTypeImageIndex, "MANIFEST_INVALID"},
	} {
		data, err := json.Marshal(c.body)
		if err != nil {
			data = c.body.(json.RawMessage)
		}
		a := s.ask("PUT", "/v2/web/image/manifests/"+string(digest.FromBytes(data)), bytes.NewReader(data), "Content-Type", c.mediaType)
		if a.code != c.code || len(a.text) < 20 {
			t.Errorf("%s: %s, want %s", name, a, c.code)
		}
	}
	if a := s.ask("PUT", "/v2/web/image/manifests/"+string(digest.FromString("other")), bytes.NewReader(i.manifest), "Content-Type", ocispec.MediaTypeImageManifest); a.code != "DIGEST_INVALID" {
		t.Errorf("another digest: %s", a)
	}
	if after := s.files(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// SAFE-2: no bytes make a manifest that panics, or names what is no digest.
func FuzzManifest(f *testing.F) {
	i := newImage("amd64", []byte("layer"))
	_, index := newIndex(i)
	f.Add(i.manifest)
	f.Add(index)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:x"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseManifest(data)
		if err != nil {
			return
		}
		for _, c := range m.children {
			if checkDigest(c.digest) != nil || c.size < 0 {
				t.Errorf("names %q with %d bytes", c.digest, c.size)
			}
		}
	})
}
