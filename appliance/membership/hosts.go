package membership

import (
	"bytes"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
)

// Domain is the last label of every mesh-internal name.
const Domain = "internal"

const (
	hostsBegin = "# mesh: begin, written by the mesh; changes here are lost"
	hostsEnd   = "# mesh: end"
	// hostsAfter goes on hostsBegin where the file's last line had no end and got one: without the block it has none again.
	hostsAfter = "; the line above had no end"
)

// HostsBlock gives the marked block for a hosts file: a line per node, by name. Nothing for no hosts.
func HostsBlock(hosts map[appliance.NodeName]netip.Addr, domain string) []byte {
	if len(hosts) == 0 {
		return nil
	}
	var b bytes.Buffer
	b.WriteString(hostsBegin + "\n")
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		b.WriteString(hosts[name].String() + " " + string(name) + "." + domain + "\n")
	}
	b.WriteString(hostsEnd + "\n")
	return b.Bytes()
}

// ourLine is what HostsBlock writes between the marks. It is asked only where the end mark is lost.
var ourLine = regexp.MustCompile(`^[0-9a-f.:]+ [a-z][a-z0-9-]*\.` + Domain + `\n?$`)

// ReplaceHosts gives the file with block in place of the block that is there, or at the end where none is. An empty block removes it, and
// the file is again what it was before the first. Every other line stays byte for byte; doing it twice gives the same as once.
func ReplaceHosts(existing, block []byte) []byte {
	out := make([]byte, 0, len(existing)+len(block)+len(hostsAfter)+1)
	placed := len(block) == 0
	lines := slices.Collect(bytes.Lines(existing))
	for i := 0; i < len(lines); i++ {
		if !begins(lines[i]) {
			out = append(out, lines[i]...)
			continue
		}
		after := strings.HasSuffix(mark(lines[i]), hostsAfter)
		if !placed {
			out, placed = append(out, opened(block, after)...), true
		}
		i = lastOfBlock(lines, i)
		if len(block) == 0 && after && i == len(lines)-1 {
			out = bytes.TrimSuffix(out, []byte("\n"))
		}
	}
	if !placed {
		after := len(out) > 0 && out[len(out)-1] != '\n'
		if after {
			out = append(out, '\n')
		}
		out = append(out, opened(block, after)...)
	}
	return out
}

// opened is the block with the first line that fits what is above it.
func opened(block []byte, after bool) []byte {
	if rest, ok := bytes.CutPrefix(block, []byte(hostsBegin)); ok && after {
		return slices.Concat([]byte(hostsBegin+hostsAfter), rest)
	}
	return block
}

func begins(line []byte) bool { m := mark(line); return m == hostsBegin || m == hostsBegin+hostsAfter }

// lastOfBlock finds the end mark of the block that begins at i. Where the end is lost (a write cut short), the block ends with the last
// line that can only be ours.
func lastOfBlock(lines [][]byte, i int) int {
	for j := i + 1; j < len(lines); j++ {
		switch {
		case mark(lines[j]) == hostsEnd:
			return j
		case begins(lines[j]):
			j = len(lines)
		}
	}
	for i+1 < len(lines) && ourLine.Match(lines[i+1]) {
		i++
	}
	return i
}

func mark(line []byte) string { return strings.TrimRight(string(line), "\r\n") }
