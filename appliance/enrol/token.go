package enrol

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
)

// Token is what a machine needs to find a mesh, to believe it, and to be let in.
type Token struct {
	Mesh      appliance.MeshID
	ID        appliance.TokenID
	Addresses []string          // host:port of the broker, 1 to 8
	Authority [32]byte          // SHA-256 of the authority's DER
	Signing   ed25519.PublicKey // the mesh's, pinned whole
	Secret    [32]byte          // the bus key and the claim key are derived from it
}

// Record is what the mesh keeps of a token: public halves only.
type Record struct {
	ID    appliance.TokenID
	Bus   string            // user nkey
	Claim ed25519.PublicKey // signs hello and claim
}

// NewToken draws the id and the secret of a token.
func NewToken(mesh appliance.MeshID, addresses []string, authority [32]byte, signing ed25519.PublicKey) (Token, error) {
	t := Token{Mesh: mesh, ID: appliance.NewTokenID(), Addresses: addresses, Authority: authority, Signing: signing}
	rand.Read(t.Secret[:])
	return t, t.check()
}

// The printed form: "mesh1." and base64url of length (2 bytes, of everything), mesh id, token id, authority, signing key, secret,
// number of addresses, each with its length in a byte, and the first four bytes of the SHA-256 of all that.
const (
	tokenWord    = "mesh"
	tokenPrefix  = "mesh1."
	tokenID      = 16
	tokenFixed   = 2 + 2*tokenID + 3*32 + 1
	tokenSum     = 4
	maxAddresses = 8
	maxAddress   = 255
	maxToken     = len(tokenPrefix) + (tokenFixed+maxAddresses*(1+maxAddress)+tokenSum+2)/3*4
)

// String and MarshalText keep the secret out of messages, logs and JSON; Encode is the only way to it.
func (t Token) String() string { return "token " + string(t.ID) + " of mesh " + string(t.Mesh) }

func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Encode gives the token as a person copies it.
func (t Token) Encode() (string, error) {
	if err := t.check(); err != nil {
		return "", err
	}
	b := make([]byte, 2, 256)
	b = append(append(b, t.Mesh...), t.ID...)
	b = append(append(append(b, t.Authority[:]...), t.Signing...), t.Secret[:]...)
	b = append(b, byte(len(t.Addresses)))
	for _, a := range t.Addresses {
		b = append(append(b, byte(len(a))), a...)
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)+tokenSum))
	sum := sha256.Sum256(b)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:tokenSum]...)), nil
}

var otherVersion = regexp.MustCompile(`^mesh([0-9]{1,9})\.`)

// Parse reads a printed token; white space around it is ignored. Refusals never repeat the token.
func Parse(s string) (Token, error) {
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return Token{}, refuseToken("it is empty")
	case len(s) > maxToken:
		return Token{}, refuseToken(fmt.Sprintf("%d characters, at most %d", len(s), maxToken))
	case len(s) <= len(tokenPrefix) && strings.HasPrefix(tokenPrefix, s):
		return Token{}, endsEarly()
	case strings.HasPrefix(s, tokenPrefix):
	case otherVersion.MatchString(s):
		return Token{}, refuseToken("it is of version " + otherVersion.FindStringSubmatch(s)[1] + ", this binary reads version 1").
			WithHint("use the binary that the hub serves; it is of the token's version")
	default:
		return Token{}, refuseToken("it does not begin with " + tokenWord + "1.")
	}
	s = s[len(tokenPrefix):]
	for i, c := range s {
		if strings.ContainsRune(" \t\r\n", c) {
			return Token{}, refuseToken(fmt.Sprintf("white space at character %d", len(tokenPrefix)+i+1))
		}
		if c > 'z' || !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", c) {
			return Token{}, refuseToken(fmt.Sprintf("a foreign character at %d", len(tokenPrefix)+i+1))
		}
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil { // a cut inside a group of four leaves bits over: what is whole still says how long it should be
		b, _ = base64.RawURLEncoding.DecodeString(s[:len(s)/4*4])
	}
	if len(b) < 2 || len(b) < int(binary.BigEndian.Uint16(b)) {
		return Token{}, endsEarly()
	}
	if err != nil {
		return Token{}, refuseToken("it is damaged")
	}
	return parseToken(b)
}

func parseToken(b []byte) (Token, error) {
	size := int(binary.BigEndian.Uint16(b))
	switch {
	case size < tokenFixed+tokenSum:
		return Token{}, refuseToken("it is damaged")
	case len(b) > size:
		return Token{}, refuseToken(fmt.Sprintf("%d bytes follow its end", len(b)-size))
	}
	b, given := b[:size-tokenSum], b[size-tokenSum:]
	if sum := sha256.Sum256(b); subtle.ConstantTimeCompare(sum[:tokenSum], given) != 1 {
		return Token{}, refuseToken("it is damaged: its check sum does not fit")
	}
	r := bytes.NewBuffer(b[2:])
	t := Token{Mesh: appliance.MeshID(r.Next(tokenID)), ID: appliance.TokenID(r.Next(tokenID))}
	copy(t.Authority[:], r.Next(32))
	t.Signing = bytes.Clone(r.Next(32))
	copy(t.Secret[:], r.Next(32))
	count := int(r.Next(1)[0])
	for range count {
		n, err := r.ReadByte()
		if err != nil || r.Len() < int(n) {
			return Token{}, refuseToken("an address goes beyond its end")
		}
		t.Addresses = append(t.Addresses, string(r.Next(int(n))))
	}
	if r.Len() > 0 {
		return Token{}, refuseToken("bytes follow its addresses")
	}
	return t, t.check()
}

func (t Token) check() error {
	switch {
	case !t.Mesh.Valid() || !t.ID.Valid():
		return refuseToken("it names no mesh")
	case t.Secret == [32]byte{} || t.Authority == [32]byte{}:
		return refuseToken("it has no secret or no pin")
	case len(t.Signing) != ed25519.PublicKeySize || [32]byte(t.Signing) == [32]byte{}:
		return refuseToken("it pins no signing key")
	case len(t.Addresses) == 0 || len(t.Addresses) > maxAddresses:
		return refuseToken(fmt.Sprintf("%d addresses, between 1 and %d", len(t.Addresses), maxAddresses))
	}
	for _, a := range t.Addresses {
		if !dialable(a) {
			return refuseToken("address " + appliance.Quote(a) + " is not host:port")
		}
	}
	return nil
}

var hostName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)

func dialable(address string) bool {
	if len(address) > maxAddress {
		return false
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || net.JoinHostPort(host, strconv.FormatUint(n, 10)) != address {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" || hostName.MatchString(host)
}

func refuseToken(why string) *appliance.Error { return Refuse(TokenDamaged, "read token: "+why) }

func endsEarly() *appliance.Error { return refuseToken("the token ends early: copy it whole") }

// BusKey logs in to the bus as the token's user.
func (t Token) BusKey() (nkeys.KeyPair, error) {
	seed, err := t.derive("bus")
	if err != nil {
		return nil, err
	}
	return nkeys.FromRawSeed(nkeys.PrefixByteUser, seed)
}

// ClaimKey signs the hello and the claim.
func (t Token) ClaimKey() (ed25519.PrivateKey, error) {
	seed, err := t.derive("claim")
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

func (t Token) derive(what string) ([]byte, error) {
	if t.Secret == [32]byte{} {
		return nil, refuseToken("it has no secret")
	}
	return hkdf.Key(sha256.New, t.Secret[:], []byte(string(t.Mesh)+string(t.ID)), "mesh/v1/token/"+what, 32)
}

// Record gives the public halves for the records.
func (t Token) Record() (Record, error) {
	bus, err := t.BusKey()
	if err != nil {
		return Record{}, err
	}
	public, err := bus.PublicKey()
	if err != nil {
		return Record{}, err
	}
	claim, err := t.ClaimKey()
	if err != nil {
		return Record{}, err
	}
	return Record{ID: t.ID, Bus: public, Claim: claim.Public().(ed25519.PublicKey)}, nil
}
