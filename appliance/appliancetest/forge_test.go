package appliancetest_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// message is an envelope taken apart, as somebody would who makes another one of it.
type message struct {
	domain, kind string // what is signed over
	head         map[string]any
	raw          []byte // the header's bytes; nil: head as JSON
	body         []byte
	key          ed25519.PrivateKey
}

func takeApart(t *testing.T, data []byte, key ed25519.PrivateKey) message {
	t.Helper()
	h, body, err := wire.Open(data, must(wire.Peek(data))(t).Kind, key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	m := message{domain: "mesh/v1/", kind: string(h.Kind), body: body, key: key}
	if err := json.Unmarshal(must(wire.Encode(h))(t), &m.head); err != nil {
		t.Fatal(err)
	}
	for _, number := range []string{"version", "epoch", "counter", "sequence"} {
		if f, ok := m.head[number].(float64); ok {
			m.head[number] = uint64(f)
		}
	}
	return m
}

// with gives a copy with a header field set, or taken away where value is nil.
func (m message) with(field string, value any) message {
	m.head = maps.Clone(m.head)
	if m.head[field] = value; value == nil {
		delete(m.head, field)
	}
	return m
}

// saying gives a copy with another body, its digest set right.
func (m message) saying(body []byte) message {
	m.body = body
	return m.with("digest", string(appliance.DigestOf(body)))
}

func (m message) sealed() []byte {
	head := m.raw
	if head == nil {
		head, _ = json.Marshal(m.head)
	}
	rest := append(binary.BigEndian.AppendUint16(nil, uint16(len(head))), head...)
	rest = append(rest, m.body...)
	signed := append([]byte(m.domain+m.kind+"\x00"), rest...)
	return slices.Concat([]byte("MSH1"), ed25519.Sign(m.key, signed), rest)
}

// forgery is one message that nobody may take, and why.
type forgery struct {
	name string
	data []byte
}

// raw is a JSON text put into a header or body as it is.
type raw = json.RawMessage

// forgeries are what can be made of a good message by somebody who has other keys, old messages, a cut line, or even the sender's own
// key and ill will. Each breaks exactly one thing, and each has to be refused whatever the kind.
func forgeries(t *testing.T, good message, others map[string]ed25519.PrivateKey) (all []forgery) {
	add := func(name string, data []byte) { all = append(all, forgery{name, data}) }
	data := good.sealed()
	headLength := int(binary.BigEndian.Uint16(data[68:70]))

	for _, n := range []int{0, 1, 3, 4, 5, 67, 68, 69, 70, 71, 70 + headLength/2, 70 + headLength - 1, 70 + headLength, len(data) - 1} {
		add(fmt.Sprintf("cut after %d bytes", n), data[:n])
	}
	add("a byte more", append(bytes.Clone(data), ' '))
	add("twice in a row", append(bytes.Clone(data), data...))
	for name, at := range map[string]int{"magic": 0, "first of the signature": 4, "last of the signature": 67, "length": 69, "first of the header": 70,
		"last of the header": 69 + headLength, "first of the body": 70 + headLength, "last of the body": len(data) - 1} {
		flipped := bytes.Clone(data)
		flipped[at] ^= 1
		add("a bit flipped: "+name, flipped)
	}
	unsigned := bytes.Clone(data)
	clear(unsigned[4:68])
	add("a signature of zeros", unsigned)
	for _, length := range []uint16{0, 1, 4097, 65535} {
		long := bytes.Clone(data)
		binary.BigEndian.PutUint16(long[68:], length)
		add(fmt.Sprintf("a header of %d bytes", length), long)
	}

	for name, key := range others {
		other := good
		other.key = key
		add("signed by "+name, other.sealed())
	}
	_, fresh, _ := ed25519.GenerateKey(rand.Reader)
	other := good
	other.key = fresh
	add("signed by nobody known", other.sealed())
	for _, domain := range []string{"", "mesh/v0/", "mesh/v2/", "other/v1/"} {
		other := good
		other.domain = domain
		add("signed over domain "+domain, other.sealed())
	}
	for _, kind := range []wire.Kind{wire.KindDeclaration, wire.KindMembership, wire.KindNotice, wire.KindReport, wire.KindAlive, wire.KindRekey, wire.KindHello,
		wire.KindChallenge, wire.KindClaim, wire.KindEnrolled, wire.KindRefusal, wire.KindRequest, wire.KindAnswer, ""} {
		if string(kind) == good.kind {
			continue
		}
		add("calls itself "+string(kind), good.with("kind", string(kind)).sealed())
		other := good.with("kind", string(kind))
		other.kind = string(kind)
		add("signed as "+string(kind), other.sealed())
		other = good
		other.kind = string(kind)
		add("signed over kind "+string(kind), other.sealed())
	}

	for field, values := range map[string][]any{
		"mesh":     {nil, "", string(appliance.NewMeshID()), "../" + string(appliance.NewMeshID()), 5},
		"from":     {nil, "", string(appliance.NewNodeID()), string(appliance.NewMeshID()), string(appliance.NewOperatorID()), "all", raw(`["a"]`)},
		"to":       {nil, "", string(appliance.NewNodeID()), string(appliance.NewMeshID()), "*", raw(`{}`)},
		"digest":   {nil, "", "sha256:", string(appliance.DigestOf(nil)), string(appliance.DigestOf([]byte("other"))), 7},
		"version":  {"1", 1.5, raw(`1e3000`), raw(`99999999999999999999`)},
		"time":     {"", "yesterday", 12, "2026-12-01", "292277026597-01-01T00:00:00Z"},
		"epoch":    {-1, 1.5, "1", raw(`18446744073709551616`), raw(`1e400`)},
		"counter":  {-1, 1.5, "1", raw(`18446744073709551616`), raw(`1e400`)},
		"sequence": {-1, 1.5, "1", raw(`18446744073709551616`), raw(`1e400`)},
		"nonce":    {5, raw(`{"a":1}`)},
		"reply":    {5, raw(`["_INBOX.controller.x"]`)},
		"more":     {"a field nobody knows"},
	} {
		for _, value := range values {
			add(fmt.Sprintf("header with %s %v", field, value), good.with(field, value).sealed())
		}
	}
	head, _ := json.Marshal(good.head)
	for name, text := range map[string]string{
		"empty": "", "null": "null", "a list": "[]", "nothing in it": "{}", "not JSON": "{kind}", "two values": string(head) + "{}",
		"a key twice": `{"from":"somebody",` + string(head[1:]), "another case": `{"MORE":1,` + string(head[1:]), "too long": string(head[:len(head)-1]) + `,"reply":"` + string(bytes.Repeat([]byte("a"), 5000)) + `"}`,
		"deep": string(bytes.Repeat([]byte("["), 2000)), "half": string(head[:len(head)/2]),
	} {
		other := good
		other.raw = []byte(text)
		add("header: "+name, other.sealed())
	}
	for name, text := range map[string]string{
		"empty": "", "null": "null", "a list": "[]", "a number": "17", "a string": `"x"`, "not JSON": "{", "two values": string(good.body) + string(good.body),
		"a field nobody knows": `{"nobodyKnows":1,` + string(good.body[1:]), "a key twice": twice(good.body), "deep": string(bytes.Repeat([]byte(`{"a":`), 20_000)),
		"a huge number": `{"version":1e999999}`, "zeros": string(make([]byte, 64)), "not UTF-8": "\xff\xfe{}", "huge": string(bytes.Repeat([]byte(" "), 1<<20-4096)),
	} {
		if good.kind == string(wire.KindAlive) && name == "a field nobody knows" {
			continue // a newer agent's alive says more
		}
		add("body: "+name, good.saying([]byte(text)).sealed())
	}
	wrong := good
	wrong.body = append(bytes.Clone(good.body), '\n')
	add("body not the digest's", wrong.sealed())
	return all
}

// twice repeats the first key of an object.
func twice(body []byte) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(body, &m) != nil {
		return "{"
	}
	keys := slices.Sorted(maps.Keys(m))
	return fmt.Sprintf("{%q:%s,%s", keys[0], m[keys[0]], body[1:])
}

// flips gives the body with each of its fields, also inner ones, changed one at a time.
func flips(t *testing.T, body []byte) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	var whole any
	decode := func() any {
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&whole); err != nil {
			t.Fatal(err)
		}
		return whole
	}
	var paths [][]string
	var walk func(v any, at []string)
	walk = func(v any, at []string) {
		if m, ok := v.(map[string]any); ok {
			for _, k := range slices.Sorted(maps.Keys(m)) {
				walk(m[k], append(slices.Clone(at), k))
			}
			return
		}
		paths = append(paths, at)
	}
	walk(decode(), nil)
	for _, path := range paths {
		m := decode().(map[string]any)
		for _, k := range path[:len(path)-1] {
			m = m[k].(map[string]any)
		}
		last := path[len(path)-1]
		switch v := m[last].(type) {
		case string:
			b := []byte(v)
			if len(b) == 0 {
				b = []byte("x")
			} else if i := len(b) / 2; b[i] == 'a' {
				b[i] = 'b'
			} else {
				b[i] = 'a'
			}
			m[last] = string(b)
		case bool:
			m[last] = !v
		case json.Number:
			m[last] = json.Number(v.String() + "1")
		default:
			m[last] = "x"
		}
		out[fmt.Sprint(path)] = must(json.Marshal(whole))(t)
	}
	return out
}
