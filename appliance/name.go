package appliance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Names a person chooses. Node, module and instance names share one namespace and one grammar (MOD-2).
type (
	NodeName      string
	ModuleName    string
	InstanceName  string
	SeatName      string
	ProvisionName string
	OperatorName  string
)

// MaxName is the longest name in bytes; a DNS label with room for a prefix.
const MaxName = 40

var nameGrammar = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// reserved are the words that subjects, host names or commands use for something else.
var reserved = []string{"all", "broker", "controller", "internal", "localhost", "mesh", "mod", "module", "node", "none", "operator", "seat", "token", "tool", "work"}

// ParseName checks s against the grammar and the reserved words. What is the noun used in the error.
func ParseName[T ~string](what, s string) (T, error) {
	if !nameGrammar.MatchString(s) {
		return "", Errorf(Invalid, "%s name %s does not fit the grammar", what, Quote(s)).
			WithHint("lower-case letters, digits and inner dashes, beginning with a letter, at most 40 characters")
	}
	if slices.Contains(reserved, s) {
		return "", Errorf(Invalid, "%s name %q is reserved", what, s).WithHint("reserved words: " + strings.Join(reserved, ", "))
	}
	return T(s), nil
}

// Quote shows outside input in a message: quoted, and cut after 60 bytes.
func Quote(s string) string {
	if len(s) > 60 {
		return fmt.Sprintf("%q… (%d bytes)", s[:60], len(s))
	}
	return fmt.Sprintf("%q", s)
}
