package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"

	"filippo.io/age"
	"github.com/nats-io/nkeys"
)

var errKey = errors.New("not a key of its kind") // never says more: the text holds a secret

// pemPart keeps an Ed25519 or ECDSA key as PKCS #8 in PEM.
func pemPart[K ed25519.PrivateKey | *ecdsa.PrivateKey](file string, key *K) part {
	return part{file,
		func() ([]byte, error) {
			der, err := x509.MarshalPKCS8PrivateKey(*key)
			return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
		},
		func(text []byte) error {
			block, rest := pem.Decode(text)
			if block == nil || block.Type != "PRIVATE KEY" || len(rest) > 0 {
				return errKey
			}
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			k, ok := parsed.(K)
			if err != nil || !ok {
				return errKey
			}
			if e, ok := any(k).(*ecdsa.PrivateKey); ok && e.Curve != elliptic.P256() {
				return errKey
			}
			*key = k
			return nil
		}}
}

// rawPart keeps 32 bytes as one line of base64, as WireGuard does. Zeros are no key.
func rawPart(file string, key *[32]byte) part {
	return part{file,
		func() ([]byte, error) { return line(base64.StdEncoding.EncodeToString(key[:])), nil },
		func(text []byte) (err error) {
			*key, err = decode32(string(text))
			return err
		}}
}

func agePart(file string, key **age.X25519Identity) part {
	return part{file,
		func() ([]byte, error) { return line((*key).String()), nil },
		func(text []byte) (err error) {
			*key, err = age.ParseX25519Identity(string(text))
			return err
		}}
}

func nkeyPart(file string, key *nkeys.KeyPair) part {
	return part{file,
		func() ([]byte, error) {
			seed, err := (*key).Seed()
			return line(string(seed)), err
		},
		func(text []byte) (err error) {
			*key, err = nkeys.FromSeed(text)
			if err == nil {
				err = nkeys.CompatibleKeyPair(*key, nkeys.PrefixByteUser)
			}
			return err
		}}
}

func line(s string) []byte { return []byte(s + "\n") }

func decode32(s string) (b [32]byte, err error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) != len(b) || base64.StdEncoding.EncodeToString(raw) != s {
		return b, errKey
	}
	copy(b[:], raw)
	if b == [32]byte{} {
		return b, errKey
	}
	return b, nil
}
