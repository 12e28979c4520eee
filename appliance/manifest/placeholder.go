package manifest

import (
	"fmt"
	"strings"

	"github.com/novox/mesh/appliance"
)

// Expand replaces each ${name} in s by what value says, and $${ by ${ itself. It stops at the first error.
func Expand(s string, value func(name string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed || len(name) > 120 {
			return "", appliance.Errorf(appliance.Invalid, "%s is not closed", appliance.Quote(s[i:])).WithHint("write $${ for ${ itself")
		}
		v, err := value(name)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		s = rest
	}
}

// The placeholders of the format: the fixed ones, and those that begin with a word and go on with a name.
var (
	carriedPlaceholders = []string{"dir", "node:name", "node:address", "port:NAME"}
	laterPlaceholders   = []string{"seat:SEAT:PORT", "provider:REQUIREMENT:host", "secret:REQUIREMENT", "cert:NAME:cert", "bus:address", "bus:ca", "bus:credential", "setting:NAME"}
)

// placeholders notes what is wrong with the placeholders in s.
func (c *checker) placeholders(path, s string) {
	_, err := Expand(s, func(name string) (string, error) {
		word, rest, _ := strings.Cut(name, ":")
		switch {
		case name == "dir", name == "node:name", name == "node:address":
		case word == "port":
			if _, ok := c.m.Ports[rest]; !ok {
				c.add(path, suggest(rest, keysOf(c.m.Ports), "the manifest names no port"), fmt.Sprintf("${%s} names no port of this manifest", name))
			}
		case later(word, rest):
			c.add(path, "", fmt.Sprintf("${%s} is valid, but %s", name, notCarriedOut))
		default:
			c.add(path, suggest(name, append(carriedPlaceholders, laterPlaceholders...), ""), fmt.Sprintf("unknown placeholder %s", appliance.Quote("${"+name+"}")))
		}
		return "", nil
	})
	if e := appliance.AsError(err); e != nil {
		c.add(path, e.Hint, "placeholder "+e.Text)
	}
}

func later(word, rest string) bool {
	for _, p := range laterPlaceholders {
		w, form, _ := strings.Cut(p, ":")
		if w == word && (rest == form || word != "bus" && rest != "") {
			return true
		}
	}
	return false
}
