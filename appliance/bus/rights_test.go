package bus_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/wire"
)

// BUS-2: the real broker answers every cell of the matrix as the table says.
func TestBrokerHoldsTheMatrix(t *testing.T) {
	c := bustest.NewCast(t)
	node, other := c.AddNode(t), c.AddNode(t)
	token, otherToken := c.AddToken(t), c.AddToken(t)
	operator, otherOperator := c.AddOperator(t), c.AddOperator(t)
	c.AddDeparted(t, node)
	s := bustest.Start(t, c.Records)
	s.Controller(t, c)
	for _, u := range []struct {
		kind busauth.Kind
		id   string
		key  string
	}{
		{busauth.KindController, "", wire.ControllerUser},
		{busauth.KindControllerModules, "", bustest.ModulesController},
		{busauth.KindNode, string(node), wire.NodeUser(node)},
		{busauth.KindToken, string(token), wire.TokenUser(token)},
		{busauth.KindOperator, string(operator), wire.OperatorUser(operator)},
		{busauth.KindDeparted, string(node), "departed-" + string(node)},
	} {
		cells := busauth.Matrix(u.kind, u.id, busauth.Others{Node: other, Token: otherToken, Operator: otherOperator})
		d := newDenials()
		nc := s.Raw(t, c, u.key, nats.ErrorHandler(d.note))
		for _, cell := range cells {
			var err error
			switch cell.Verb {
			case busauth.Publish:
				err = nc.Publish(cell.Subject, nil)
			case busauth.Subscribe:
				_, err = nc.SubscribeSync(cell.Subject)
			}
			if err != nil {
				t.Fatal(cell, err)
			}
		}
		// Denials come in the order of what was asked: after the last one all have come.
		d.after(t, nc)
		want, got := map[string]bool{}, map[string]bool{}
		for _, cell := range cells {
			name := string(cell.Verb) + " " + cell.Row + " as " + cell.Subject
			want[name] = cell.Allowed
			got[name] = !d.has(cell.Verb, cell.Subject)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-matrix +broker):\n%s", u.kind, diff)
		}
	}
}

// denials are what the broker refused one client.
type denials struct {
	mu   sync.Mutex
	seen map[string]bool
}

func newDenials() *denials { return &denials{seen: map[string]bool{}} }

func (d *denials) note(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, text, _ := strings.Cut(err.Error(), "Permissions Violation for ")
	d.seen[text] = true
}

func (d *denials) has(verb busauth.Verb, subject string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	what := `Publish to "`
	if verb == busauth.Subscribe {
		what = `Subscription to "`
	}
	return d.seen[what+subject+`"`]
}

// hasReply says whether a publish was refused for the reply it named.
func (d *denials) hasReply(reply string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[`Publish with Reply of "`+reply+`"`]
}

// after returns when everything sent so far has been judged.
func (d *denials) after(t testing.TB, nc *nats.Conn) {
	t.Helper()
	const sentinel = "nobody.may"
	d.mu.Lock()
	delete(d.seen, `Publish to "`+sentinel+`"`)
	d.mu.Unlock()
	if err := nc.Publish(sentinel, nil); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !d.has(busauth.Publish, sentinel); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the broker says nothing about a denied subject")
		}
	}
}
