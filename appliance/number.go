package appliance

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Number orders declarations and memberships: epoch first, then counter. A restore raises the epoch.
type Number struct {
	Epoch   uint64 `json:"epoch"`
	Counter uint64 `json:"counter"`
}

func (n Number) Compare(m Number) int {
	return cmp.Or(cmp.Compare(n.Epoch, m.Epoch), cmp.Compare(n.Counter, m.Counter))
}

func (n Number) IsZero() bool   { return n == Number{} }
func (n Number) String() string { return fmt.Sprintf("%d.%d", n.Epoch, n.Counter) }

// Recordable says whether a record could hold the number: an epoch and a counter from 1 to 2^63-1.
func (n Number) Recordable() bool { return n.Epoch-1 < math.MaxInt64 && n.Counter-1 < math.MaxInt64 }

// ParseNumber reads "epoch.counter"; the empty string is the zero number.
func ParseNumber(s string) (Number, error) {
	if s == "" {
		return Number{}, nil
	}
	e, c, _ := strings.Cut(s, ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	counter, err2 := strconv.ParseUint(c, 10, 64)
	if err1 != nil || err2 != nil {
		return Number{}, Errorf(Invalid, "number %s is not epoch.counter", Quote(s))
	}
	return Number{epoch, counter}, nil
}

// Digest names bytes: "sha256:" and 64 hexadecimal digits. The empty digest names nothing and equals nothing sent.
type Digest string

var digestGrammar = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func DigestOf(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

func (d Digest) Valid() bool { return digestGrammar.MatchString(string(d)) }

// Short is what a table shows.
func (d Digest) Short() string {
	if len(d) < 19 {
		return string(d)
	}
	return string(d[7:19])
}
