package appliancetest_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// arguments are good ones for every verb.
func arguments(node appliance.NodeName) map[operators.Verb]any {
	return map[operators.Verb]any{
		operators.TokenCreate: operators.NewToken{}, operators.TokenList: struct{}{}, operators.TokenRevoke: operators.RevokeToken{ID: appliance.NewTokenID()},
		operators.ModuleRegister: operators.RegisterModule{Manifest: []byte(strings.ReplaceAll(app, "VALUE", "x"))}, operators.ModuleList: struct{}{},
		operators.ModuleShow: operators.ShowModule{Module: "mesh-network"}, operators.ModuleAssign: operators.AssignModule{Module: "app", Node: node},
		operators.ModuleUnassign: operators.UnassignModule{Instance: "app", Node: node}, operators.PlanShow: operators.Scope{}, operators.PlanPush: operators.Scope{},
		operators.StatusShow: struct{}{}, operators.OverlayShow: struct{}{}, operators.AuditList: operators.ListAudit{}, operators.NodeCheck: operators.CheckNodes{},
		operators.ModuleStop: operators.SwitchModule{Instance: "app"}, operators.ModuleStart: operators.SwitchModule{Instance: "app"}, operators.ModuleRestart: operators.SwitchModule{Instance: "app"},
		operators.NodeRemove: operators.RemoveNode{Node: node}, operators.NodeReplace: operators.ReplaceNode{Node: node},
		operators.NodeHold: operators.HoldNode{Node: node}, operators.NodeDrain: operators.DrainNode{Node: node}, operators.NodeResume: operators.ResumeNode{Node: node},
		operators.PlanList: operators.ListPlans{Node: node}, operators.PlanRollback: operators.Rollback{Name: string(node)},
		operators.ModuleRemove: operators.RemoveModule{Module: "app"},
		operators.NodeConverge: operators.ConvergeNode{Node: node},
		operators.SettingSet:   operators.SetSetting{Module: "site", Name: "title", Value: "x"}, operators.SettingUnset: operators.UnsetSetting{Module: "site", Name: "title"},
		operators.SessionExec:   operators.OpenSession{},
		operators.ModulePurge:   operators.PurgeData{Instance: "app", Node: node},
		operators.SettingList:   operators.ListSettings{Module: "mesh-network"},
		operators.ArtifactGrant: operators.GrantPush{Module: "app"}, operators.ArtifactList: operators.ListArtifacts{}, operators.ArtifactShow: operators.ShowArtifact{}, // of one that is there
	}
}

// OP-2: what a viewer may not is refused and changes nothing; what it may works. Every change is audited with who, what, before and after.
func TestOperators(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	m.Hub.Stop()
	still(t, m)
	watcher := m.AddOperator("watcher", operators.Viewer)
	viewer := m.Dial(watcher)
	given := arguments("hub")
	session := operators.OpenSession{Session: rand.Text(), Node: "hub", Output: wire.InboxPrefix(wire.OperatorUser(watcher.Operator)) + ".r.x", Credit: 1,
		Open: wire.Opening{Instance: "mesh-store", Logs: &wire.Logs{}}}
	given[operators.SessionLogs], given[operators.SessionSend] = session, operators.SendSession{Session: session.Session, Sequence: 1} // verbs come in their order
	given[operators.ArtifactShow] = operators.ShowArtifact{Digest: pushFiles(t, m, "app", "tree", "x").Digest}
	before := records(t, m)
	for _, verb := range operators.Verbs() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		args, ok := given[verb]
		if !ok {
			t.Errorf("%s: no arguments in this test", verb)
		}
		err := viewer.Call(ctx, verb, args, nil)
		cancel()
		allowed := operators.Authorize(operators.Viewer, verb) == nil
		switch {
		case allowed && err != nil:
			t.Errorf("viewer asks %s: %v", verb, err)
		case !allowed && (appliance.KindOf(err) != appliance.Denied || appliance.AsError(err).Hint == ""):
			t.Errorf("viewer asks %s: %v, want a refusal with a way out", verb, err)
		}
	}
	sameRecords(t, "a viewer", before, records(t, m))

	var made operators.CreatedToken
	for _, step := range []struct {
		verb   operators.Verb
		args   any
		result any
		what   string
		before bool
		after  bool
	}{
		{operators.TokenCreate, operators.NewToken{}, &made, "token create", false, true},
		{operators.ModuleRegister, given[operators.ModuleRegister], nil, "module register", false, true},
		{operators.ModuleAssign, given[operators.ModuleAssign], nil, "module assign", false, true},
		{operators.PlanPush, given[operators.PlanPush], nil, "plan approve", true, true},
		{operators.ModuleUnassign, given[operators.ModuleUnassign], nil, "module unassign", true, false},
	} {
		m.Must(step.verb, step.args, step.result)
		var rows []operators.AuditEntry
		m.Must(operators.AuditList, operators.ListAudit{Limit: 1}, &rows)
		r := rows[0]
		if r.Who != "operator admin" || r.What != step.what || r.Subject == "" || r.At.IsZero() || (len(r.Before) > 0) != step.before || (len(r.After) > 0) != step.after {
			t.Errorf("%s: audited as %+v", step.verb, r)
		}
		if secret := must(enrol.Parse(made.Token))(t).Secret; strings.Contains(string(r.After), string(secret[:])) {
			t.Error("the audit holds a token's secret")
		}
	}
	m.Must(operators.TokenRevoke, operators.RevokeToken{ID: made.ID}, nil)
	var rows []operators.AuditEntry
	m.Must(operators.AuditList, operators.ListAudit{Limit: 1}, &rows)
	if rows[0].What != "token revoke" || len(rows[0].Before) == 0 {
		t.Errorf("token revoke: audited as %+v", rows[0])
	}
}

// asker is an operator who seals requests as it likes.
type asker struct {
	t    *testing.T
	c    operators.Credential
	link *bus.Link
}

func newAsker(t *testing.T, c operators.Credential) *asker {
	t.Helper()
	key := must(nkeys.FromSeed([]byte(c.Bus)))(t)
	authority := must(pki.ParseAuthority(c.Authority))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	link := must(bus.Connect(ctx, bus.Options{Endpoints: c.Broker, TLS: pki.ClientTLS(authority, pki.BrokerName(c.Mesh), nil, pki.Clock(nil)),
		User: wire.OperatorUser(c.Operator), Key: key, Wait: true}))(t)
	t.Cleanup(link.Close)
	return &asker{t, c, link}
}

// request seals one; change may spoil it.
func (a *asker) request(reply string, verb operators.Verb, args any, change func(*wire.Header)) []byte {
	a.t.Helper()
	body := must(wire.Encode(operators.Request{Verb: verb, Arguments: must(wire.Encode(args))(a.t)}))(a.t)
	h := wire.Header{Kind: wire.KindRequest, Version: wire.Version, Mesh: a.c.Mesh, From: string(a.c.Operator), To: string(a.c.Mesh),
		Nonce: "nonce" + string(appliance.NewTokenID()), Reply: reply, Time: time.Now()}
	if change != nil {
		change(&h)
	}
	return must(wire.Seal(h, body, a.c.SigningKey()))(a.t)
}

// ask sends data on the verb's subject and gives the answer's error.
func (a *asker) ask(verb operators.Verb, make func(reply string) []byte) error {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 10*time.Second)
	defer cancel()
	data, err := a.link.Request(ctx, wire.RequestSubject(a.c.Operator, string(verb)), func(reply string) ([]byte, error) { return make(reply), nil })
	if err != nil {
		return err
	}
	_, body, err := wire.Open(data, wire.KindAnswer, a.c.Signing)
	if err != nil {
		return err
	}
	var answer operators.Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if answer.Error != nil {
		return answer.Error
	}
	return nil
}

// BUS-9, BUS-14, OP-2: a request counts once, for its verb, from its operator, to this mesh, now, and is answered beneath its own inbox.
func TestForgedRequests(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	m.Hub.Stop()
	register(m, "one")
	a, other := newAsker(t, m.Admin), m.AddOperator("other", operators.Admin)
	still(t, m)
	assignIt := arguments("hub")[operators.ModuleAssign]

	t.Run("refused by name", func(t *testing.T) {
		before := records(t, m)
		for name, tc := range map[string]struct {
			kind   appliance.Kind
			change func(*wire.Header)
		}{
			"too early":            {appliance.Denied, func(h *wire.Header) { h.Time = h.Time.Add(-3 * time.Minute) }},
			"too late":             {appliance.Denied, func(h *wire.Header) { h.Time = h.Time.Add(3 * time.Minute) }},
			"in 1970":              {appliance.Denied, func(h *wire.Header) { h.Time = time.Unix(0, 0) }},
			"no nonce":             {appliance.Invalid, func(h *wire.Header) { h.Nonce = "" }},
			"a long nonce":         {appliance.Invalid, func(h *wire.Header) { h.Nonce = strings.Repeat("n", 65) }},
			"a nonce with a blank": {appliance.Invalid, func(h *wire.Header) { h.Nonce = "a b" }},
		} {
			if err := a.ask(operators.ModuleAssign, func(reply string) []byte { return a.request(reply, operators.ModuleAssign, assignIt, tc.change) }); appliance.KindOf(err) != tc.kind {
				t.Errorf("%s: %v, want %s", name, err, tc.kind)
			}
		}
		if err := a.ask(operators.ModuleList, func(reply string) []byte { return a.request(reply, operators.ModuleAssign, assignIt, nil) }); appliance.KindOf(err) != appliance.Denied {
			t.Errorf("signed for another verb: %v", err)
		}
		for _, verb := range []operators.Verb{"module.explode", "a.b"} {
			if err := a.ask(verb, func(reply string) []byte { return a.request(reply, verb, struct{}{}, nil) }); appliance.KindOf(err) != appliance.NotFound {
				t.Errorf("%s: %v", verb, err)
			}
		}
		sameRecords(t, "a refused request", before, records(t, m))
	})

	t.Run("not answered", func(t *testing.T) {
		before, foreign := records(t, m), m.Bus().ForeignReplies
		heard := func() int { return m.Log.Count("request refused") + int(m.Bus().Undecodable) }
		had := heard()
		reply := wire.InboxPrefix(wire.OperatorUser(a.c.Operator)) + ".r.x"
		good := takeApart(t, a.request(reply, operators.ModuleAssign, assignIt, nil), a.c.SigningKey())
		forged := forgeries(t, good, map[string]ed25519.PrivateKey{"another operator": other.SigningKey(), "a node": m.Hub.Keys.Identity, "the mesh": m.Keys.Signing})
		replies := 0
		for _, foreign := range []string{"_INBOX.controller.r.x", wire.InboxPrefix(wire.OperatorUser(other.Operator)) + ".r.x", "mesh.api." + string(a.c.Operator) + ".plan.push",
			wire.DeclarationSubject(m.Hub.ID), "$JS.API.STREAM.PURGE.CONTROL", reply + ".>", reply + ".*", "_INBOX." + wire.OperatorUser(a.c.Operator), "x y"} {
			forged = append(forged, forgery{"answer to " + foreign, good.with("reply", foreign).sealed()})
			replies++
		}
		for _, f := range forged {
			if err := a.link.Publish(wire.RequestSubject(a.c.Operator, string(operators.ModuleAssign)), f.data); err != nil {
				t.Fatal(err)
			}
			had++
			m.Wait(f.name+" is refused", func() string { return count(heard(), had) })
		}
		sameRecords(t, "a forged request", before, records(t, m))
		if n := m.Bus().ForeignReplies - foreign; n < uint64(replies) {
			t.Errorf("%d answers to others refused and counted, want %d", n, replies)
		}
		t.Logf("%d forged requests", len(forged))
	})

	t.Run("replayed", func(t *testing.T) {
		for verb, args := range map[operators.Verb]any{operators.ModuleAssign: assignIt, operators.TokenCreate: operators.NewToken{}, operators.PlanPush: operators.Scope{},
			operators.ModuleRegister: operators.RegisterModule{Manifest: []byte(strings.ReplaceAll(app, "VALUE", "one"))}} {
			var data []byte
			err := a.ask(verb, func(reply string) []byte {
				data = a.request(reply, verb, args, nil)
				return data
			})
			if err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
			before, refused := records(t, m), m.Log.Count("request refused", "was carried out before")
			for range 3 {
				if err := a.link.Publish(wire.RequestSubject(a.c.Operator, string(verb)), data); err != nil {
					t.Fatal(err)
				}
			}
			m.Wait("replays are refused", func() string { return count(m.Log.Count("request refused", "was carried out before")-refused, 3) })
			sameRecords(t, "a replayed "+string(verb), before, records(t, m))
		}
	})

	// One operator who floods waits for itself, and is told; another is answered meanwhile.
	t.Run("flood", func(t *testing.T) {
		subject := wire.RequestSubject(a.c.Operator, string(operators.StatusShow))
		for range 500 {
			if err := a.link.Publish(subject, a.request("_INBOX."+wire.OperatorUser(a.c.Operator)+".r.x", operators.StatusShow, struct{}{}, nil)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := m.Dial(other).Call(ctx, operators.StatusShow, struct{}{}, nil); err != nil {
			t.Errorf("another operator meanwhile: %v", err)
		}
		m.Wait("the flood ebbs", func() string {
			if err := a.ask(operators.StatusShow, func(reply string) []byte { return a.request(reply, operators.StatusShow, struct{}{}, nil) }); err != nil {
				return err.Error()
			}
			return ""
		})
	})

	// BUS-12: with the store away an operator is told so at once.
	t.Run("store away", func(t *testing.T) {
		m.Database.Away(t)
		err := a.ask(operators.StatusShow, func(reply string) []byte { return a.request(reply, operators.StatusShow, struct{}{}, nil) })
		m.Database.Back(t)
		if !store.IsUnavailable(err) || !strings.Contains(err.Error(), "store") {
			t.Errorf("with the store away: %v", err)
		}
	})
}

// NODE-2: 200 machines claim with one token at once; one is a node, and every other is told by name.
func TestRacingClaims(t *testing.T) {
	const claims = 200
	m := appliancetest.New(t)
	token := m.Token(1)
	var all sync.WaitGroup
	errs := make([]error, claims)
	for i := range claims {
		keys := newKeys(t)
		all.Go(func() {
			_, errs[i] = m.Join(t.Context(), token, appliance.NodeName(fmt.Sprint("n", i)), keys)
		})
	}
	all.Wait()
	won := 0
	for i, err := range errs {
		var e *appliance.Error
		switch {
		case err == nil:
			won++
		case !errors.As(err, &e) || e.Reason != enrol.TokenUsed || e.Hint == "" || e.Next == "":
			t.Errorf("claim %d: %v, want %s and the way out", i, err, enrol.TokenUsed)
		}
	}
	if nodes := must(m.Store.Nodes(t.Context()))(t); won != 1 || len(nodes) != 2 {
		t.Errorf("%d claims won, %d nodes with the hub", won, len(nodes))
	}
	tokens := must(m.Store.Tokens(t.Context()))(t)
	if len(tokens) != 1 || tokens[0].Used != 1 {
		t.Errorf("tokens: %+v", tokens)
	}
}
