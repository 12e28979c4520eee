package resolver

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/novox/mesh/appliance"
)

// ttl is how long an answer may be remembered, in seconds: a node's address may change with the next membership.
const ttl = 5

// names are the mesh's own.
type names struct {
	domain string // lower case, no dots at the ends
	hosts  map[appliance.NodeName]netip.Addr
}

// answer gives what is said to q; nil where that is not the mesh's to say.
func (n names) answer(q *dns.Msg) *dns.Msg {
	a := new(dns.Msg)
	if len(q.Question) != 1 || q.Opcode != dns.OpcodeQuery || q.Response {
		return a.SetRcode(q, dns.RcodeRefused)
	}
	question := q.Question[0]
	name := strings.ToLower(question.Name)
	within, ours := strings.CutSuffix("."+name, "."+n.domain+".")
	if !ours {
		return nil
	}
	a.SetReply(q)
	a.Authoritative, a.RecursionAvailable = true, true
	addr, known := n.find(strings.TrimPrefix(within, "."))
	header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: ttl}
	switch {
	case !known:
		a.Rcode = dns.RcodeNameError
	case question.Qclass != dns.ClassINET:
	case question.Qtype == dns.TypeA && addr.Is4():
		a.Answer = append(a.Answer, &dns.A{Hdr: header, A: addr.AsSlice()})
	case question.Qtype == dns.TypeAAAA && addr.Is6():
		a.Answer = append(a.Answer, &dns.AAAA{Hdr: header, AAAA: addr.AsSlice()})
	}
	if len(a.Answer) == 0 { // how long the no may be remembered
		zone := n.domain + "."
		a.Ns = append(a.Ns, &dns.SOA{Hdr: dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
			Ns: zone, Mbox: "nobody." + zone, Serial: 1, Refresh: ttl, Retry: ttl, Expire: ttl, Minttl: ttl})
	}
	return a
}

// find gives the address behind <node> or <instance>.<node>; the domain itself is known, without an address.
func (n names) find(within string) (addr netip.Addr, known bool) {
	if within == "" {
		return addr, true
	}
	instance, node, beneath := strings.Cut(within, ".")
	if !beneath {
		instance, node = "instance", within
	}
	if _, err := appliance.ParseName[appliance.InstanceName]("instance", instance); err != nil {
		return addr, false
	}
	addr, known = n.hosts[appliance.NodeName(node)]
	return addr.Unmap(), known
}
