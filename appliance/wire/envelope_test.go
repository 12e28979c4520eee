package wire_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

var kinds = []wire.Kind{
	wire.KindDeclaration, wire.KindMembership, wire.KindNotice, wire.KindReport, wire.KindAlive, wire.KindRekey, wire.KindHello,
	wire.KindChallenge, wire.KindClaim, wire.KindEnrolled, wire.KindRefusal, wire.KindRequest, wire.KindAnswer,
}

func pair(seed byte) (ed25519.PublicKey, ed25519.PrivateKey) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, 32))
	return key.Public().(ed25519.PublicKey), key
}

func TestRoundTrip(t *testing.T) {
	public, key := pair(1)
	hold := func(from, to, nonce, reply string, epoch, counter, sequence uint64, version uint8, micro uint32, body []byte) bool {
		h := wire.Header{
			Kind: wire.KindReport, Version: int(version), Mesh: "mabcdefghijklmno", From: clean(from), To: clean(to), Nonce: clean(nonce), Reply: clean(reply),
			Epoch: epoch, Counter: counter, Sequence: sequence, Time: time.UnixMicro(int64(micro) * 1_000_003).UTC(),
		}
		sealed, err := wire.Seal(h, body, key)
		if err != nil {
			t.Fatal(err)
		}
		got, gotBody, err := wire.Open(sealed, h.Kind, public)
		if err != nil {
			t.Fatal(err)
		}
		h.Digest = appliance.DigestOf(body)
		return cmp.Equal(h, got) && bytes.Equal(body, gotBody)
	}
	if err := quick.Check(hold, nil); err != nil {
		t.Error(err)
	}
}

// clean keeps what a JSON string carries unchanged.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "")
	for len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return s
}

// Bytes signed as one kind never pass as another, nor do they when the header is made to say so. BUS-14, DEC-3
func TestKindsAreApart(t *testing.T) {
	public, key := pair(1)
	for _, signed := range kinds {
		sealed, err := wire.Seal(wire.Header{Kind: signed}, []byte("{}"), key)
		if err != nil {
			t.Fatal(err)
		}
		for _, asked := range kinds {
			h, _, err := wire.Open(sealed, asked, public)
			if (err == nil) != (asked == signed) {
				t.Errorf("signed as %s, opened as %s: %v", signed, asked, err)
			}
			if err != nil && (appliance.KindOf(err) != appliance.Denied || h != wire.Header{}) {
				t.Errorf("signed as %s, opened as %s: kind %s, header %+v", signed, asked, appliance.KindOf(err), h)
			}
		}
	}
	// a header that says another kind than the signature was made for
	head, _ := wire.Encode(wire.Header{Kind: wire.KindClaim, Digest: appliance.DigestOf(nil)})
	if _, _, err := wire.Open(frame(key, wire.KindHello, head, nil), wire.KindHello, public); appliance.KindOf(err) != appliance.Denied {
		t.Errorf("a hello whose header says claim: %v", err)
	}
}

// frame signs any header bytes, as somebody with a key could.
func frame(key ed25519.PrivateKey, kind wire.Kind, head, body []byte) []byte {
	rest := append(append(binary.BigEndian.AppendUint16(nil, uint16(len(head))), head...), body...)
	signature := ed25519.Sign(key, append(append([]byte("mesh/v1/"+string(kind)), 0), rest...))
	return append(append([]byte("MSH1"), signature...), rest...)
}

// DEC-3, SAFE-2
func TestCutAndFlipped(t *testing.T) {
	for _, f := range fixtures(t) {
		for i := range f.sealed {
			if _, _, err := wire.Open(f.sealed[:i], f.header.Kind, f.public()); err == nil {
				t.Errorf("%s: opens when cut at %d", f.name, i)
			}
			_, _ = wire.Peek(f.sealed[:i])
			flipped := bytes.Clone(f.sealed)
			flipped[i] ^= 1 << (i % 8)
			if _, _, err := wire.Open(flipped, f.header.Kind, f.public()); err == nil {
				t.Errorf("%s: opens with byte %d flipped", f.name, i)
			}
		}
		if _, _, err := wire.Open(append(bytes.Clone(f.sealed), 0), f.header.Kind, f.public()); err == nil {
			t.Errorf("%s: opens with a byte more", f.name)
		}
	}
}

func TestOtherKeyIsDenied(t *testing.T) {
	f := named(t, "declaration")
	other, _ := pair(9)
	for _, key := range []ed25519.PublicKey{other, nil, {}, other[:31]} {
		if _, _, err := wire.Open(f.sealed, f.header.Kind, key); appliance.KindOf(err) != appliance.Denied {
			t.Errorf("under key %x: %v", key, err)
		}
	}
	if _, err := wire.Seal(f.header, f.body, nil); err == nil {
		t.Error("sealed without a key")
	}
}

// The bound is in the message. SAFE-2
func TestSizes(t *testing.T) {
	public, key := pair(1)
	_, err := wire.Seal(wire.Header{Kind: wire.KindReport}, make([]byte, wire.MaxEnvelope), key)
	says(t, err, "1048576")
	_, err = wire.Seal(wire.Header{Kind: wire.KindReport, Reply: strings.Repeat("x", 4096)}, nil, key)
	says(t, err, "4096")
	_, _, err = wire.Open(make([]byte, wire.MaxEnvelope+1), wire.KindReport, public)
	says(t, err, "1048576")
	empty, err := wire.Seal(wire.Header{Kind: wire.KindReport}, nil, key)
	if err != nil {
		t.Fatal(err)
	}
	largest, err := wire.Seal(wire.Header{Kind: wire.KindReport}, make([]byte, wire.MaxEnvelope-len(empty)), key)
	if err != nil || len(largest) != wire.MaxEnvelope {
		t.Fatalf("largest envelope: %d bytes, %v", len(largest), err)
	}
	if _, _, err := wire.Open(largest, wire.KindReport, public); err != nil {
		t.Error(err)
	}
	if _, err := wire.Seal(wire.Header{Kind: wire.KindReport}, make([]byte, wire.MaxEnvelope-len(empty)+1), key); err == nil {
		t.Error("one byte more was sealed")
	}
	head := []byte(`{"kind":"report"` + strings.Repeat(" ", 5000) + `}`)
	_, _, err = wire.Open(frame(key, wire.KindReport, head, nil), wire.KindReport, public)
	says(t, err, "4096")
}

func says(t *testing.T, err error, bound string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), bound) {
		t.Errorf("%v, want the bound %s in it", err, bound)
	}
}

func TestStrict(t *testing.T) {
	public, key := pair(1)
	digest := string(appliance.DigestOf(nil))
	for name, head := range map[string]string{
		"unknown field":   `{"kind":"report","foreign":1,"digest":"` + digest + `"}`,
		"bytes after":     `{"kind":"report","digest":"` + digest + `"} {}`,
		"not an object":   `[]`,
		"negative number": `{"kind":"report","epoch":-1,"digest":"` + digest + `"}`,
		"empty":           ``,
		"other digest":    `{"kind":"report","digest":"` + string(appliance.DigestOf([]byte("x"))) + `"}`,
		"no digest":       `{"kind":"report"}`,
	} {
		if _, _, err := wire.Open(frame(key, wire.KindReport, []byte(head), nil), wire.KindReport, public); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	var v struct{ A int }
	for _, bad := range []string{`{"A":1}x`, `{"A":1}{"A":2}`, `{"B":1}`, ``, `{"A":1.5}`} {
		if err := wire.Decode([]byte(bad), &v); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// BUS-14: an answer goes beneath the asker's own inbox and nowhere else.
func TestOwnsInbox(t *testing.T) {
	for reply, want := range map[string]bool{
		"_INBOX.node-n1.abc": true, "_INBOX.node-n1.a.b": true,
		"_INBOX.node-n1": false, "_INBOX.node-n1.": false, "_INBOX.node-n2.abc": false, "_INBOX.node-n1x.abc": false, "_INBOX.node-n1.*": false,
		"_INBOX.node-n1.>": false, "_INBOX.node-n1.a b": false, "_INBOX.node-n1..a": false, "_INBOX.node-n1.a.": false, "mesh.api.o.module.assign": false,
		"_INBOX.node-n1." + strings.Repeat("x", 65): false, "": false,
	} {
		if wire.OwnsInbox("node-n1", reply) != want {
			t.Errorf("%q: want %v", reply, want)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(x.sealed, string(x.header.Kind))
	}
	f.Add([]byte{}, "")
	public, key := pair(1)
	f.Fuzz(func(t *testing.T, data []byte, kind string) {
		h, err := wire.Peek(data)
		if err == nil && h.Digest == "" {
			t.Error("read without a digest")
		}
		if _, _, err := wire.Open(data, wire.Kind(kind), public); err == nil {
			t.Error("opened what this key has not signed")
		}
		// what a holder of the key may put in: any header, any body
		if len(data) > 4096 {
			return
		}
		for cut := 0; cut <= len(data); cut += 1 + len(data)/3 {
			sealed := frame(key, wire.Kind(kind), data[:cut], data[cut:])
			if h, body, err := wire.Open(sealed, wire.Kind(kind), public); err == nil && h.Digest != appliance.DigestOf(body) {
				t.Errorf("digest %s of %q", h.Digest, body)
			}
		}
	})
}

// Every form that arrives: no panic, and what was read encodes to something that reads the same.
func FuzzDecode(f *testing.F) {
	for _, x := range fixtures(f) {
		f.Add(x.body)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = wire.ParseAlive(data)
		if n, err := wire.ParseNotice(data); err == nil && n == (wire.Notice{Version: n.Version}) {
			t.Error("a notice that asks for nothing was read")
		}
		if r, err := wire.ParseReport(data); err == nil && r.About == nil && r.Facts == nil {
			t.Error("a report that says nothing was read") // NODE-6
		}
		for _, form := range []func() any{
			func() any { return new(wire.Content) }, func() any { return new(wire.Membership) }, func() any { return new(wire.Report) },
			func() any { return new(wire.Alive) }, func() any { return new(wire.Replace) }, func() any { return new(wire.Claim) },
			func() any { return new(wire.Hello) }, func() any { return new(wire.Challenge) }, func() any { return new(wire.Enrolled) },
			func() any { return new(wire.Rekey) },
		} {
			v := form()
			if wire.Decode(data, v) != nil {
				continue
			}
			once, err := wire.Encode(v)
			if err != nil {
				t.Fatalf("%T: %v", v, err)
			}
			again := form()
			if err := wire.Decode(once, again); err != nil {
				t.Fatalf("%T: %v in %s", v, err, once)
			}
			twice, err := wire.Encode(again)
			if err != nil || !bytes.Equal(once, twice) {
				t.Errorf("%T: %s then %s, %v", v, once, twice, err)
			}
		}
	})
}
