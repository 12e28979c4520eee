package enrol_test

import (
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
)

// What another implementation made of the mesh "mabc…", the token "tabc…" and the secret 01 02 … 20. NODE-2
const (
	knownToken = "mesh1.AK9tYWJjZGVmZ2hpamtsbW5vdGFiY2RlZmdoaWprbG1ub6qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqA6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbgBAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fIAIUaHViLmV4YW1wbGUub3JnOjQyMjISWzIwMDE6ZGI4OjoxXTo0MjIy1bhjew"
	knownBus   = "UCQFMJHVHM5XDDKXRXVWNJXVSO7YDBSFAEBBB6SSU6BGBBU3KRCJSDG3"
	knownClaim = "363112834e42661799eef6da76a389b04bd66274878cb54c390db852617f76ee"
)

func TestKnownToken(t *testing.T) {
	token, err := enrol.Parse(knownToken)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hub.example.org:4222", "[2001:db8::1]:4222"}, token.Addresses); diff != "" {
		t.Error(diff)
	}
	record, err := token.Record()
	if err != nil {
		t.Fatal(err)
	}
	claim, _ := hex.DecodeString(knownClaim)
	if diff := cmp.Diff(enrol.Record{ID: "tabcdefghijklmno", Bus: knownBus, Claim: claim}, record); diff != "" {
		t.Error(diff)
	}
	if again, err := token.Encode(); err != nil || again != knownToken {
		t.Errorf("encodes as %s, %v", again, err)
	}
}

func TestTokenRoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	signing := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	for range 300 {
		var addresses []string
		for range 1 + random.IntN(8) {
			host := strings.Repeat("a", 1+random.IntN(63)) + strings.Repeat(".bc", random.IntN(60))
			if random.IntN(3) == 0 {
				host = fmt.Sprintf("2001:db8::%x", 1+random.IntN(65535))
			}
			addresses = append(addresses, net.JoinHostPort(host, fmt.Sprint(1+random.IntN(65535))))
		}
		token, err := enrol.NewToken(appliance.NewMeshID(), addresses, [32]byte{1}, signing)
		if err != nil {
			t.Fatal(err)
		}
		text, err := token.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := enrol.Parse("\n " + text + "\r\n")
		if err != nil {
			t.Fatalf("%v: %v", addresses, err)
		}
		if diff := cmp.Diff(token, got); diff != "" {
			t.Fatal(diff)
		}
	}
}

// NODE-3: a bad copy is told from a foreign or an old token.
func TestTruncatedToken(t *testing.T) {
	for cut := 1; cut < len(knownToken); cut++ {
		_, err := enrol.Parse(knownToken[:cut])
		if err == nil || !strings.Contains(err.Error(), "the token ends early: copy it whole") || !appliance.IsReason(err, enrol.TokenDamaged) {
			t.Errorf("cut after %d of %d characters: %v", cut, len(knownToken), err)
		}
	}
}

func TestDamagedToken(t *testing.T) {
	for i := range knownToken {
		for _, c := range []byte{'A', 'b', '-', '7', '.', '!'} {
			changed := []byte(knownToken)
			if changed[i] == c {
				continue
			}
			changed[i] = c
			if _, err := enrol.Parse(string(changed)); !appliance.IsReason(err, enrol.TokenDamaged) {
				t.Errorf("character %d made %c: %v", i, c, err)
			}
		}
	}
}

func TestOtherTokens(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "empty",
		" \n":                                    "empty",
		"hello":                                  "does not begin with mesh1.",
		"mesh2." + knownToken[6:]:                "version 2",
		knownToken + "AAAA":                      "3 bytes follow its end",
		knownToken[:40] + "\n" + knownToken[40:]: "white space at character 41",
		knownToken[:40] + "ü" + knownToken[40:]:  "foreign character at 41",
		"mesh1." + strings.Repeat("A", 5000):     "at most",
		"mesh1.AAAA":                             "damaged",
	} {
		_, err := enrol.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || appliance.AsError(err).Hint == "" {
			t.Errorf("%.20q: %v, want %q and a hint", text, err, want)
		}
	}
}

// SAFE-4
func TestTokenRefusals(t *testing.T) {
	signing := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	good := func() enrol.Token {
		token, err := enrol.NewToken(appliance.NewMeshID(), []string{"hub:4222"}, [32]byte{1}, signing)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	for name, spoil := range map[string]func(*enrol.Token){
		"no secret":       func(t *enrol.Token) { t.Secret = [32]byte{} },
		"no pin":          func(t *enrol.Token) { t.Authority = [32]byte{} },
		"no signing key":  func(t *enrol.Token) { t.Signing = nil },
		"zero key":        func(t *enrol.Token) { t.Signing = make([]byte, 32) },
		"no mesh":         func(t *enrol.Token) { t.Mesh = "" },
		"node id":         func(t *enrol.Token) { t.Mesh = "nabcdefghijklmno" },
		"no id":           func(t *enrol.Token) { t.ID = "" },
		"no address":      func(t *enrol.Token) { t.Addresses = nil },
		"nine addresses":  func(t *enrol.Token) { t.Addresses = strings.Fields(strings.Repeat("a:1 ", 9)) },
		"no port":         func(t *enrol.Token) { t.Addresses = []string{"hub"} },
		"port 0":          func(t *enrol.Token) { t.Addresses = []string{"hub:0"} },
		"port 65536":      func(t *enrol.Token) { t.Addresses = []string{"hub:65536"} },
		"port +1":         func(t *enrol.Token) { t.Addresses = []string{"hub:+1"} },
		"command":         func(t *enrol.Token) { t.Addresses = []string{"$(id):1"} },
		"option":          func(t *enrol.Token) { t.Addresses = []string{"-x:1"} },
		"url":             func(t *enrol.Token) { t.Addresses = []string{"http://a:1"} },
		"too long a host": func(t *enrol.Token) { t.Addresses = []string{strings.Repeat("a.", 130) + "a:1"} },
	} {
		token := good()
		spoil(&token)
		if text, err := token.Encode(); err == nil {
			t.Errorf("%s: encoded as %s", name, text)
		}
	}
	token := good()
	token.Secret = [32]byte{}
	if _, err := token.BusKey(); err == nil {
		t.Error("a bus key from an empty secret")
	}
	if _, err := token.ClaimKey(); err == nil {
		t.Error("a claim key from an empty secret")
	}
}

// SAFE-4: printing a token by accident shows no secret; neither does a refusal.
func TestTokenKeepsItsSecret(t *testing.T) {
	token, err := enrol.Parse(knownToken)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(token), fmt.Sprintf("%+v", token), token.String()} {
		if want := "token tabcdefghijklmno of mesh mabcdefghijklmno"; shown != want {
			t.Errorf("shown as %s", shown)
		}
	}
	if shown, err := json.Marshal(token); err != nil || string(shown) != `"token tabcdefghijklmno of mesh mabcdefghijklmno"` {
		t.Errorf("as JSON %s, %v", shown, err)
	}
	_, err = enrol.Parse(knownToken[:len(knownToken)-10] + "!")
	if strings.Contains(fmt.Sprintf("%+v", appliance.AsError(err)), knownToken[100:140]) {
		t.Errorf("the refusal repeats the token: %v", err)
	}
}

// SAFE-2
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{knownToken, knownToken[:50], "mesh1.", "mesh2.AAAA", "", "mesh1.AAAAAAAA", knownToken + "="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := enrol.Parse(s)
		if err != nil {
			if !appliance.IsReason(err, enrol.TokenDamaged) {
				t.Errorf("refused without a reason: %v", err)
			}
			return
		}
		if again, err := token.Encode(); err != nil || again != strings.TrimSpace(s) {
			t.Errorf("%q encodes as %q, %v", s, again, err)
		}
	})
}
