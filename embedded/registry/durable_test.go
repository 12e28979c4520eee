package registry

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestMain serves a registry from a folder instead, for tests that kill it.
func TestMain(m *testing.M) {
	dir := os.Getenv("REGISTRY_TEST_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	r, err := Open(Config{Dir: dir, Authorize: allowAll, MinFree: 1})
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("http://" + l.Addr().String())
	panic(http.Serve(l, r.Handler()))
}

// SAFE-5: killed in the middle of pushes, again and again, the registry has everything it acknowledged, and no rest of what it did not.
func TestKilledInTheMiddleOfPushes(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	acknowledged := map[string]image{}
	for round := range 3 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "REGISTRY_TEST_DIR="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		url, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		s := &served{t: t, url: strings.TrimSpace(url)}
		var wg sync.WaitGroup
		var done atomic.Int32
		for worker := range 4 {
			wg.Go(func() {
				for n := 0; ; n++ {
					layer := make([]byte, 200_000)
					rand.Read(layer)
					i, repo := newImage("amd64", layer), fmt.Sprintf("m%d/r%d-%d", worker, round, n)
					for what, data := range map[string][]byte{ocispec.MediaTypeImageLayer: i.layer, ocispec.MediaTypeImageConfig: i.config} {
						if s.client(repo).Push(t.Context(), describe(what, data), bytes.NewReader(data)) != nil {
							return
						}
					}
					if s.client(repo).Push(t.Context(), i.desc, bytes.NewReader(i.manifest)) != nil {
						return
					}
					mu.Lock()
					acknowledged[repo] = i
					mu.Unlock()
					if done.Add(1) == 12 {
						child.Process.Kill() // the others are in the middle of theirs
					}
				}
			})
		}
		wg.Wait()
		_ = child.Wait()
	}
	if len(acknowledged) < 36 {
		t.Errorf("only %d pushes were acknowledged", len(acknowledged))
	}
	s := serve(t, Config{Dir: dir})
	for repo, i := range acknowledged {
		for what, want := range map[string][]byte{ocispec.MediaTypeImageLayer: i.layer, ocispec.MediaTypeImageConfig: i.config, ocispec.MediaTypeImageManifest: i.manifest} {
			if got, err := s.get(repo, describe(what, want)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s of %s: %d bytes, %v", what, repo, len(got), err)
			}
		}
	}
	if strings.Contains(s.files(), "/uploads/") {
		t.Errorf("rests of uploads: %s", s.files())
	}
	if damaged, err := s.Scrub(t.Context()); err != nil || len(damaged) > 0 {
		t.Errorf("damaged: %v, %v", damaged, err)
	}
	s.pass(48 * time.Hour)
	collected, err := s.Collect(func(d digest.Digest) bool {
		return slices.ContainsFunc(slices.Collect(func(yield func(image) bool) {
			for _, i := range acknowledged {
				if !yield(i) {
					return
				}
			}
		}), func(i image) bool { return i.desc.Digest == d })
	})
	if err != nil || collected.Manifests > 12 || len(s.List()) != len(acknowledged) {
		t.Errorf("collected %+v, %v; %d artifacts for %d pushes", collected, err, len(s.List()), len(acknowledged))
	}
}

// BLD-6: a flipped bit is found and named with who has it; what is damaged is an error and never content; pushed again it is good.
func TestScrubFindsDamage(t *testing.T) {
	s := serve(t, Config{Scrub: 1 << 30})
	i, other := newImage("amd64", bytes.Repeat([]byte("layer "), 100_000)), newImage("arm64", []byte("other"))
	s.pushImage("web/image", i)
	s.pushImage("mail/image", i)
	s.pushImage("web/image", other)
	if damaged, err := s.Scrub(t.Context()); err != nil || damaged != nil {
		t.Fatalf("%v, %v", damaged, err)
	}
	layer, config := describe(ocispec.MediaTypeImageLayer, i.layer), describe(ocispec.MediaTypeImageConfig, other.config)
	s.spoil(layer.Digest)
	s.spoil(config.Digest)
	s.spoil(other.desc.Digest)
	want := []Damaged{{layer.Digest, []string{"mail/image", "web/image"}}, {config.Digest, []string{"web/image"}}, {other.desc.Digest, []string{"web/image"}}}
	slices.SortFunc(want, func(a, b Damaged) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	got, err := s.Scrub(t.Context())
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Fatalf("%v\n%s", err, d)
	}
	again := serve(t, Config{Dir: s.cfg.Dir}) // it is known after a restart, too
	if d := cmp.Diff(want, again.Damaged()); d != "" {
		t.Error(d)
	}
	for _, d := range []ocispec.Descriptor{layer, config, other.desc} {
		if _, err := s.get("web/image", d); err == nil || s.has("web/image", d) {
			t.Errorf("%s is given out: %v", d.MediaType, err)
		}
	}
	if a := s.ask("GET", "/v2/mail/image/blobs/"+string(layer.Digest), nil); a.status != 404 || !strings.Contains(a.text, "is damaged") || !strings.Contains(a.text, "push it again") {
		t.Errorf("%s", a)
	}
	if found := s.Find(i.desc.Digest); len(found) != 2 || !slices.Equal(found[0].Damaged, []digest.Digest{layer.Digest}) {
		t.Errorf("find: %v", found)
	}
	s.pushImage("web/image", i)
	s.pushImage("web/image", other)
	if damaged, err := s.Scrub(t.Context()); err != nil || damaged != nil || strings.Contains(s.files(), "/damaged/") {
		t.Errorf("after they were pushed again: %v, %v", damaged, err)
	}
	if got, err := s.get("mail/image", layer); err != nil || !bytes.Equal(got, i.layer) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// BLD-6: damage that no scrub has found yet is found while it is read, before its last bytes are given.
func TestDamageFoundWhileReading(t *testing.T) {
	s := serve(t, Config{})
	i := newImage("amd64", bytes.Repeat([]byte("layer "), 100_000))
	s.pushImage("web/image", i)
	other := newImage("arm64", []byte("other"))
	s.pushImage("web/image", other)
	layer := describe(ocispec.MediaTypeImageLayer, i.layer)
	s.spoil(layer.Digest)
	res, err := http.Get(s.url + "/v2/web/image/blobs/" + string(layer.Digest))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err == nil || body.Len() >= len(i.layer) {
		t.Errorf("all %d bytes came, %v", body.Len(), err)
	}
	if damaged := s.Damaged(); len(damaged) != 1 || damaged[0].Digest != layer.Digest {
		t.Errorf("damaged: %v", damaged)
	}
	s.spoil(i.desc.Digest)
	if a := s.ask("GET", "/v2/web/image/manifests/"+string(i.desc.Digest), nil); a.status == 200 {
		t.Errorf("manifest: %s", a)
	}
	if err := os.Remove(s.layout.content(digest.FromBytes(other.layer))); err != nil {
		t.Fatal(err)
	}
	if a := s.ask("GET", "/v2/web/image/blobs/"+string(digest.FromBytes(other.layer)), nil); a.status != 404 {
		t.Errorf("what is gone: %s", a)
	}
	if err := os.Truncate(s.layout.content(digest.FromBytes(i.config)), 3); err != nil {
		t.Fatal(err)
	}
	if a := s.ask("GET", "/v2/web/image/blobs/"+string(digest.FromBytes(i.config)), nil); a.status == 200 {
		t.Errorf("what is cut: %s", a)
	}
	if damaged := s.Damaged(); len(damaged) != 4 {
		t.Errorf("damaged: %v", damaged)
	}
}

// BLD-6: what is kept stays with all that lies beneath, what is young stays, the rest goes; what two share stays for the other.
func TestCollect(t *testing.T) {
	s := serve(t, Config{})
	shared := []byte("shared layer")
	amd, arm, old, mail := newImage("amd64", shared), newImage("arm64", []byte("arm's")), newImage("386", shared), newImage("amd64", []byte("mail's"))
	index, indexData := newIndex(amd, arm)
	for _, i := range []image{amd, arm, old} {
		s.pushImage("web/image", i)
	}
	s.push("web/image", ocispec.MediaTypeImageIndex, indexData)
	s.pushImage("mail/image", old)
	stray := s.push("web/image", octets, []byte("nobody's"))
	seen := newImage("riscv64", []byte("seen again"))
	s.pushImage("web/image", seen)
	s.pass(s.cfg.Grace + time.Hour)
	if !s.has("web/image", seen.desc) || !s.has("web/image", describe(octets, amd.config)) { // as whoever pushes them again does
		t.Fatal("what was pushed is not there")
	}
	s.pushImage("mail/image", mail)
	keep := func(d digest.Digest) bool { return d == index.Digest }
	got, err := s.Collect(keep)
	if err != nil {
		t.Fatal(err)
	}
	// Twice the manifest old; its content and configuration once, and the stray blob.
	if got.Manifests != 2 || got.Blobs != 3 || got.Bytes != int64(len(old.manifest)+len(old.config))+stray.Size {
		t.Errorf("collected %+v", got)
	}
	for name, c := range map[string]struct {
		repo string
		d    ocispec.Descriptor
		has  bool
	}{
		"the index": {"web/image", index, true}, "a manifest of it": {"web/image", arm.desc, true}, "a layer of that": {"web/image", describe(octets, arm.layer), true},
		"a shared layer": {"web/image", describe(octets, shared), true}, "a shared layer nobody there needs": {"mail/image", describe(octets, shared), false},
		"what nobody keeps": {"web/image", old.desc, false}, "its configuration": {"web/image", describe(octets, old.config), false}, "a stray blob": {"web/image", stray, false},
		"what was seen again": {"web/image", seen.desc, true}, "its configuration ": {"web/image", describe(octets, seen.config), true},
		"what is young": {"mail/image", mail.desc, true}, "its layer": {"mail/image", describe(octets, mail.layer), true},
	} {
		if has := s.has(c.repo, c.d); has != c.has {
			t.Errorf("%s: %t", name, has)
		}
	}
	again := serve(t, Config{Dir: s.cfg.Dir}) // memory and disk agree
	byDigest := cmpopts.SortSlices(func(a, b Artifact) bool { return a.Repository+string(a.Digest) < b.Repository+string(b.Digest) })
	if d := cmp.Diff(s.List(), again.List(), cmpopts.IgnoreFields(Artifact{}, "Pushed"), byDigest); d != "" { // the clock of one was moved
		t.Error(d)
	}
	if s.owners["web"] != again.owners["web"] || s.owners["mail"] != again.owners["mail"] {
		t.Errorf("held: %v, after a restart %v", s.owners, again.owners)
	}
	// A damaged manifest does not take with it what it names.
	s.spoil(index.Digest)
	again = serve(t, Config{Dir: s.cfg.Dir})
	again.pass(48 * time.Hour)
	if _, err := again.Collect(keep); err != nil || !again.has("web/image", arm.desc) {
		t.Errorf("collected beneath a damaged index: %v", err)
	}
}

// A push beside collections loses nothing, though nothing is kept and the grace is as good as none: what a push has seen stays until it
// has recorded what needs it.
func TestCollectBesidePushes(t *testing.T) {
	s := serve(t, Config{Grace: 21 * time.Minute})
	stop := make(chan struct{})
	var collecting, pushing sync.WaitGroup
	collecting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := s.Collect(func(digest.Digest) bool { return false }); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	base := []byte("base layer that every image has")
	s.push("web/image", octets, base)
	for worker := range 3 {
		pushing.Go(func() {
			for n := range 30 {
				s.pass(20 * time.Second) // half an hour in all; what one worker saw is never older than what the two others pass, 20 minutes
				i := newImage(fmt.Sprintf("w%d-%d", worker, n), base)
				if !s.has("web/image", describe(octets, base)) {
					s.push("web/image", octets, base)
				}
				s.push("web/image", octets, i.config)
				s.push("web/image", ocispec.MediaTypeImageManifest, i.manifest)
				if got, err := s.get("web/image", describe(octets, base)); err != nil || !bytes.Equal(got, base) {
					t.Errorf("the base after a push: %v", err)
				}
			}
		})
	}
	pushing.Wait()
	close(stop)
	collecting.Wait()
	s.pass(time.Hour)
	if _, err := s.Collect(func(digest.Digest) bool { return false }); err != nil || s.files() != "" {
		t.Errorf("%v, left: %s", err, s.files())
	}
}
