package wg

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// The pair is Alice's of RFC 7748, section 6.1.
func TestKey(t *testing.T) {
	private, err := ParseKey("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := private.Public().String(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="; got != want {
		t.Errorf("public key %s, want %s", got, want)
	}
	if k := NewPrivateKey(); k != k.Clamped() || k == NewPrivateKey() {
		t.Error("a new key is not clamped, or not new")
	}
	for _, text := range []string{"", "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LC", private.String() + "=", private.String() + "\n"} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("%q was taken for a key", text)
		}
	}
	c := Config{Interface: "wgt0", PrivateKey: private}
	if text := fmt.Sprintf("%v %+v %s", c, c, c); strings.Contains(text, private.String()) {
		t.Error("a printed configuration shows the private key")
	}
}

func TestCheck(t *testing.T) {
	good := newStar(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.1")).hub
	if err := good.check("wgt0"); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*Config){
		"is for \"other\"":       func(c *Config) { c.Interface = "other" },
		"no private key":         func(c *Config) { c.PrivateKey = Key{} },
		"no address":             func(c *Config) { c.Address = netip.Prefix{} },
		"MTU 1200 is outside":    func(c *Config) { c.MTU = 1200 },
		"more than the 10000":    func(c *Config) { c.Peers = make([]Peer, 10001) },
		"a peer has no key":      func(c *Config) { c.Peers[0].Key = Key{} },
		"is the device itself":   func(c *Config) { c.Peers[0].Key = c.PrivateKey.Public() },
		"is named twice":         func(c *Config) { c.Peers[0].Key = c.Peers[1].Key },
		"65 addresses":           func(c *Config) { c.Peers[0].Address = make([]netip.Prefix, 65) },
		"keepalive -1s":          func(c *Config) { c.Peers[0].Keepalive = -time.Second },
		"invalid address":        func(c *Config) { c.Peers[0].Address = make([]netip.Prefix, 1) },
		"give it to one of them": func(c *Config) { c.Peers[0].Address = c.Peers[1].Address },
	} {
		c := good
		c.Peers = append([]Peer(nil), good.Peers...)
		spoil(&c)
		if err := c.check("wgt0"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"wgt0"`) {
			t.Errorf("%v, want it to say %q", err, want)
		}
	}
}

// An initiation moves the peer only once the device has answered it, that is, has found it genuine.
func TestClaimDoesNotMove(t *testing.T) {
	moves := 0
	b := newBind(func() { moves++ })
	if _, _, err := b.Open(0); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	key, home := Key{1}, netip.MustParseAddrPort("127.0.0.1:9")
	r := newRoute(home)
	b.routes.Store(&map[Key]*route{key: r})
	claim := func(from string, id uint32) {
		a := &arrival{path: path{peer: netip.MustParseAddrPort(from)}, bind: b, begins: true, id: id}
		a.InitiationMessagePublicKey(key)
	}
	answer := func(id uint32) {
		t.Helper()
		p := make([]byte, 92)
		p[0] = 2
		binary.LittleEndian.PutUint32(p[8:], id)
		if err := b.Send([][]byte{p}, r, 0); err != nil {
			t.Fatal(err)
		}
	}
	claim("127.0.0.2:9", 7)
	if r.address() != home {
		t.Fatalf("a claim moved the peer to %s", r.address())
	}
	answer(8)
	if r.address() != home || moves != 0 {
		t.Fatalf("another answer moved the peer to %s", r.address())
	}
	claim("127.0.0.2:9", 7)
	claim("127.0.0.3:9", 9)
	answer(7)
	if got := r.address().String(); got != "127.0.0.2:9" || moves != 1 {
		t.Errorf("the answered peer is at %s after %d moves", got, moves)
	}
}

func TestLearned(t *testing.T) {
	file := filepath.Join(t.TempDir(), "learned.json")
	known := map[Key]netip.AddrPort{{1}: netip.MustParseAddrPort("192.0.2.1:1"), {2}: netip.MustParseAddrPort("[2001:db8::1]:2")}
	log := slog.New(slog.DiscardHandler)
	openLearned(file, log).write(known)
	same := cmpopts.EquateComparable(netip.AddrPort{}, Key{})
	if diff := cmp.Diff(known, openLearned(file, log).known, same); diff != "" {
		t.Error(diff)
	}
	for _, damage := range []string{"", "{", `{"a":"192.0.2.1:1"}`, `[]`, strings.Repeat(" ", learnedBound+1)} {
		if err := os.WriteFile(file, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readLearned(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("a damaged file: %v, want an error that names it", err)
		}
		if l := openLearned(file, log); l.known != nil { // and the device starts without it
			t.Errorf("a damaged file gave %v", l.known)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(file) + "/*"); len(left) != 1 {
		t.Errorf("files left over: %v", left)
	}
}

// SAFE-2
func FuzzLearned(f *testing.F) {
	f.Add([]byte(`{"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=":"192.0.2.1:1"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		known, err := parseLearned(data)
		for key, at := range known {
			if err == nil && (!at.IsValid() || at.Port() == 0) {
				t.Errorf("peer %s is at %s", key, at)
			}
		}
	})
}
