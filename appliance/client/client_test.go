package client_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

// BUS-14: an operator believes only what the mesh has signed, for it, about the request it made; and is told by kind what failed.
func TestAnswers(t *testing.T) {
	m := appliancetest.New(t)
	operator := m.Dial(m.Admin)
	ask := func(result any) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return operator.Call(ctx, operators.ModuleShow, operators.ShowModule{Module: "mesh-network"}, result)
	}
	var module operators.Module
	if err := ask(&module); err != nil || module.Name != "mesh-network" {
		t.Fatalf("%+v, %v", module, err)
	}
	m.StopController()
	if err := ask(nil); appliance.KindOf(err) != appliance.Unavailable || appliance.AsError(err).Next == "" {
		t.Errorf("nobody answers: %v", err)
	}

	impostor := m.Impostor()
	_, stranger, _ := ed25519.GenerateKey(rand.Reader)
	type answer struct {
		header wire.Header
		body   []byte
		key    ed25519.PrivateKey
	}
	var play sync.Mutex
	var spoil func(*answer)
	var raw func([]byte) []byte
	var last []byte
	say := func(s func(*answer), r func([]byte) []byte) {
		play.Lock()
		defer play.Unlock()
		spoil, raw = s, r
	}
	_, err := impostor.Subscribe(wire.SubjectRequests, func(msg bus.Message) {
		play.Lock()
		defer play.Unlock()
		a := answer{wire.Header{Kind: wire.KindAnswer, Version: wire.Version, Mesh: m.ID, From: string(m.ID), To: string(m.Admin.Operator), Nonce: msg.Header.Nonce, Time: time.Now()},
			[]byte(`{"result":{"name":"forged"}}`), m.Keys.Signing}
		if spoil != nil {
			spoil(&a)
		}
		data, err := wire.Seal(a.header, a.body, a.key)
		if raw != nil {
			data = raw(data)
		}
		if last = data; err == nil {
			err = impostor.Answer(wire.OperatorUser(m.Admin.Operator), msg.Header.Reply, data)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(&module); err != nil || module.Name != "forged" { // the play itself works
		t.Fatalf("%+v, %v", module, err)
	}
	play.Lock()
	before := bytes.Clone(last)
	play.Unlock()
	for name, f := range map[string]func(*answer){
		"signed by a stranger":   func(a *answer) { a.key = stranger },
		"signed by the operator": func(a *answer) { a.key = m.Admin.SigningKey() },
		"signed by a node":       func(a *answer) { a.key = m.Hub.Keys.Identity },
		"of another kind":        func(a *answer) { a.header.Kind = wire.KindRefusal },
		"of another mesh":        func(a *answer) { a.header.Mesh = appliance.NewMeshID() },
		"to another operator":    func(a *answer) { a.header.To = string(appliance.NewOperatorID()) },
		"to another request":     func(a *answer) { a.header.Nonce = "other" },
		"without a nonce":        func(a *answer) { a.header.Nonce = "" },
	} {
		say(f, nil)
		module = operators.Module{}
		if err := ask(&module); appliance.KindOf(err) != appliance.Denied || module.Name != "" {
			t.Errorf("%s: %v, read %+v", name, err, module)
		}
	}
	for name, f := range map[string]func([]byte) []byte{
		"nothing": func([]byte) []byte { return nil }, "half": func(b []byte) []byte { return b[:len(b)/2] }, "more": func(b []byte) []byte { return append(b, '!') },
		"an earlier answer": func([]byte) []byte { return before }, "rubbish": func([]byte) []byte { return []byte(strings.Repeat("x", 1000)) },
	} {
		say(nil, f)
		if err := ask(nil); appliance.KindOf(err) != appliance.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	for body, kind := range map[string]appliance.Kind{
		`{"error":{"kind":"conflict","error":"taken","next":"mesh x"}}`: appliance.Conflict, `{"result":17}`: appliance.Invalid, `17`: appliance.Denied, ``: appliance.Denied,
	} {
		say(func(a *answer) { a.body = []byte(body) }, nil)
		if err := ask(&module); appliance.KindOf(err) != kind {
			t.Errorf("answer %s: %v, want %s", body, err, kind)
		}
	}
}

// SAFE-1: a credential that leads nowhere says so, with the way out, and does not hang.
func TestDial(t *testing.T) {
	m := appliancetest.New(t)
	for name, tc := range map[string]struct {
		kind  appliance.Kind
		spoil func(*operators.Credential)
	}{
		"damaged bus key":      {appliance.Invalid, func(c *operators.Credential) { c.Bus = "SU" }},
		"damaged authority":    {appliance.Invalid, func(c *operators.Credential) { c.Authority = []byte("x") }},
		"another mesh":         {appliance.Unavailable, func(c *operators.Credential) { c.Mesh = appliance.NewMeshID() }},
		"nobody there":         {appliance.Unavailable, func(c *operators.Credential) { c.Broker = []string{"127.0.0.1:1"} }},
		"a user nobody let in": {appliance.Unavailable, func(c *operators.Credential) { c.Bus = m.Stranger().Bus }},
	} {
		c := m.Admin
		tc.spoil(&c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := client.Dial(ctx, c, nil)
		cancel()
		if e := appliance.AsError(err); err == nil || e.Kind != tc.kind || e.Kind == appliance.Unavailable && (e.Hint == "" || e.Next == "") {
			t.Errorf("%s: %v, want %s and a way out", name, err, tc.kind)
		}
	}
}
