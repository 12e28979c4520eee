package rules

import (
	"strings"
	"testing"
)

// A keeper rule: what is imported only in few places.
var keepers = []struct {
	imported string   // this package and all beneath it
	places   []string // and what is beneath them
	tests    []string // where tests may, too
}{
	{"github.com/nats-io/nats-server/v2", []string{"embedded/natsd", "appliance/bus/bustest"}, []string{"appliance/bus", "appliance/busauth"}},
	{"github.com/nats-io/nats.go", []string{"appliance/bus"}, []string{"embedded/natsd"}},
	{"github.com/jackc/pgx/v5", []string{"appliance/store"}, []string{"embedded/postgres"}},
	{"github.com/pressly/goose/v3", []string{"appliance/store"}, nil},
	{"github.com/tailscale/wireguard-go", []string{"embedded/wg"}, nil},
	{"cuelabs.dev/go/oci/ociregistry", []string{"embedded/registry"}, nil},
	{"oras.land/oras-go/v2", []string{"appliance/artifacts"}, []string{"embedded/registry", "genesis/serve"}},
	{"github.com/moby/moby", []string{"appliance/agent/linux/engine"}, nil},
	{"github.com/miekg/dns", []string{"appliance/agent/linux/resolver"}, nil},
	{"github.com/spf13/cobra", []string{"cmd"}, nil},
	{"github.com/spf13/pflag", []string{"cmd"}, nil},
	// Programs are started from one package of the agent (SAFE-3), by the supervisor, whose own child a module's process
	// is, and by what brings a machine up.
	{"os/exec", []string{"appliance/agent/linux", "appliance/supervise", "appliance/store/storetest", "embedded/postgres", "genesis", "cmd", "lab"},
		[]string{"appliance", "embedded"}},
	{module + "/embedded/wg", []string{"appliance/agent/linux", "embedded/wg"}, nil},
	{module + "/lab", []string{"lab", "cmd/lab"}, nil},
	{module + "/cmd", []string{"cmd"}, nil},
	{module + "/genesis", []string{"genesis", "cmd"}, nil},
}

func keptImports(sources []source) []string {
	var found []string
	for _, s := range sources {
		for _, imported := range s.imports {
			for _, rule := range keepers {
				if within(imported, rule.imported) && !within(s.dir, rule.places...) && !(s.test && within(s.dir, rule.tests...)) {
					found = append(found, complain(s, "imports %s, which only %s may", imported, strings.Join(rule.places, ", ")))
				}
			}
		}
	}
	return found
}

// A direction: what the packages of a place do not import.
var directions = []struct {
	from    []string
	never   []string // of ours, and all beneath
	except  []string
	library []string // of others
	tests   bool     // it holds for tests, too
}{
	{from: []string{"embedded"}, never: []string{"appliance", "bundles", "cmd", "genesis", "lab", "migrations"}},
	{from: []string{"bundles", "migrations"}, never: []string{"appliance", "bundles", "cmd", "embedded", "genesis", "lab", "migrations"}},
	{from: []string{"lab/netns"}, never: []string{"appliance", "bundles", "cmd", "embedded", "genesis", "migrations", "lab/beds"}, tests: true},
	{from: []string{"appliance/controller"}, never: []string{"appliance/agent"}},
	{from: []string{"appliance/agent"}, never: []string{"appliance/controller", "appliance/store", "appliance/resolve"}, tests: true},
	// The domain decides; it neither keeps nor sends.
	{
		from: []string{"appliance/wire", "appliance/manifest", "appliance/certificates", "appliance/catalogue", "appliance/ports", "appliance/overlay", "appliance/busauth",
			"appliance/pki", "appliance/enrol", "appliance/membership", "appliance/resolve", "appliance/render"},
		never:   []string{"appliance/store", "appliance/bus", "appliance/controller", "appliance/agent", "embedded"},
		except:  []string{"appliance/agent/host"}, // the structs of desired state, which imports nothing but vocabulary
		library: []string{"net/http", "os/exec", "log/slog", "log"},
	},
	// Same input, same bytes: no context, clock, chance, disk or logger.
	{from: []string{"appliance/resolve", "appliance/render", "appliance/ports"}, library: []string{"context", "crypto/rand", "math/rand", "os", "time"}},
	{from: []string{"appliance/resolve"}, never: []string{"appliance/render"}},
}

func keptDirections(sources []source) []string {
	var found []string
	for _, s := range sources {
		for _, rule := range directions {
			if !within(s.dir, rule.from...) || s.test && !rule.tests {
				continue
			}
			for _, imported := range s.imports {
				mine, own := ours(imported)
				if own && within(mine, rule.never...) && !within(mine, rule.except...) || !own && within(imported, rule.library...) {
					found = append(found, complain(s, "imports %s, which %s must not", imported, strings.Join(rule.from, ", ")))
				}
			}
		}
		if s.dir == "appliance" && !s.test {
			for _, imported := range s.imports {
				if first, _, _ := strings.Cut(imported, "/"); strings.Contains(first, ".") {
					found = append(found, complain(s, "imports %s; the vocabulary stands on the standard library only", imported))
				}
			}
		}
	}
	return found
}

func TestImportsAreKept(t *testing.T)    { hold(t, keptImports) }
func TestDirectionsAreKept(t *testing.T) { hold(t, keptDirections) }
