// Package busauth composes the broker's users from records: who may publish and hear what, as the file that nats-server reads.
// It is pure: the same records give the same bytes. Nothing here connects, stores, or makes a key.
package busauth

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
)

// Records are what the users are composed from. Keys are public user nkeys.
type Records struct {
	Controller Controller       // required
	Holder     appliance.NodeID // required: the node that holds the broker, one of Nodes
	Nodes      []Node
	Tokens     []Token // open ones, and the recently ended, whose joiners are still told why
	Operators  []Operator
	Departed   []Departed
}

// Controller has a user in each account.
type Controller struct{ ControlKey, ModulesKey string }

type Node struct {
	ID  appliance.NodeID
	Bus string
}

type Token struct {
	ID  appliance.TokenID
	Bus string
}

type Operator struct {
	ID  appliance.OperatorID
	Bus string
}

// Departed is a machine that is no node any more, under the bus key it had.
type Departed struct {
	Node appliance.NodeID
	Bus  string
}

// MaxFile bounds the users file in bytes; some 30 000 users.
const MaxFile = 16 << 20

type entry struct {
	kind Kind
	id   string
	key  string
}

// Compose writes the users file. A user whose id does not fit or whose key is missing, invalid or another user's is left out and
// named; a file without the controller's users or the holder's own node is refused (BUS-1).
func Compose(r Records) (file []byte, left []string, err error) {
	c := composer{keys: map[string]string{}}
	c.add(entry{KindController, "", r.Controller.ControlKey}, true)
	c.add(entry{KindControllerModules, "", r.Controller.ModulesKey}, true)
	if len(c.users) < 2 {
		return nil, c.left, refuse("the controller", c.left)
	}
	// Where two records have one key, the holder's counts.
	for _, n := range r.Nodes {
		if n.ID == r.Holder {
			c.add(entry{KindNode, string(n.ID), n.Bus}, n.ID.Valid())
		}
	}
	if len(c.users) < 3 {
		return nil, c.left, refuse("node "+appliance.Quote(string(r.Holder))+", which holds the broker", c.left)
	}
	for _, n := range sorted(r.Nodes, func(n Node) string { return string(n.ID) }) {
		if n.ID != r.Holder {
			c.add(entry{KindNode, string(n.ID), n.Bus}, n.ID.Valid())
		}
	}
	for _, o := range sorted(r.Operators, func(o Operator) string { return string(o.ID) }) {
		c.add(entry{KindOperator, string(o.ID), o.Bus}, o.ID.Valid())
	}
	for _, t := range sorted(r.Tokens, func(t Token) string { return string(t.ID) }) {
		c.add(entry{KindToken, string(t.ID), t.Bus}, t.ID.Valid())
	}
	for _, d := range sorted(r.Departed, func(d Departed) string { return string(d.Node) + d.Bus }) { // last: who has its key by now goes first
		c.add(entry{KindDeparted, string(d.Node), d.Bus}, d.Node.Valid())
	}
	file = c.file()
	if len(file) > MaxFile {
		return nil, c.left, appliance.Errorf(appliance.Invalid, "compose bus users: %d bytes, at most %d", len(file), MaxFile).
			WithHint("revoke tokens and remove nodes that are no longer used")
	}
	return file, c.left, nil
}

func refuse(who string, left []string) error {
	return appliance.Errorf(appliance.Invalid, "compose bus users: %s would not be among them", who).
		WithHint("a users file has the controller and the holder of the broker, or nobody could mend it; left out: " + strings.Join(left, "; "))
}

func sorted[T any](list []T, id func(T) string) []T {
	return slices.SortedStableFunc(slices.Values(list), func(a, b T) int { return cmp.Compare(id(a), id(b)) })
}

type composer struct {
	users []entry
	left  []string
	keys  map[string]string // key to the user that has it
}

func (c *composer) add(e entry, validID bool) {
	name, why := e.kind.User(e.id), ""
	switch {
	case !validID:
		name, why = string(e.kind)+" "+appliance.Quote(e.id), "not an id"
	case e.key == "":
		why = "no bus key"
	case !nkeys.IsValidPublicUserKey(e.key):
		why = "not a user nkey: " + appliance.Quote(e.key)
	case c.keys[e.key] != "":
		why = "its bus key is that of " + c.keys[e.key]
	default:
		c.keys[e.key] = name
		c.users = append(c.users, e)
		return
	}
	c.left = append(c.left, name+": "+why)
}

// file sorts by account and key within what nats-server reads, and natsd too.
func (c *composer) file() []byte {
	var b bytes.Buffer
	b.WriteString("accounts {\n")
	for _, account := range []string{AccountControl, AccountModules} {
		fmt.Fprintf(&b, "  %s {\n    jetstream: enabled\n    users: [\n", account)
		for _, e := range c.users {
			if e.kind.Account() == account {
				fmt.Fprintf(&b, "      {nkey: %q, permissions: {publish: {allow: [%s]}, subscribe: {allow: [%s]}}}\n",
					e.key, quoted(e.kind.Subjects(Publish, e.id)), quoted(e.kind.Subjects(Subscribe, e.id)))
			}
		}
		b.WriteString("    ]\n  }\n")
	}
	b.WriteString("}\n")
	return b.Bytes()
}

func quoted(subjects []string) string { return `"` + strings.Join(subjects, `", "`) + `"` }
