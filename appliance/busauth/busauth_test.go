package busauth_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/natsd"
)

var update = flag.Bool("update", false, "write the golden files")

// key is the public nkey made of one byte.
func key(t testing.TB, seed byte) string {
	t.Helper()
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, []byte(strings.Repeat(string(rune(seed)), 32)))
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

const (
	hub      = appliance.NodeID("naaaaaaaaaaaaaaa")
	nodeB    = appliance.NodeID("nbbbbbbbbbbbbbbb")
	nodeC    = appliance.NodeID("nccccccccccccccc")
	tokenA   = appliance.TokenID("taaaaaaaaaaaaaaa")
	tokenB   = appliance.TokenID("tbbbbbbbbbbbbbbb")
	operator = appliance.OperatorID("oaaaaaaaaaaaaaaa")
	otherOp  = appliance.OperatorID("obbbbbbbbbbbbbbb")
)

func records(t testing.TB) busauth.Records {
	return busauth.Records{
		Controller: busauth.Controller{ControlKey: key(t, 'c'), ModulesKey: key(t, 'm')},
		Holder:     hub,
		Nodes:      []busauth.Node{{nodeB, key(t, 'b')}, {hub, key(t, 'h')}},
		Tokens:     []busauth.Token{{tokenA, key(t, 't')}},
		Operators:  []busauth.Operator{{operator, key(t, 'o')}},
		Departed:   []busauth.Departed{{nodeC, key(t, 'd')}, {nodeB, key(t, 'e')}}, // removed; replaced by the one that is there
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// BUS-1: the same records give the same file, in whatever order they come, and the broker takes it.
func TestCompose(t *testing.T) {
	r := records(t)
	file, left, err := busauth.Compose(r)
	if err != nil || len(left) != 0 {
		t.Fatal(err, left)
	}
	golden(t, "users.conf", file)
	if err := natsd.Validate(file, r.Controller.ControlKey, r.Controller.ModulesKey, r.Nodes[1].Bus); err != nil {
		t.Error(err)
	}
	slices.Reverse(r.Nodes)
	slices.Reverse(r.Departed)
	again, _, err := busauth.Compose(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(file), string(again)); diff != "" {
		t.Errorf("another order of the records, another file:\n%s", diff)
	}
}

// BUS-1, SAFE-4: users without a proper credential are left out and named; nobody else is disturbed.
func TestLeftOut(t *testing.T) {
	r := records(t)
	whole, _, err := busauth.Compose(r)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := nkeys.FromRawSeed(nkeys.PrefixByteAccount, []byte(strings.Repeat("x", 32)))
	if err != nil {
		t.Fatal(err)
	}
	account, err := seed.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	r.Nodes = append(r.Nodes, busauth.Node{nodeC, ""}, busauth.Node{"n*", key(t, 'x')}, busauth.Node{"", key(t, 'y')})
	r.Tokens = append(r.Tokens, busauth.Token{tokenB, "\"}]\ninclude \"/etc/shadow\""})
	r.Departed = append(r.Departed, busauth.Departed{nodeC, r.Nodes[0].Bus}) // it has joined anew under the key it had
	r.Operators = append(r.Operators, busauth.Operator{otherOp, account}, busauth.Operator{"obbbbbbbbbbbbbb2", r.Nodes[1].Bus})
	file, left, err := busauth.Compose(r)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(whole), string(file)); diff != "" {
		t.Errorf("the file differs:\n%s", diff)
	}
	want := []string{
		`node "": not an id`,
		`node "n*": not an id`,
		"node-nccccccccccccccc: no bus key",
		"operator-obbbbbbbbbbbbbb2: its bus key is that of node-naaaaaaaaaaaaaaa",
		"operator-obbbbbbbbbbbbbbb: not a user nkey: " + strconv.Quote(account),
		`token-tbbbbbbbbbbbbbbb: not a user nkey: "\"}]\ninclude \"/etc/shadow\""`,
		"node-nccccccccccccccc: its bus key is that of node-nbbbbbbbbbbbbbbb",
	}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
}

// BUS-1, SAFE-1: a file that lacks the controller or the holder's node is refused.
func TestRefused(t *testing.T) {
	for name, spoil := range map[string]func(*busauth.Records){
		"nobody":                    func(r *busauth.Records) { *r = busauth.Records{} },
		"no controller":             func(r *busauth.Records) { r.Controller.ControlKey = "" },
		"no controller in MODULES":  func(r *busauth.Records) { r.Controller.ModulesKey = "" },
		"one key in both accounts":  func(r *busauth.Records) { r.Controller.ModulesKey = r.Controller.ControlKey },
		"no holder":                 func(r *busauth.Records) { r.Holder = "" },
		"holder is no node":         func(r *busauth.Records) { r.Holder = nodeC },
		"holder without key":        func(r *busauth.Records) { r.Nodes[1].Bus = "" },
		"holder with another's key": func(r *busauth.Records) { r.Nodes[1].Bus = r.Controller.ControlKey },
		"holder's key is no user's": func(r *busauth.Records) { r.Nodes[1].Bus = "U" },
	} {
		r := records(t)
		spoil(&r)
		file, _, err := busauth.Compose(r)
		if err == nil || file != nil || appliance.KindOf(err) != appliance.Invalid || appliance.AsError(err).Hint == "" {
			t.Errorf("%s: file of %d bytes, error %v", name, len(file), err)
		}
	}
}

var kinds = []struct {
	kind busauth.Kind
	id   string
}{
	{busauth.KindController, ""}, {busauth.KindNode, string(nodeB)}, {busauth.KindToken, string(tokenA)},
	{busauth.KindOperator, string(operator)}, {busauth.KindDeparted, string(nodeB)}, {busauth.KindControllerModules, ""},
}

// BUS-2: the whole matrix as a table for a person to read: P publish, S subscribe.
func TestMatrix(t *testing.T) {
	var rows []string
	cells := map[string]map[busauth.Kind]string{}
	for _, k := range kinds {
		for _, c := range busauth.Matrix(k.kind, k.id, busauth.Others{Node: hub, Token: tokenB, Operator: otherOp}) {
			if cells[c.Row] == nil {
				cells[c.Row] = map[busauth.Kind]string{}
				rows = append(rows, c.Row)
			}
			mark := "-"
			if c.Allowed {
				mark = strings.ToUpper(string(c.Verb[0]))
			}
			cells[c.Row][k.kind] += mark
		}
	}
	slices.Sort(rows)
	var b strings.Builder
	fmt.Fprintf(&b, "%-75s", "")
	for _, k := range kinds {
		fmt.Fprintf(&b, " %s", k.kind)
	}
	b.WriteString("\n")
	for _, row := range rows {
		line := fmt.Sprintf("%-75s", row)
		for _, k := range kinds {
			line += fmt.Sprintf(" %-*s", len(k.kind), cells[row][k.kind])
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	golden(t, "matrix.txt", []byte(b.String()))
}

// BUS-2, BUS-11: every subject and stream that wire knows has its rows, and every kind of user is asked about.
func TestMatrixIsWhole(t *testing.T) {
	for prefix, have := range map[string][]string{"Subject": busauth.Subjects, "Stream": busauth.Streams} {
		want := constants(t, "../wire/subjects.go", prefix)
		if len(want) == 0 {
			t.Fatalf("wire has no constant %s…", prefix)
		}
		slices.Sort(want)
		have = slices.Sorted(slices.Values(have))
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("constants %s… of wire against the matrix (-wire +matrix):\n%s", prefix, diff)
		}
	}
	var asked []busauth.Kind
	for _, k := range kinds {
		asked = append(asked, k.kind)
	}
	if diff := cmp.Diff(busauth.Kinds, asked); diff != "" {
		t.Error(diff)
	}
	// The grants of the list are by full name, each with its consumer's acknowledgement (BUS-11).
	publish, subscribe := busauth.KindController.Subjects(busauth.Publish, ""), busauth.KindController.Subjects(busauth.Subscribe, "")
	for _, f := range wire.FollowedSubjects {
		if f.Consumer == "" {
			if !slices.Contains(subscribe, f.Subject) {
				t.Errorf("the controller may not hear %s", f.Subject)
			}
			continue
		}
		for _, want := range []string{
			"$JS.ACK.CONTROL." + f.Consumer + ".>", "$JS.API.CONSUMER.MSG.NEXT.CONTROL." + f.Consumer,
			"$JS.API.CONSUMER.CREATE.CONTROL." + f.Consumer + "." + f.Subject,
		} {
			if !slices.Contains(publish, want) {
				t.Errorf("the controller may not publish %s", want)
			}
		}
	}
}

// BUS-2: what a user may do is what wire's own functions name.
func TestRightsNameTheUsersOwn(t *testing.T) {
	for _, c := range []struct {
		kind busauth.Kind
		id   string
		verb busauth.Verb
		want []string
	}{
		{busauth.KindNode, string(nodeB), busauth.Publish, []string{wire.AliveSubject(nodeB), wire.RekeySubject(nodeB), wire.ReportSubject(nodeB), wire.OutputSubject(nodeB)}},
		{busauth.KindNode, string(nodeB), busauth.Subscribe, []string{
			wire.InboxPrefix(wire.NodeUser(nodeB)) + ".>", wire.SubjectMembership, wire.DeclarationSubject(nodeB), wire.NoticeSubject(nodeB), wire.AskSubject(nodeB)}},
		{busauth.KindToken, string(tokenA), busauth.Publish, []string{wire.EnrolSubject(tokenA)}},
		{busauth.KindToken, string(tokenA), busauth.Subscribe, []string{wire.InboxPrefix(wire.TokenUser(tokenA)) + ".>"}},
		{busauth.KindOperator, string(operator), busauth.Publish, []string{wire.RequestSubject(operator, "*.*")}},
		{busauth.KindOperator, string(operator), busauth.Subscribe, []string{wire.InboxPrefix(wire.OperatorUser(operator)) + ".>"}},
		{busauth.KindDeparted, string(nodeB), busauth.Publish, []string{wire.AliveSubject(nodeB)}}, // NODE-8
		{busauth.KindDeparted, string(nodeB), busauth.Subscribe, []string{wire.NoticeSubject(nodeB)}},
	} {
		slices.Sort(c.want)
		if diff := cmp.Diff(c.want, c.kind.Subjects(c.verb, c.id)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.kind, c.verb, diff)
		}
	}
}

func constants(t *testing.T, path, prefix string) (values []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if !strings.HasPrefix(v.Names[0].Name, prefix) {
				continue
			}
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, text)
		}
	}
	return values
}
