package membership

import (
	"crypto/ed25519"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/wire"
)

// MaxMembers and MaxRevoked bound a membership; its envelope must fit one bus message.
const (
	MaxMembers = 4000
	MaxRevoked = 4000
)

var serial = regexp.MustCompile(`^[0-9a-f]{1,40}$`)

// Body checks the membership and gives its bytes, members by name and serials sorted: the same bytes for the same members.
func Body(m wire.Membership) ([]byte, error) {
	m.Version = wire.Version
	m.Members, m.Revoked = slices.Clone(m.Members), slices.Clone(m.Revoked)
	slices.SortFunc(m.Members, func(a, b wire.Member) int { return strings.Compare(string(a.Name), string(b.Name)) })
	slices.Sort(m.Revoked)
	m.Revoked = slices.Compact(m.Revoked)
	if err := Check(m); err != nil {
		return nil, err
	}
	return wire.Encode(m)
}

// Sign seals a body made by Body under a number.
func Sign(mesh appliance.MeshID, n appliance.Number, at time.Time, body []byte, key ed25519.PrivateKey) ([]byte, error) {
	return wire.Seal(wire.Header{
		Kind: wire.KindMembership, Version: wire.Version, Mesh: mesh, From: string(mesh), To: wire.Everybody,
		Epoch: n.Epoch, Counter: n.Counter, Time: at,
	}, body, key)
}

// Open verifies a membership of the mesh and then parses it. Whether its number is new is for wire.Judge.
func Open(data []byte, mesh appliance.MeshID, key ed25519.PublicKey) (wire.Membership, wire.Header, error) {
	h, body, err := wire.Open(data, wire.KindMembership, key)
	if err != nil {
		return wire.Membership{}, h, err
	}
	if h.Mesh != mesh || h.From != string(mesh) || h.To != wire.Everybody {
		return wire.Membership{}, h, appliance.Errorf(appliance.Denied, "open membership: it is of mesh %s, for %s", appliance.Quote(string(h.Mesh)), appliance.Quote(h.To)).
			WithHint("this node is in mesh " + string(mesh))
	}
	m, err := Parse(body)
	return m, h, err
}

// Parse reads the body of a verified membership.
func Parse(body []byte) (wire.Membership, error) {
	var m wire.Membership
	if err := wire.Decode(body, &m); err != nil {
		return wire.Membership{}, appliance.Errorf(appliance.Invalid, "read membership: %w", err)
	}
	if err := Check(m); err != nil {
		return wire.Membership{}, err
	}
	return m, nil
}

// Check says whether the membership is one mesh: one hub, every address in the range, and no name, address, key or id twice.
func Check(m wire.Membership) error {
	if err := overlay.Check(m.Range); err != nil {
		return err
	}
	switch {
	case m.Port == 0:
		return refuse("no overlay port")
	case len(m.Members) > MaxMembers:
		return refuse(strconv.Itoa(len(m.Members)) + " members, at most " + strconv.Itoa(MaxMembers))
	case len(m.Revoked) > MaxRevoked:
		return refuse(strconv.Itoa(len(m.Revoked)) + " revoked certificates, at most " + strconv.Itoa(MaxRevoked))
	case slices.ContainsFunc(m.Revoked, func(s string) bool { return !serial.MatchString(s) }):
		return refuse("a revoked certificate that is no serial")
	case len(m.Broker) == 0 || len(m.Broker) > 16:
		return refuse(strconv.Itoa(len(m.Broker)) + " broker endpoints, between 1 and 16")
	}
	for _, e := range m.Broker {
		if !endpoint(e) {
			return refuse("broker endpoint " + appliance.Quote(e) + " is not host:port")
		}
	}
	seen := make(map[string]appliance.NodeName, 4*len(m.Members))
	hub := appliance.NodeName("")
	for _, n := range m.Members {
		if err := checkMember(n, m.Range); err != nil {
			return err
		}
		for _, unique := range []string{"id " + string(n.ID), "name " + string(n.Name), "address " + n.Address.String(), "key " + n.Key} {
			if other, twice := seen[unique]; twice {
				return refuse(string(other) + " and " + string(n.Name) + " share the " + unique)
			}
			seen[unique] = n.Name
		}
		if n.Hub && hub != "" {
			return refuse("two hubs, " + string(hub) + " and " + string(n.Name))
		}
		if n.Hub {
			hub = n.Name
		}
	}
	if hub == "" {
		return refuse("no hub")
	}
	return nil
}

func checkMember(n wire.Member, r netip.Prefix) error {
	if _, err := appliance.ParseName[appliance.NodeName]("node", string(n.Name)); err != nil {
		return err
	}
	if _, err := identity.ParseOverlay(n.Key); err != nil {
		return refuse("the overlay key of " + string(n.Name) + " is none")
	}
	switch {
	case !n.ID.Valid():
		return refuse("the id of " + string(n.Name) + " is none")
	case !r.Contains(n.Address):
		return refuse("the address " + n.Address.String() + " of " + string(n.Name) + " is outside " + r.String())
	case n.Endpoint != "" && !endpoint(n.Endpoint):
		return refuse("the endpoint " + appliance.Quote(n.Endpoint) + " of " + string(n.Name) + " is not host:port")
	}
	return nil
}

// endpoint says whether s is host:port; the host is a name or an address, and nothing that could break out of a line.
func endpoint(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || len(host) > 253 {
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	for _, c := range host {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func refuse(why string) error {
	return appliance.Errorf(appliance.Invalid, "check membership: %s", why)
}
