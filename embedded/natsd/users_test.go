package natsd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// BUS-1, BUS-2, SAFE-1, SAFE-3: what a users file may not say is refused by
// name and changes nothing.
func TestRefusedFiles(t *testing.T) {
	cfg := config(t.TempDir())
	s := start(t, cfg)
	a := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	setUsers(t, s, a)
	c := connect(t, s, a)
	accepted := string(compose(a))
	outside := filepath.Join(t.TempDir(), "other.conf")
	if err := os.WriteFile(outside, []byte(accepted), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MESH_TEST_SUBJECT", "a")

	const perms = `permissions: {publish: {allow: ["a"]}, subscribe: {allow: ["a"]}}`
	user := `{nkey: "` + a.nkey + `", ` + perms + `}`
	in := func(users string) string { return `accounts { CONTROL { users: [ ` + users + ` ] } }` }
	with := func(p string) string { return in(`{nkey: "` + a.nkey + `", permissions: {` + p + `}}`) }
	for name, file := range map[string]struct{ text, want string }{
		"empty":               {"", "accounts"},
		"no user":             {`accounts { CONTROL { users: [] }, MODULES { users: [] } }`, "no user at all (BUS-1)"},
		"no accounts' users":  {`accounts { CONTROL { }, MODULES { } }`, "no user at all"},
		"unknown account":     {`accounts { OTHER { users: [ ` + user + ` ] } }`, `"OTHER"`},
		"quoted account":      {`accounts { "OTHER" { users: [ ` + user + ` ] } }`, `"OTHER" is not allowed`},
		"system account":      {`accounts { "$SYS" { users: [ ` + user + ` ] } }`, `$SYS`},
		"system account name": {`"system_account": "CONTROL", ` + in(user), `"system_account" is not allowed`},
		"other setting":       {`"http": "8222"` + "\n" + in(user), `"http" is not allowed`},
		"user name":           {in(`{"user": "u", "password": "p"}`), `"password" is not allowed|"user" is not allowed`},
		"nkey and password":   {in(`{nkey: "` + a.nkey + `", "password": "p", ` + perms + `}`), `"password" is not allowed`},
		"token":               {in(`{"token": "t"}`), `"token" is not allowed`},
		"no nkey":             {in(`{` + perms + `}`), "no valid user nkey (BUS-3)"},
		"empty nkey":          {in(`{nkey: "", ` + perms + `}`), "no valid user nkey"},
		"account's nkey":      {in(`{nkey: "ABJHLOVMPA4CI6R5KLNGOB4GSLNIY7IOUPAJC4YFNDLQVIOBYQGUWVLA", ` + perms + `}`), "no valid user nkey"},
		"no permissions":      {in(`{nkey: "` + a.nkey + `"}`), "publish.allow names nothing"},
		"only publish":        {with(`publish: {allow: ["a"]}`), "subscribe.allow names nothing"},
		"empty list":          {with(`publish: {allow: []}, subscribe: {allow: ["a"]}`), "publish.allow names nothing"},
		"empty map":           {with(`publish: {}, subscribe: {allow: ["a"]}`), "publish.allow names nothing"},
		"deny":                {with(`publish: {allow: ["a"], "deny": ["b"]}, subscribe: {allow: ["a"]}`), `"deny" is not allowed`},
		"responses":           {with(`publish: {allow: ["a"]}, subscribe: {allow: ["a"]}, "allow_responses": "true"`), `"allow_responses" is not allowed`},
		"default permissions": {`accounts { CONTROL { "default_permissions": { publish: {allow: ["a"]} }, users: [ ` + user + ` ] } }`, `"default_permissions" is not allowed`},
		"exports":             {`accounts { CONTROL { "exports": [ {"stream": "a"} ], users: [ ` + user + ` ] } }`, `"exports" is not allowed`},
		"imports":             {`accounts { CONTROL { "imports": [ ], users: [ ` + user + ` ] } }`, `"imports" is not allowed`},
		"authorization":       {`"authorization" { "token": "t" }` + "\n" + in(user), `"authorization" is not allowed`},
		"system subject":      {with(`publish: {allow: ["$SYS.>"]}, subscribe: {allow: ["a"]}`), "nobody has rights on $SYS"},
		"bad subject":         {with(`publish: {allow: ["a..b"]}, subscribe: {allow: ["a"]}`), `"a..b" is not a valid subject`},
		"twice":               {in(user + "\n" + user), "Duplicate nkey"},
		"include":             {"include " + outside, `"include"`},
		"quoted include":      {`include "` + outside + `"`, `"include"`},
		"include in account":  {"accounts { CONTROL {\n include " + outside + "\n} }", `"include"`},
		"include in comment":  {"# include " + outside + "\n" + in(user), "comment"},
		"variable":            {with(`publish: {allow: [$MESH_TEST_SUBJECT]}, subscribe: {allow: ["a"]}`), `"$MESH_TEST_SUBJECT"`},
		"escape":              {with(`publish: {allow: ["a\x20b"]}, subscribe: {allow: ["a"]}`), "an escape"},
		"half":                {accepted[:len(accepted)/2], "users file"},
		"no file":             {"\x00\xff{{{", "users file"},
		"deep":                {"accounts " + strings.Repeat("{ users ", 100_000), "users file"},
		"huge":                {strings.Repeat("#\n", maxUsersFile), "at most 16777216 are read"},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.SetUsers([]byte(file.text))
			if err == nil {
				t.Fatal("accepted")
			}
			var said bool
			for want := range strings.SplitSeq(file.want, "|") {
				said = said || strings.Contains(err.Error(), want)
			}
			if !said {
				t.Errorf("refused with %q, want it to say %q", err, file.want)
			}
			if got, err := os.ReadFile(cfg.Users); err != nil || string(got) != accepted {
				t.Errorf("refused file changed the kept one: %v", err)
			}
		})
	}
	exchange(t, c, c, "a.b")
	if c.drops.Load() != 0 {
		t.Error("a refused file dropped a client")
	}
}

// BUS-1: the controller and the holder's own node must be in.
func TestMust(t *testing.T) {
	a, b := newPerson(t, Control, []string{"a"}, []string{"a"}), newPerson(t, Modules, []string{"a"}, []string{"a"})
	if err := Validate(compose(a, b), a.nkey, b.nkey); err != nil {
		t.Error(err)
	}
	if err := Validate(compose(a), a.nkey, b.nkey); err == nil || !strings.Contains(err.Error(), b.nkey) {
		t.Errorf("without the second: %v", err)
	}
}

// BUS-1: a stock server takes the same file, admits the same keys and holds
// them to the same rights.
func TestStockServer(t *testing.T) {
	dir := t.TempDir()
	a := newPerson(t, Control, []string{"a.>"}, []string{"a.>"})
	b := newPerson(t, Modules, []string{"a.>"}, []string{"a.>"})
	stranger := newPerson(t, Modules, []string{"a.>"}, []string{"a.>"})
	file := bytes.ReplaceAll(compose(a, b), []byte("{\n    users"), []byte("{\n    jetstream: enabled\n    users"))
	if err := os.WriteFile(filepath.Join(dir, "users.conf"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	stock := "listen: \"127.0.0.1:-1\"\njetstream { store_dir: \"" + dir + "/js\" }\ninclude users.conf\n"
	if err := os.WriteFile(filepath.Join(dir, "nats.conf"), []byte(stock), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.WaitForShutdown()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("stock server is not ready")
	}
	ours := start(t, config(t.TempDir()))
	if err := ours.SetUsers(file); err != nil {
		t.Fatal(err)
	}

	type dialer func(p *person) (*client, error)
	for name, dial := range map[string]dialer{
		"stock": func(p *person) (*client, error) { return dial(ns.Addr(), nats.Secure(nil), plainTCP(), p.login()) },
		"ours":  func(p *person) (*client, error) { return dial(ours.Addr(), p.login()) },
	} {
		t.Run(name, func(t *testing.T) {
			ca, err := dial(a)
			if err != nil {
				t.Fatal(err)
			}
			defer ca.Close()
			cb, err := dial(b)
			if err != nil {
				t.Fatal(err)
			}
			defer cb.Close()
			sub, err := cb.SubscribeSync("a.x")
			if err != nil {
				t.Fatal(err)
			}
			if err := cb.Flush(); err != nil {
				t.Fatal(err)
			}
			exchange(t, ca, ca, "a.x")
			if _, err := sub.NextMsg(50 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
				t.Errorf("across the accounts: %v", err)
			}
			if err := ca.Publish("b.x", nil); err != nil {
				t.Fatal(err)
			}
			ca.waitDenied(t, "b.x")
			if _, err := ca.SubscribeSync("b.x"); err != nil {
				t.Fatal(err)
			}
			ca.waitDenied(t, "b.x")
			if c, err := dial(stranger); !errors.Is(err, nats.ErrAuthorization) {
				c.Close()
				t.Errorf("stranger: %v", err)
			}
		})
	}
}

// plainTCP undoes the TLS that the test's dial asks for.
func plainTCP() nats.Option {
	return func(o *nats.Options) error {
		o.Secure, o.TLSConfig = false, nil
		return nil
	}
}

// SAFE-2: no input panics, and what is accepted holds to the form.
func FuzzValidate(f *testing.F) {
	a := newPerson(f, Control, []string{"a.>"}, []string{"a.>"})
	f.Add(compose(a))
	f.Add([]byte(`accounts { CONTROL { jetstream: enabled, users: [ {nkey: "x"} ] } }`))
	f.Add([]byte("accounts: [ ] ] }"))
	f.Fuzz(func(t *testing.T, file []byte) {
		users, err := parse(file)
		if err != nil {
			return
		}
		for nkey, u := range users {
			if nkey == "" || u.account != Control && u.account != Modules || len(u.publish) == 0 || len(u.subscribe) == 0 {
				t.Errorf("accepted user %q: %+v", nkey, u)
			}
		}
	})
}

// Measures a change among 1000 users: one added, one removed, in turn.
func BenchmarkSetUsers1000(b *testing.B) {
	s := start(b, config(b.TempDir()))
	people := make([]*person, 1000)
	for i := range people {
		people[i] = newPerson(b, Control, []string{"mesh.control.n.report", "mesh.x.*"}, []string{"mesh.node.n.>", "_INBOX.n.>"})
	}
	with, without := compose(people...), compose(people[:999]...)
	for i := 0; b.Loop(); i++ {
		file := with
		if i%2 == 1 {
			file = without
		}
		if err := s.SetUsers(file); err != nil {
			b.Fatal(err)
		}
	}
}

// Measures from nothing to ready.
func BenchmarkStart(b *testing.B) {
	cfg := config(b.TempDir())
	for b.Loop() {
		s, err := Start(cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}
