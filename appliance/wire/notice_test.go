package wire

import (
	"strings"
	"testing"

	"github.com/novox/mesh/appliance"
)

// DEC-6, NODE-8, SAFE-2: a notice asks for something known, or is refused.
func TestNotice(t *testing.T) {
	good, err := Encode(Notice{Version: Version, Check: true})
	if err != nil || string(good) != `{"version":1,"check":true}` {
		t.Fatalf("%s, %v", good, err)
	}
	if n, err := ParseNotice(good); err != nil || !n.Check {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := ParseNotice([]byte(`{"version":1,"removed":"` + strings.Repeat("k", maxKey) + `"}`)); err != nil || len(n.Removed) != maxKey {
		t.Errorf("%+v, %v", n, err)
	}
	for _, body := range []string{"", "null", "[]", "{}", `{"version":1}`, `{"check":true}`, `{"version":2,"check":true}`, `{"version":1,"check":true}{}`, `{"version":1,"check":1}`,
		`{"version":1,"check":true,"check":true}`, `{"version":1,"removed":""}`, `{"version":1,"removed":"` + strings.Repeat("k", maxKey+1) + `"}`, `{"version":1,"check":true,"more":1}`} {
		if n, err := ParseNotice([]byte(body)); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%s: %+v, %v", body, n, err)
		}
	}
}

// DEC-6: drift is bounded as other texts are, and an outcome without one is the bytes it was before.
func TestDriftInOutcomes(t *testing.T) {
	about := &About{Number: appliance.Number{Epoch: 1, Counter: 1}, Digest: appliance.DigestOf(nil)}
	for size, fits := range map[int]bool{0: true, MaxText: true, MaxText + 1: false} {
		o := Outcome{ID: "a/file/b", Instance: "a", Kind: File, Status: Applied, Drift: strings.Repeat("d", size)}
		body, err := Encode(Report{Version: Version, About: about, Outcomes: []Outcome{o}})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), "drift") != (size > 0) {
			t.Errorf("with %d bytes: %s", size, body)
		}
		if r, err := ParseReport(body); (err == nil) != fits || fits && r.Outcomes[0].Drift != o.Drift {
			t.Errorf("with %d bytes: %v", size, err)
		}
	}
}
