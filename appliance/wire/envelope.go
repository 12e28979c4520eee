package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/novox/mesh/appliance"
)

// Kind says what a body is; the signature covers it, so that bytes signed as one kind never pass as another.
type Kind string

const (
	KindDeclaration Kind = "declaration" // controller to one node
	KindMembership  Kind = "membership"  // controller to every node
	KindNotice      Kind = "notice"      // controller to one node
	KindAsk         Kind = "ask"         // controller to one node, of a session
	KindOutput      Kind = "output"      // node to controller, and controller to operator, of a session
	KindReport      Kind = "report"      // node to controller
	KindAlive       Kind = "alive"       // node to controller
	KindRekey       Kind = "rekey"       // node to controller
	KindHello       Kind = "hello"       // joiner to controller
	KindChallenge   Kind = "challenge"   // controller to joiner
	KindClaim       Kind = "claim"       // joiner to controller
	KindEnrolled    Kind = "enrolled"    // controller to joiner
	KindRefusal     Kind = "refusal"     // controller to joiner
	KindRequest     Kind = "request"     // operator to controller
	KindAnswer      Kind = "answer"      // controller to operator
	KindGrant       Kind = "grant"       // controller to whoever pushes an artifact
)

// Header is the signed part around a body. From and To are ids: a mesh id means the controller, Everybody every node.
type Header struct {
	Kind     Kind             `json:"kind"`
	Version  int              `json:"version"`
	Mesh     appliance.MeshID `json:"mesh"`
	From     string           `json:"from"`
	To       string           `json:"to"`
	Epoch    uint64           `json:"epoch,omitempty"`    // declaration, membership
	Counter  uint64           `json:"counter,omitempty"`  // declaration, membership
	Sequence uint64           `json:"sequence,omitempty"` // report, alive, rekey: the sender's own, rising
	Nonce    string           `json:"nonce,omitempty"`    // hello, claim, request; the answer repeats it
	Reply    string           `json:"reply,omitempty"`    // where the answer goes: beneath the sender's own inbox prefix
	Time     time.Time        `json:"time"`
	Digest   appliance.Digest `json:"digest"` // of the body; filled in by Seal
}

// Everybody is the addressee of a membership.
const Everybody = "all"

// Number is the header's epoch and counter.
func (h Header) Number() appliance.Number {
	return appliance.Number{Epoch: h.Epoch, Counter: h.Counter}
}

// The frame, frozen as part of version 0: magic, signature, length of the header (big endian), header as JSON, body.
// Signed are the domain string with the kind, and everything behind the signature.
const (
	magic      = "MSH1"
	domain     = "mesh/v1/"
	headerFrom = len(magic) + ed25519.SignatureSize + 2
	maxHeader  = 4096
)

func signed(kind Kind, rest []byte) []byte {
	b := make([]byte, 0, len(domain)+len(kind)+1+len(rest))
	b = append(b, domain...)
	b = append(b, kind...)
	b = append(b, 0)
	return append(b, rest...)
}

// Seal signs body under h. Time is cut to microseconds and put in UTC.
func Seal(h Header, body []byte, key ed25519.PrivateKey) ([]byte, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, appliance.Errorf(appliance.Internal, "seal %s: no signing key", h.Kind)
	}
	h.Digest = appliance.DigestOf(body)
	h.Time = h.Time.UTC().Truncate(time.Microsecond)
	head, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", h.Kind, err)
	}
	if len(head) > maxHeader {
		return nil, appliance.Errorf(appliance.Invalid, "seal %s: header of %d bytes, at most %d", h.Kind, len(head), maxHeader)
	}
	if size := headerFrom + len(head) + len(body); size > MaxEnvelope {
		return nil, appliance.Errorf(appliance.Invalid, "seal %s: %d bytes, at most %d", h.Kind, size, MaxEnvelope)
	}
	rest := binary.BigEndian.AppendUint16(nil, uint16(len(head)))
	rest = append(append(rest, head...), body...)
	out := append([]byte(magic), ed25519.Sign(key, signed(h.Kind, rest))...)
	return append(out, rest...), nil
}

// Open verifies data as kind under key, then parses the header. Nothing of it is read before the signature holds.
// The errors are of kind Denied for a bad signature and Invalid for bytes that are no envelope.
func Open(data []byte, kind Kind, key ed25519.PublicKey) (Header, []byte, error) {
	rest, err := frame(data, kind)
	if err != nil {
		return Header{}, nil, err
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, signed(kind, rest), data[len(magic):len(magic)+ed25519.SignatureSize]) {
		return Header{}, nil, appliance.Errorf(appliance.Denied, "open %s: the signature does not hold under the sender's key", kind)
	}
	return parse(rest, kind)
}

// Peek reads the header without verifying it. It serves only to find the key that Open then needs, and refusals.
func Peek(data []byte) (Header, error) {
	h, _, err := Sealed(data)
	return h, err
}

// Sealed gives header and body without verifying them: only of what the caller has sealed, or verified, before.
func Sealed(data []byte) (Header, []byte, error) {
	rest, err := frame(data, "envelope")
	if err != nil {
		return Header{}, nil, err
	}
	return parse(rest, "")
}

func frame(data []byte, kind Kind) ([]byte, error) {
	switch {
	case len(data) > MaxEnvelope:
		return nil, appliance.Errorf(appliance.Invalid, "open %s: %d bytes, at most %d", kind, len(data), MaxEnvelope)
	case len(data) < headerFrom || string(data[:len(magic)]) != magic:
		return nil, appliance.Errorf(appliance.Invalid, "open %s: not an envelope", kind)
	}
	return data[headerFrom-2:], nil
}

func parse(rest []byte, kind Kind) (Header, []byte, error) {
	n := int(binary.BigEndian.Uint16(rest))
	if n > maxHeader || len(rest) < 2+n {
		return Header{}, nil, appliance.Errorf(appliance.Invalid, "open %s: header of %d bytes in %d, at most %d", kind, n, len(rest)-2, maxHeader)
	}
	var h Header
	if err := Decode(rest[2:2+n], &h); err != nil {
		return Header{}, nil, appliance.Errorf(appliance.Invalid, "open %s: header: %w", kind, err)
	}
	body := rest[2+n:]
	switch {
	case kind != "" && h.Kind != kind:
		return Header{}, nil, appliance.Errorf(appliance.Denied, "open %s: the header says %s", kind, appliance.Quote(string(h.Kind)))
	case h.Digest != appliance.DigestOf(body):
		return Header{}, nil, appliance.Errorf(appliance.Denied, "open %s: the digest does not name the body", kind)
	}
	return h, body, nil
}

// Decode reads one JSON value strictly: unknown fields, a key twice and trailing bytes are errors.
func Decode(data []byte, into any) error {
	if err := unique(data); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("bytes after the value")
	}
	return nil
}

// unique refuses a key that is twice in one object: two readers could each see another of the two.
func unique(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	var open []map[string]bool // nil in an array
	var key bool               // the next string is a key
	for {
		token, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		within := len(open) - 1
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open, key = append(open, map[string]bool{}), true
				continue
			case '[':
				open, key = append(open, nil), false
				continue
			}
			open = open[:within]
		case string:
			if key {
				if open[within][v] {
					return fmt.Errorf("key %s is twice in one object", appliance.Quote(v))
				}
				open[within][v], key = true, false
				continue
			}
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}

// Encode writes a value as the JSON that Decode reads: struct order, sorted maps, no HTML escapes, no newline.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
