package resolver

import (
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
)

const (
	maxUpstreams     = 3 // as the C library
	maxUpstreamsFile = 64 << 10
	oneUpstream      = 2 * time.Second // before the next is asked
)

// forward asks the machine's own resolvers in turn, never the one at self.
func (r *Resolver) forward(q *dns.Msg, stream bool, self netip.Addr) *dns.Msg {
	client := dns.Client{Net: "udp", Timeout: oneUpstream, UDPSize: maxPacket}
	if stream {
		client.Net = "tcp"
	}
	for _, upstream := range r.upstreams(self) {
		ask := q.Copy()
		ask.Id = dns.Id()
		answer, _, err := client.Exchange(ask, net.JoinHostPort(upstream, "53"))
		if err == nil && answer.Rcode != dns.RcodeServerFailure && answer.Rcode != dns.RcodeRefused {
			answer.Id = q.Id
			return answer
		}
	}
	failed := new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	failed.RecursionAvailable = true
	return failed
}

// upstreams reads them anew each time: networks come and go beneath an agent.
func (r *Resolver) upstreams(self netip.Addr) []string {
	path := r.Upstreams
	if path == "" {
		path = "/etc/resolv.conf"
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Size() > maxUpstreamsFile {
		return nil
	}
	config, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil
	}
	var found []string
	for _, server := range config.Servers {
		if at, err := netip.ParseAddr(server); err == nil && at.Unmap() != self && len(found) < maxUpstreams {
			found = append(found, server)
		}
	}
	return found
}

// mayAsk says whether the question comes from the overlay, this machine, or a bridge of this machine, as containers' do. Everyone else
// could reach the address through this machine, too, and gets no answer.
func mayAsk(from netip.Addr, at netip.Prefix) bool {
	if at.Contains(from) || from.IsLoopback() {
		return true
	}
	routes, err := netlink.RouteGet(from.AsSlice())
	if err != nil || len(routes) == 0 {
		return false
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	return err == nil && (link.Type() == "bridge" || link.Attrs().Flags&net.FlagLoopback != 0)
}
