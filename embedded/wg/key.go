package wg

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// Key is a private or a public Curve25519 key. String gives its text, so never print a private one.
type Key [32]byte

// NewPrivateKey draws a private key.
func NewPrivateKey() Key {
	var k Key
	rand.Read(k[:]) // never returns an error: without randomness the process ends
	return k.Clamped()
}

// Clamped returns the key with the bits fixed that Curve25519 wants fixed in a private key.
func (k Key) Clamped() Key {
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

// Public returns the public half of a private key.
func (k Key) Public() Key {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		panic(err) // only for a wrong length
	}
	return Key(private.PublicKey().Bytes())
}

// IsZero says whether there is no key at all.
func (k Key) IsZero() bool { return k.same(Key{}) }

// String is base64, the form that people and other tools exchange.
func (k Key) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// ParseKey reads what String wrote.
func ParseKey(text string) (Key, error) {
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(data) != len(Key{}) || strings.ContainsAny(text, "\r\n") { // the decoder skips line ends
		return Key{}, fmt.Errorf("parse key: want %d bytes in base64 (44 characters), got %d characters", len(Key{}), len(text))
	}
	return Key(data), nil
}

// MarshalText and UnmarshalText make a key a map key or value in JSON.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k *Key) UnmarshalText(text []byte) error {
	parsed, err := ParseKey(string(text))
	if err == nil {
		*k = parsed
	}
	return err
}

func (k Key) same(other Key) bool { return subtle.ConstantTimeCompare(k[:], other[:]) == 1 }

func (k Key) hex() string { return hex.EncodeToString(k[:]) }
