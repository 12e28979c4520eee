package linux

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/wire"
)

// users makes system users. One that was there before is used as it is and never removed; nor is one whose data is still there, so
// that the uid is not given to somebody else (MOD-10). Where somebody else removed it, it is made with that uid again.
type users struct{ data *dataList }

// userBefore says what was there at first touch.
type userBefore struct {
	User  bool `json:"user"`
	Group bool `json:"group"`
}

var userGrammar = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

const (
	noHome  = "/nonexistent"
	noLogin = "/usr/sbin/nologin"
)

func readUser(r wire.Resource) (wire.UserSpec, error) {
	s, err := read[wire.UserSpec](r)
	s.Home = cmp.Or(s.Home, noHome)
	switch {
	case err != nil:
	case !userGrammar.MatchString(s.Name):
		err = appliance.Errorf(appliance.Invalid, "user name %s does not fit the grammar", appliance.Quote(s.Name)).
			WithHint("lower-case letters, digits, _ and -, at most 32")
	case !path.IsAbs(s.Home) || path.Clean(s.Home) != s.Home || strings.ContainsAny(s.Home, ":\n\x00"):
		err = appliance.Errorf(appliance.Invalid, "home %s of user %s is not a clean absolute path", appliance.Quote(s.Home), s.Name)
	}
	return s, err
}

func exists(_ int, err error) (bool, error) {
	if err != nil && appliance.KindOf(err) == appliance.NotFound {
		return false, nil
	}
	return err == nil, err
}

func look(name string) (b userBefore, err error) {
	if b.User, err = exists(userID(name)); err == nil {
		b.Group, err = exists(groupID(name))
	}
	return b, err
}

func (u users) Observe(_ context.Context, r wire.Resource) (host.Observation, error) {
	s, err := readUser(r)
	if err != nil {
		return host.Observation{}, err
	}
	b, err := look(s.Name)
	if err != nil || !b.User {
		return host.Observation{}, err
	}
	if err := nobodys(s.Name); err != nil {
		return host.Observation{}, err
	}
	o := host.Observation{Present: true}
	if o.Differs, err = u.another(s.Name); o.Differs == "" && !b.Group {
		o.Differs = "no group of the same name"
	}
	o.Matches = o.Differs == ""
	return o, err
}

// System accounts have numbers outside of these: what is in between belongs to people.
const firstPerson, lastPerson = 1000, 60_000

// nobodys refuses to run modules as a person, or as root under another name: no manifest says that it wants to (MOD-14).
func nobodys(name string) error {
	uid, err := userID(name)
	if err != nil || uid != 0 && (uid < firstPerson || uid > lastPerson) {
		return err
	}
	whose := "a person's"
	if uid == 0 {
		whose = "root's"
	}
	return appliance.Errorf(appliance.Conflict, "user %s is here already and %s (uid %d)", name, whose, uid).
		WithHint("a module's user is a system account; give it another name in the manifest")
}

// another says how a user is not the one whose data is here; empty where it is, or has none.
func (u users) another(name string) (differs string, err error) {
	owner, has, err := u.data.account(name)
	if err != nil || !has {
		return "", err
	}
	uid, err := userID(name)
	if err == nil && uid != owner.UID {
		differs = fmt.Sprintf("uid %d, want %d, whose data is here", uid, owner.UID)
	}
	return differs, err
}

func (users) Before(_ context.Context, r wire.Resource) (json.RawMessage, error) {
	s, err := readUser(r)
	if err != nil {
		return nil, err
	}
	b, err := look(s.Name)
	if err != nil || b == (userBefore{}) {
		return nil, err
	}
	return json.Marshal(b)
}

func (u users) Do(ctx context.Context, r wire.Resource) error {
	s, err := readUser(r)
	if err != nil {
		return err
	}
	return retryLocked(ctx, func() error {
		b, err := look(s.Name) // again after each try: somebody else may have made it
		if err != nil {
			return err
		}
		if b.User {
			if differs, err := u.another(s.Name); err != nil {
				return err
			} else if differs != "" {
				return appliance.Errorf(appliance.Conflict, "make user %s: somebody made one with %s", s.Name, differs).
					WithHint("remove that user; the mesh makes the right one")
			}
		}
		if b.User && b.Group {
			return nil
		}
		var want *account
		if owner, has, err := u.data.account(s.Name); err != nil {
			return err
		} else if has {
			want = &owner
		}
		for _, c := range makeUser(s, b, want, hasUseradd()) {
			if _, err := run.Output(ctx, c); err != nil {
				if b, e := look(s.Name); e == nil && b.User && b.Group {
					return nil
				}
				if want != nil {
					return fmt.Errorf("make user %s again, whose data here belongs to uid %d and gid %d: %w", s.Name, want.UID, want.GID, err)
				}
				return err
			}
		}
		return nil
	})
}

func hasUseradd() bool { _, err := run.Find("useradd"); return err == nil }

// makeUser gives the commands that make what is missing, with the numbers of the owner where there is one. Without the shadow tools
// there are busybox's.
func makeUser(s wire.UserSpec, b userBefore, owner *account, shadow bool) (commands []run.Command) {
	var uid, gid []string
	add := func(program string, parts ...[]string) {
		commands = append(commands, run.Command{Program: program, Arguments: append(slices.Concat(parts...), s.Name)})
	}
	number := func(option string, n int) []string { return []string{option, strconv.Itoa(n)} }
	switch {
	case owner != nil && shadow:
		uid, gid = number("--uid", owner.UID), number("--gid", owner.GID)
	case owner != nil:
		uid, gid = number("-u", owner.UID), number("-g", owner.GID)
	}
	if !b.Group && shadow {
		add("groupadd", []string{"--system"}, gid)
	} else if !b.Group {
		add("addgroup", []string{"-S"}, gid)
	}
	if !b.User && shadow {
		add("useradd", []string{"--system"}, uid, []string{"--gid", s.Name, "--no-create-home", "--home-dir", s.Home, "--shell", noLogin})
	} else if !b.User {
		add("adduser", []string{"-S", "-D", "-H"}, uid, []string{"-h", s.Home, "-s", "/sbin/nologin", "-G", s.Name})
	}
	return commands
}

func (u users) Undo(ctx context.Context, r wire.Resource, undo json.RawMessage) (kept bool, err error) {
	s, err := readUser(r)
	if err != nil {
		return false, err
	}
	before, _, err := record[userBefore](undo)
	if err != nil {
		return false, err
	}
	if !before.User {
		if kept, err := u.data.ownedBy(s.Name); kept || err != nil {
			return kept, err
		}
	}
	return false, retryLocked(ctx, func() error {
		for _, kind := range []struct {
			was             bool
			shadow, busybox string
			lookup          func(string) (int, error)
		}{{before.User, "userdel", "deluser", userID}, {before.Group, "groupdel", "delgroup", groupID}} {
			there, err := exists(kind.lookup(s.Name))
			if err != nil {
				return err
			}
			if kind.was || !there {
				continue
			}
			program := kind.shadow
			if !hasUseradd() {
				program = kind.busybox
			}
			if _, err := run.Output(ctx, run.Command{Program: program, Arguments: []string{s.Name}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// retryLocked tries again while another program holds the lock of the user files; the tools themselves do not wait.
func retryLocked(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		err := f()
		if code := run.ExitCode(err); code != 1 && code != 10 || !strings.Contains(err.Error(), "lock") {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond): // until the other program is through
		}
	}
}
