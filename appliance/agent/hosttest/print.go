package hosttest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
)

// String gives the machine as the commands that would make it, sorted within each kind; root and an empty machine print nothing.
func (m *Machine) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(m.packages)) {
		lines = append(lines, "apt-get install "+name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.users)) {
		if name != "root" {
			lines = append(lines, fmt.Sprintf("useradd --system --home-dir %s %s", m.users[name], name))
		}
	}
	lines = append(lines, overlayCommands(m.overlay)...)
	if m.trusts {
		lines = append(lines, "update-ca-certificates # with the mesh's")
	}
	for _, path := range slices.Sorted(maps.Keys(m.paths)) {
		lines = append(lines, m.paths[path].command(path))
	}
	for _, path := range slices.Sorted(maps.Keys(m.trees)) {
		lines = append(lines, unpack(path, m.trees[path]))
	}
	for _, id := range slices.Sorted(maps.Keys(m.processes)) {
		p := m.processes[id]
		word := map[string]string{"running": "start", "backoff": "restart"}[p.running.State]
		if word == "" {
			word = "stop"
		}
		lines = append(lines, fmt.Sprintf("systemctl %s %s # %s", word, unit(id), p.line()))
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

func (e Entry) command(path string) string {
	if e.Folder {
		return fmt.Sprintf("install -d -o %s -g %s -m %s %s", e.Owner, e.Group, e.Mode, path)
	}
	return fmt.Sprintf("install -o %s -g %s -m %s %s # %d bytes, %s", e.Owner, e.Group, e.Mode, path, len(e.Content),
		appliance.DigestOf([]byte(e.Content)).Short())
}

// overlayCommands has one line per fact, so that the difference of two states is the difference of their lines.
func overlayCommands(o host.OverlayState) []string {
	if !o.Address.IsValid() {
		return nil
	}
	device := fmt.Sprintf("wg set mesh listen-port %d", o.Port)
	if o.Relay {
		device += " # relay"
	}
	lines := []string{"ip address add " + o.Address.String() + " dev mesh", device}
	var peers []string
	for _, p := range o.Peers {
		line := "wg set mesh peer " + p.Key
		if p.Endpoint != "" {
			line += " endpoint " + p.Endpoint
		}
		if p.Keepalive != 0 {
			line += fmt.Sprintf(" persistent-keepalive %d", int(p.Keepalive.Seconds()))
		}
		for i, a := range p.Allowed {
			line += map[bool]string{true: " allowed-ips ", false: ","}[i == 0] + a.String()
		}
		peers = append(peers, line)
	}
	slices.Sort(peers)
	lines = append(lines, peers...)
	for _, name := range slices.Sorted(maps.Keys(o.Hosts)) {
		lines = append(lines, fmt.Sprintf("echo %s %s.internal >> /etc/hosts", o.Hosts[name], name))
	}
	return lines
}

// unit is the process's name on a command line: the id's instance and name.
func unit(id string) string {
	return strings.ReplaceAll(strings.Replace(id, "/process/", "-", 1), "/", "-")
}
