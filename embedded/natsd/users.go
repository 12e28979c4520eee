package natsd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/conf"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// maxUsersFile holds some 35 000 users.
const maxUsersFile = 16 << 20

// Validate says why a users file would be refused; must are nkeys that have to
// be in it, such as the controller's and that of the node which holds the
// broker. The file is nats-server configuration that a stock server takes too,
// limited to
//
//	accounts {
//	  CONTROL { users: [ {nkey: "U…", permissions: {publish: {allow: ["…"]}, subscribe: {allow: ["…"]}}} ] }
//	  MODULES { users: [ … ] }
//	}
//
// where an account may also say `jetstream: enabled`, which here is so anyway,
// and a line may be a comment. Both lists of a user must name something: to
// nats-server an empty list means everything.
func Validate(file []byte, must ...string) error {
	_, err := parse(file, must...)
	return err
}

func parse(file []byte, must ...string) (map[string]user, error) {
	if len(file) > maxUsersFile {
		return nil, fmt.Errorf("users file of %d bytes: at most %d are read (SAFE-2): remove users", len(file), maxUsersFile)
	}
	if err := plain(file); err != nil {
		return nil, err
	}
	raw, err := conf.Parse(string(file))
	if err != nil {
		return nil, fmt.Errorf("users file: parse: %w", err)
	}
	if err := shape(raw); err != nil {
		return nil, fmt.Errorf("users file: %w", err)
	}
	// The server's own reading decides: it checks keys, subjects and duplicates.
	opts := &server.Options{}
	if err := opts.ProcessConfigString(string(file)); err != nil {
		return nil, fmt.Errorf("users file: %w", err)
	}
	users := make(map[string]user, len(opts.Nkeys))
	for _, u := range opts.Nkeys {
		p, s := slices.Clone(u.Permissions.Publish.Allow), slices.Clone(u.Permissions.Subscribe.Allow)
		slices.Sort(p)
		slices.Sort(s)
		users[u.Nkey] = user{account: u.Account.Name, publish: p, subscribe: s}
	}
	if len(users) == 0 {
		return nil, errors.New("users file: no user at all (BUS-1): compose it with the controller and the holder's node")
	}
	for _, nkey := range must {
		if _, ok := users[nkey]; !ok {
			return nil, fmt.Errorf("users file: user %q is missing (BUS-1): the controller and the holder's own node must be in it", nkey)
		}
	}
	return users, nil
}

// words are all that may stand outside quotes.
var words = []string{"accounts", Control, Modules, "users", "nkey", "permissions", "publish", "subscribe", "allow", "jetstream", "enabled"}

// plain refuses what the configuration language can do beyond saying values:
// include reads files, variables read the environment. It is stricter than the
// language, so that nothing depends on how that splits odd input.
func plain(file []byte) error {
	for n, line := range bytes.Split(file, []byte("\n")) {
		refuse := func(what string) error {
			return fmt.Errorf("users file, line %d: %s (SAFE-3): only plain words, quoted keys and subjects, and comment lines may stand there", n+1, what)
		}
		text := strings.TrimSpace(string(line))
		if strings.HasPrefix(text, "#") {
			if strings.ContainsAny(text, "\"'$\\") || strings.Contains(strings.ToLower(text), "include") {
				return refuse("comment with a quote, a variable or an include")
			}
			continue
		}
		for i, part := range strings.Split(text, `"`) {
			if i%2 == 1 {
				if strings.ContainsFunc(part, func(r rune) bool { return r <= ' ' || r > '~' || r == '\\' || r == '\'' }) {
					return refuse("quoted text with a space, an escape or a character outside ASCII")
				}
				continue
			}
			for word := range strings.FieldsFuncSeq(part, func(r rune) bool { return strings.ContainsRune(" \t\r{}[]:,", r) }) {
				if !slices.Contains(words, word) {
					return refuse(fmt.Sprintf("%.40q", word))
				}
			}
		}
		if strings.Count(text, `"`)%2 != 0 {
			return refuse("unclosed quote")
		}
	}
	return nil
}

// shape holds the file to the fields of Validate's form. Whatever else
// nats-server knows (passwords, deny, responses, defaults, imports, other
// accounts) is refused by not being named here.
func shape(raw map[string]any) error {
	if err := fields(raw, "file", "accounts"); err != nil {
		return err
	}
	accounts, ok := raw["accounts"].(map[string]any)
	if !ok {
		return errors.New("accounts is not a map (BUS-1)")
	}
	if err := fields(accounts, "accounts", Control, Modules); err != nil {
		return err
	}
	for name, v := range accounts {
		account, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("account %s is not a map (BUS-1)", name)
		}
		if err := fields(account, "account "+name, "users", "jetstream"); err != nil {
			return err
		}
		if js, ok := account["jetstream"]; ok && js != "enabled" {
			return fmt.Errorf("account %s: jetstream can only be enabled (BUS-2)", name)
		}
		if _, ok := account["users"]; !ok {
			continue
		}
		users, ok := account["users"].([]any)
		if !ok {
			return fmt.Errorf("account %s: users is not a list (BUS-1)", name)
		}
		for i, v := range users {
			if err := entry(v, fmt.Sprintf("account %s, user %d", name, i+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry checks one user.
func entry(v any, where string) error {
	u, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is not a map (BUS-1)", where)
	}
	if err := fields(u, where, "nkey", "permissions"); err != nil {
		return err
	}
	if nkey, _ := u["nkey"].(string); !nkeys.IsValidPublicUserKey(nkey) {
		return fmt.Errorf("%s has no valid user nkey (BUS-3): leave the user out until it has a key", where)
	}
	p, _ := u["permissions"].(map[string]any)
	if err := fields(p, where, "publish", "subscribe"); err != nil {
		return err
	}
	for _, verb := range []string{"publish", "subscribe"} {
		m, _ := p[verb].(map[string]any)
		if err := fields(m, where, "allow"); err != nil {
			return err
		}
		list, _ := m["allow"].([]any)
		if len(list) == 0 {
			return fmt.Errorf("%s: %s.allow names nothing, which nats-server reads as everything (BUS-2): name at least one subject, such as an inbox of its own", where, verb)
		}
		for _, v := range list {
			subject, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s: %s.allow has something that is not text (BUS-2)", where, verb)
			}
			if strings.HasPrefix(subject, "$SYS") {
				return fmt.Errorf("%s: %s.allow %.60q: nobody has rights on $SYS (BUS-2): leave it out", where, verb, subject)
			}
		}
	}
	return nil
}

// fields refuses every key that is not known.
func fields(m map[string]any, where string, known ...string) error {
	for k := range m {
		if !slices.Contains(known, k) {
			return fmt.Errorf("%s: %.40q is not allowed (BUS-2): only %s", where, k, strings.Join(known, ", "))
		}
	}
	return nil
}
