package artifacts

import (
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
)

const someDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// PORT-5: a reference names module, artifact and digest; our own store's address in it is left out, and another registry's refused.
func TestReference(t *testing.T) {
	want := Reference{"gitea", "image", someDigest}
	for _, s := range []string{
		"artifact-store://gitea/image@" + someDigest,
		"artifact-store://hub.internal:4281/gitea/image@" + someDigest,
		"hub.internal:4281/gitea/image@" + someDigest,
		"127.0.0.1:4281/gitea/image@" + someDigest,
		"gitea/image@" + someDigest,
	} {
		got, err := ParseReference(s)
		if err != nil || got != want || got.String() != "artifact-store://gitea/image@"+someDigest || got.Repository() != "gitea/image" {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "gitea/image", "gitea/image:latest", "gitea/image@sha256:0123", "gitea@" + someDigest, "gitea/image/deep@" + someDigest,
		"Gitea/image@" + someDigest, "gitea/../image@" + someDigest, "gitea/image@" + strings.ToUpper(someDigest), "gitea/image@sha512:" + strings.Repeat("a", 128),
		"registry.example.org/gitea/image@" + someDigest, "registry.example.org:443/gitea/image@" + someDigest, "https://hub.internal:4281/gitea/image@" + someDigest,
		"artifact-store://artifact-store://gitea/image@" + someDigest, "hub.internal:4281/hub.internal:4281/gitea/image@" + someDigest,
		" gitea/image@" + someDigest, "gitea/image@" + someDigest + "\n", "-gitea/image@" + someDigest, "gitea/image-@" + someDigest,
		strings.Repeat("a", 41) + "/image@" + someDigest, strings.Repeat("a", 1000),
	} {
		if got, err := ParseReference(s); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%.80s: %v, %v", s, got, err)
		}
	}
	for s, ok := range map[string]bool{"gitea/image": true, "gitea": false, "gitea/image@" + someDigest: false, "gitea/Image": false, "a/b/c": false} {
		if _, _, err := ParsePath(s); (err == nil) != ok {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// SAFE-2: whatever is read as a reference is written as one, and read again as the same.
func FuzzReference(f *testing.F) {
	f.Add("artifact-store://gitea/image@" + someDigest)
	f.Add("hub.internal:4281/gitea/image@" + someDigest)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseReference(s)
		if err != nil {
			return
		}
		again, err := ParseReference(r.String())
		if err != nil || again != r || !r.Digest.Valid() {
			t.Errorf("%q is %v, then %v, %v", s, r, again, err)
		}
	})
}
