package appliancetest_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// say seals what a node says.
func say(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node, kind wire.Kind, sequence uint64, what any) []byte {
	t.Helper()
	return must(wire.Seal(wire.Header{Kind: kind, Version: wire.Version, Mesh: m.ID, From: string(n.ID), To: string(m.ID), Sequence: sequence, Time: time.Now()},
		must(wire.Encode(what))(t), n.Keys.Identity))(t)
}

func alive(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node, run string, sequence uint64) []byte {
	return say(t, m, n, wire.KindAlive, sequence, wire.Alive{Run: run, Machine: "machine", Capabilities: n.Machine.Host().Capabilities(), Digest: m.Node(n.Name).Declared})
}

// account is a good report about the declaration last sent.
func account(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node) wire.Report {
	t.Helper()
	s := m.Node(n.Name)
	return wire.Report{Version: wire.Version, About: &wire.About{Number: must(appliance.ParseNumber(s.Number))(t), Digest: s.Declared},
		Outcomes: []wire.Outcome{{ID: "a/user/a", Instance: "a", Kind: wire.User, Status: wire.Failed, Error: "no"}}}
}

// stored publishes into the stream, again while the sender's share of it is full.
func stored(t *testing.T, m *appliancetest.Mesh, l *bus.Link, subject string, data []byte) {
	t.Helper()
	m.Wait("stored on "+subject, func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := l.PublishStored(ctx, subject, data); err != nil {
			return err.Error()
		}
		return ""
	})
}

// strangers are keys of others in the mesh.
func strangers(m *appliancetest.Mesh, other *appliancetest.Node) map[string]ed25519.PrivateKey {
	return map[string]ed25519.PrivateKey{"another node": other.Keys.Identity, "an operator": m.Admin.SigningKey(), "the mesh": m.Keys.Signing}
}

// BUS-11, BUS-14, NODE-5, SAFE-1, SAFE-2: whatever reaches the controller on a node's own subjects and is not what it should be is set
// aside or refused, counted, and changes no record.
func TestForgedReportsAndAlives(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n, other := m.AddNode("n1"), m.AddNode("n2")
	n.Stop()
	other.Stop()
	m.Hub.Stop()
	still(t, m)
	l := n.Connect()
	last := sequence(t, n)

	t.Run("report", func(t *testing.T) {
		before, dead := records(t, m), len(m.DeadLetters())
		forged := forgeries(t, takeApart(t, say(t, m, n, wire.KindReport, last+1, account(t, m, n)), n.Keys.Identity), strangers(m, other))
		forged = append(forged, absurdReports(t, m, n, last+1)...)
		forged = append(forged, forgery{"another node's", say(t, m, other, wire.KindReport, 99, account(t, m, other))})
		for _, f := range forged {
			stored(t, m, l, wire.ReportSubject(n.ID), f.data)
		}
		m.Wait("all are set aside", func() string { return count(len(m.DeadLetters())-dead, len(forged)) })
		sameRecords(t, "a forged report", before, records(t, m))
		t.Logf("%d forged reports", len(forged))
	})

	t.Run("rekey", func(t *testing.T) {
		before, dead := records(t, m), len(m.DeadLetters())
		good := say(t, m, n, wire.KindRekey, last+1, wire.Rekey{Node: n.ID, Old: n.Keys.Public().Overlay, New: other.Keys.Public().Overlay})
		forged := append(forgeries(t, takeApart(t, good, n.Keys.Identity), strangers(m, other)), forgery{"somebody else's key", good})
		for _, f := range forged {
			stored(t, m, l, wire.RekeySubject(n.ID), f.data)
		}
		m.Wait("all are set aside", func() string { return count(len(m.DeadLetters())-dead, len(forged)) })
		sameRecords(t, "a forged rekey", before, records(t, m))
	})

	t.Run("alive", func(t *testing.T) {
		first := alive(t, m, n, "run-a", 5)
		if err := l.Publish(wire.AliveSubject(n.ID), first); err != nil {
			t.Fatal(err)
		}
		settled(t, m, n, "run-a")
		before, refused := records(t, m), m.Log.Count("alive refused")+int(m.Bus().Undecodable)
		good := takeApart(t, alive(t, m, n, "run-a", 6), n.Keys.Identity)
		forged := append(forgeries(t, good, strangers(m, other)), forgery{"another node's", alive(t, m, other, "run-b", 1)},
			forgery{"no run", say(t, m, n, wire.KindAlive, 7, wire.Alive{})},
			forgery{"a long run", alive(t, m, n, strings.Repeat("r", 5000), 7)},
			forgery{"a digest that is none", say(t, m, n, wire.KindAlive, 7, wire.Alive{Run: "run-a", Digest: "sha256:x"})})
		replayed := 0
		for _, f := range forged {
			if err := l.Publish(wire.AliveSubject(n.ID), f.data); err != nil {
				t.Fatalf("%s: %v", f.name, err)
			}
			if err := l.Publish(wire.AliveSubject(n.ID), first); err != nil { // heard before: not even noted
				t.Fatal(err)
			}
			replayed++
		}
		m.Wait("all are refused", func() string {
			return count(m.Log.Count("alive refused")+int(m.Bus().Undecodable)-refused, len(forged))
		})
		sameRecords(t, "a forged alive", before, records(t, m))
		if m.Node("n1").Clone {
			t.Error("a replayed alive makes the node a clone")
		}
		t.Logf("%d forged alives, %d replayed", len(forged), replayed)
	})

	// NODE-6: a good one moves last_seen, and touches nothing else.
	t.Run("good alive", func(t *testing.T) {
		before := records(t, m, "node_alive")
		seen := m.Node("n1").LastSeen
		if err := l.Publish(wire.AliveSubject(n.ID), alive(t, m, n, "run-c", 1)); err != nil {
			t.Fatal(err)
		}
		settled(t, m, n, "run-c")
		if now := m.Node("n1").LastSeen; !now.After(seen) {
			t.Errorf("last seen %s, before the alive %s", now, seen)
		}
		sameRecords(t, "an alive", before, records(t, m, "node_alive"))
	})

	// BUS-2, NODE-5: the broker itself lets nobody speak on another's subjects.
	t.Run("another's subject", func(t *testing.T) {
		denied := l.Status().Denied
		subjects := []string{wire.AliveSubject(other.ID), wire.ReportSubject(other.ID), wire.RekeySubject(other.ID), wire.DeclarationSubject(n.ID), wire.NoticeSubject(n.ID),
			wire.SubjectMembership, wire.RequestSubject(m.Admin.Operator, "plan.push"), wire.EnrolSubject(appliance.NewTokenID()), wire.SubjectDeadletter,
			"$JS.API.STREAM.PURGE.CONTROL", "_INBOX.controller.r.x"}
		for _, s := range subjects {
			if err := l.Publish(s, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		m.Wait("all are denied", func() string { return count(int(l.Status().Denied-denied), len(subjects)) })
	})
}

// settled waits until the heartbeat loop has recorded a run.
func settled(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node, run string) {
	t.Helper()
	m.Wait("recorded the alive of "+run, func() string {
		for _, known := range must(m.Store.Nodes(t.Context()))(t) {
			if known.ID == n.ID && known.Run != run {
				return "the last recorded is " + known.Run
			}
		}
		return ""
	})
}

// absurdReports are signed by the node itself and say what cannot be.
func absurdReports(t *testing.T, m *appliancetest.Mesh, n *appliancetest.Node, sequence uint64) (all []forgery) {
	add := func(name string, change func(*wire.Report)) {
		r := account(t, m, n)
		change(&r)
		all = append(all, forgery{name, say(t, m, n, wire.KindReport, sequence, r)})
	}
	add("no account and no fact", func(r *wire.Report) { *r = wire.Report{Version: 1} })
	add("an account of nothing", func(r *wire.Report) { r.About = nil })
	add("a digest that is none", func(r *wire.Report) { r.About.Digest = "sha256:x" })
	add("no digest", func(r *wire.Report) { r.About.Digest = "" })
	for _, number := range []appliance.Number{{}, {Epoch: 1}, {Counter: 1}, {Epoch: 1 << 63, Counter: 1}, {Epoch: 1, Counter: 1 << 63}, {Epoch: 1<<64 - 1, Counter: 1<<64 - 1}} {
		add("number "+number.String(), func(r *wire.Report) { r.About.Number = number })
	}
	add("a status that is none", func(r *wire.Report) { r.Outcomes[0].Status = "fine" })
	add("an outcome of nothing", func(r *wire.Report) { r.Outcomes[0].ID = "" })
	add("a long error", func(r *wire.Report) { r.Outcomes[0].Error = strings.Repeat("x", 5000) })
	add("a long drift", func(r *wire.Report) { r.Outcomes[0].Drift = strings.Repeat("x", 5000) })
	add("a long log", func(r *wire.Report) { r.Outcomes[0].Log = make([]string, 51) })
	add("many outcomes", func(r *wire.Report) {
		for range 10_001 {
			r.Outcomes = append(r.Outcomes, wire.Outcome{ID: "i", Status: wire.Applied})
		}
	})
	add("a health that is none", func(r *wire.Report) { r.Health = []wire.Health{{Instance: "a", State: "well"}} })
	add("a warning of a severity that is none", func(r *wire.Report) { r.Warnings = []wire.Warning{{Code: "a", Severity: "fatal"}} })
	carried := func(c ...wire.CarriedPort) func(*wire.Report) {
		return func(r *wire.Report) { r.Facts = &wire.Facts{Carried: &c} }
	}
	add("port 0", carried(wire.CarriedPort{Protocol: "tcp", Part: "a"}))
	add("a protocol that is none", carried(wire.CarriedPort{Port: 1, Protocol: "sctp", Part: "a"}))
	add("a long part", carried(wire.CarriedPort{Port: 1, Protocol: "tcp", Part: strings.Repeat("x", 5000)}))
	add("many ports", carried(make([]wire.CarriedPort, 1001)...))
	all = append(all, forgery{"sequence 0", say(t, m, n, wire.KindReport, 0, account(t, m, n))},
		forgery{"sequence 2^63", say(t, m, n, wire.KindReport, 1<<63, account(t, m, n))},
		forgery{"sequence 2^64-1", say(t, m, n, wire.KindReport, 1<<64-1, account(t, m, n))})
	return all
}

// BUS-13, NODE-6, DEC-3: sequences, superseded accounts, facts, numbers never issued.
func TestReportsAreJudged(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	m.AddNode("n2")
	register(m, "one")
	assign(m, "n1")
	old := account(t, m, n)
	n.Stop()
	l := n.Connect()
	last := sequence(t, n)
	send := func(sequence uint64, r wire.Report) {
		t.Helper()
		stored(t, m, l, wire.ReportSubject(n.ID), say(t, m, n, wire.KindReport, sequence, r))
	}
	m.Push()

	t.Run("superseded", func(t *testing.T) {
		old.Facts = &wire.Facts{Carried: &[]wire.CarriedPort{{Port: 4222, Protocol: "tcp", Part: "broker"}}}
		before := records(t, m, "report", "carried_port", "node_alive")
		send(last+1, old)
		m.Wait("its facts are recorded", func() string {
			if c := must(m.Store.Intent(t.Context()))(t).Carried[n.ID]; len(c) != 1 {
				return fmt.Sprint(c)
			}
			return ""
		})
		if s := m.Node("n1"); s.Current || s.Reported == s.Declared || s.Outcome == "failed" {
			t.Errorf("an account of what the mesh has moved past counts: %+v", s)
		}
		sameRecords(t, "a superseded account", before, records(t, m, "report", "carried_port", "node_alive"))
	})
	t.Run("sequence", func(t *testing.T) {
		good := account(t, m, n)
		good.Outcomes[0].Status = wire.Applied
		send(last+10, good)
		m.Wait("the account is recorded", func() string {
			if s := m.Node("n1"); !s.Current || s.Outcome != "clean" {
				return s.Outcome
			}
			return ""
		})
		before, dead := records(t, m, "node_alive"), len(m.DeadLetters())
		for _, late := range []uint64{last + 1, last + 5, last + 9, last + 10} { // older, and the same again
			send(late, account(t, m, n))
		}
		send(last+11, wire.Report{Version: 1, About: &wire.About{}}) // the marker behind them
		m.Wait("all are heard", func() string { return count(len(m.DeadLetters())-dead, 1) })
		sameRecords(t, "an older report", before, records(t, m, "node_alive"))
	})
	t.Run("never issued", func(t *testing.T) {
		r := account(t, m, n)
		r.About.Number.Counter += 5
		r.About.Digest = appliance.DigestOf([]byte("of another store"))
		send(last+12, r)
		m.Wait("the store is known to be older", func() string {
			for _, w := range m.Node("n1").Warnings {
				if w.Code == "store-older" {
					return ""
				}
			}
			return fmt.Sprint(m.Node("n1").Warnings)
		})
		register(m, "two")
		before := records(t, m, "node_alive")
		err := m.Call(operators.PlanPush, operators.Scope{}, nil)
		if err == nil || !strings.Contains(err.Error(), "n1") || appliance.KindOf(err) != appliance.Conflict {
			t.Errorf("push to a node that is ahead of the records: %v", err)
		}
		sameRecords(t, "a refused push", before, records(t, m, "node_alive"))
		if err := m.Call(operators.PlanPush, operators.Scope{Nodes: []appliance.NodeName{"n2"}}, nil); err != nil {
			t.Errorf("one node's word stops another's push: %v", err)
		}
	})
}

// NODE-6, SAFE-5: a declaration that got lost is sent again after an alive.
func TestLostDeclarationIsSentAgain(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	register(m, "one")
	assign(m, "n1")
	n.Stop()
	m.Push() // nobody hears it
	sent := m.Node("n1").Number
	n.Start()
	m.Current()
	if s := m.Node("n1"); s.Number != sent {
		t.Errorf("declaration %s was issued, %s was sent", s.Number, sent)
	}
	m.Must(operators.ModuleUnassign, operators.UnassignModule{Instance: "app", Node: "n1"}, nil)
	n.Stop()
	m.Push()
	m.StopController() // the new controller's roster is from the records
	n.Start()
	m.StartController()
	m.Current()
}

// NODE-6: two machines under one key are shown, with the way out; once one of them is stopped the other is a node as before.
func TestClone(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	n.Restart() // a machine that comes back is none
	m.Current()
	if m.Node("n1").Clone {
		t.Error("a restarted agent is shown as a clone")
	}
	stop := n.Clone()
	m.Wait("the clone is shown", func() string {
		s := m.Node("n1")
		for _, w := range s.Warnings {
			if s.Clone && w.Code == "clone" && w.Remedy != "" {
				return ""
			}
		}
		return fmt.Sprint(s.Warnings)
	})
	stop()
	register(m, "one")
	assign(m, "n1")
	n.Stop()
	m.Push() // lost
	n.Start()
	m.Wait("the one that is left is heard", func() string {
		if s := m.Node("n1"); !s.Current {
			return "not current"
		}
		return ""
	})
	seen := m.Node("n1").LastSeen
	m.Wait("it is seen", func() string {
		if !m.Node("n1").LastSeen.After(seen) {
			return "not since " + seen.String()
		}
		return ""
	})
}

// NODE-2, NODE-4, SAFE-1: forged hellos and claims spend nothing, make no node, and are answered by name or set aside.
func TestForgedClaims(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	other := m.AddNode("n1")
	other.Stop()
	m.Hub.Stop()
	token := m.Token(1)
	j := m.Joiner(token)
	key := must(token.ClaimKey())(t)
	others := strangers(m, other)
	others["another token"] = must(m.Token(1).ClaimKey())(t)
	user := wire.InboxPrefix(wire.TokenUser(token.ID)) + ".r.x"

	still(t, m)
	heard := func() int { return m.Log.Count("enrolment refused") + int(m.Bus().LetGo) }
	play := func(forged []forgery) {
		t.Helper()
		before, had := records(t, m), heard()
		for _, f := range forged {
			stored(t, m, j, wire.EnrolSubject(token.ID), f.data)
		}
		m.Wait("all are refused", func() string { return count(heard()-had, len(forged)) })
		sameRecords(t, "a forged enrolment", before, records(t, m))
	}
	hello, _, err := enrol.MakeHello(token, user, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	play(forgeries(t, takeApart(t, hello, key), others))

	challenge := enrolChallenge(t, m, j, token)
	keys := newKeys(t)
	can := other.Machine.Host().Capabilities()
	can.State = "/var/lib/mesh"
	claim := must(enrol.MakeClaim(token, challenge, keys, enrol.Claimant{Name: "n2", Capabilities: can}, user, time.Now()))(t)
	good := takeApart(t, claim, key)
	forged := forgeries(t, good, others)
	for name, body := range flips(t, good.body) { // everything that was signed by the identity key
		forged = append(forged, forgery{"flipped " + name, good.saying(body).sealed()})
	}
	play(forged)
	t.Logf("%d forged claims", len(forged))

	// The good one is taken, once.
	stored(t, m, j, wire.EnrolSubject(token.ID), claim)
	m.Wait("the good claim is admitted", func() string {
		if len(must(m.Store.Nodes(t.Context()))(t)) != 3 {
			return "no third node"
		}
		return ""
	})
	still(t, m)
	before := must(m.Store.Nodes(t.Context()))(t)
	for range 3 {
		stored(t, m, j, wire.EnrolSubject(token.ID), claim)
	}
	play([]forgery{{"behind the replays", nil}})
	if d := cmp.Diff(len(before), len(must(m.Store.Nodes(t.Context()))(t))); d != "" {
		t.Error("a replayed claim made a node:", d)
	}
}

func enrolChallenge(t *testing.T, m *appliancetest.Mesh, l *bus.Link, token enrol.Token) wire.Challenge {
	t.Helper()
	var nonce string
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	data, err := l.Request(ctx, wire.EnrolSubject(token.ID), func(reply string) (data []byte, err error) {
		data, nonce, err = enrol.MakeHello(token, reply, time.Now())
		return data, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return must(enrol.OpenChallenge(token, nonce, data, time.Now()))(t)
}
