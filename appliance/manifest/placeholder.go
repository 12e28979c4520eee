package manifest

import (
	"fmt"
	"slices"
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
			return "", appliance.Errorf(appliance.Invalid, "%s is not closed", appliance.Quote(s[i:])).WithHint("$${ stands for ${ itself")
		}
		v, err := value(name)
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		s = rest
	}
}

// later are the placeholders of the format that this version does not carry out: a word, and what may follow it.
var later = map[string][]string{"seat": nil, "provider": nil, "secret": nil, "bus": {"address", "ca", "credential"}}

// placeholders notes what is wrong with the placeholders in s.
func (c *checker) placeholders(path, s string) {
	known := []string{"dir", "node:name", "node:address"}
	for _, port := range keysOf(c.m.Ports) {
		known = append(known, "port:"+port)
	}
	for _, name := range keysOf(c.m.Settings) {
		known = append(known, "setting:"+name)
	}
	for _, name := range keysOf(c.m.Artifacts) {
		if c.m.Artifacts[name].Kind == Files {
			known = append(known, "artifact:"+name)
		}
	}
	for _, name := range keysOf(c.m.Certificates) {
		known = append(known, "cert:"+name+":cert", "cert:"+name+":key")
		if c.m.Certificates[name].Authority {
			known = append(known, "cert:"+name+":ca")
		}
	}
	_, err := Expand(s, func(name string) (string, error) {
		word, rest, _ := strings.Cut(name, ":")
		forms, isLater := later[word]
		switch {
		case slices.Contains(known, name):
		case isLater && (slices.Contains(forms, rest) || forms == nil && rest != ""):
			c.errs.add(path, "", fmt.Sprintf("${%s} is valid, but %s", name, notCarriedOut))
		case word == "port":
			c.errs.add(path, suggest(rest, keysOf(c.m.Ports)), appliance.Quote("${"+name+"}")+" names no port of this manifest")
		default:
			c.errs.add(path, suggest(name, known)+"; $${ stands for ${ itself", "unknown placeholder "+appliance.Quote("${"+name+"}"))
		}
		return "", nil
	})
	if e := appliance.AsError(err); e != nil {
		c.errs.add(path, e.Hint, "placeholder "+e.Text)
	}
}
