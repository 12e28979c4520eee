package agent

import (
	"os"
	"path/filepath"
	"time"

	"github.com/novox/mesh/appliance/membership"
	"github.com/novox/mesh/appliance/wire"
)

// Members are the nodes of the last membership kept in dir, the agent's folder; none where there is none that the mesh has signed.
func (b Believes) Members(dir string) []wire.Member {
	data, err := os.ReadFile(filepath.Join(dir, "membership"))
	if err != nil {
		return nil
	}
	m, _, err := membership.Open(data, b.Mesh, b.Signing)
	if err != nil {
		return nil
	}
	return m.Members
}

// LastSigned is the latest time that the mesh has signed on anything kept in dir, the agent's folder; zero where there is nothing. No
// clock is believed to be earlier (PKI-7).
func (b Believes) LastSigned(dir string) (last time.Time) {
	for name, kind := range map[string]wire.Kind{"membership": wire.KindMembership, "declaration": wire.KindDeclaration} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		if h, _, err := wire.Open(data, kind, b.Signing); err == nil && h.Time.After(last) {
			last = h.Time
		}
	}
	return last
}
