package linux

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// attributes are owner, group and mode by number: what a folder or file has, or shall have.
type attributes struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Mode uint32 `json:"mode"`
}

func attributesOf(st *unix.Stat_t) attributes {
	return attributes{int(st.Uid), int(st.Gid), st.Mode & 0o7777}
}

// lookup reads a spec's owner, group and mode.
func lookup(owner, group, mode string) (a attributes, err error) {
	m, err := strconv.ParseUint(mode, 8, 32)
	if err != nil || m > 0o7777 {
		return a, appliance.Errorf(appliance.Invalid, "mode %s is not up to four octal digits", appliance.Quote(mode))
	}
	a.Mode = uint32(m)
	if a.UID, err = userID(owner); err == nil {
		a.GID, err = groupID(group)
	}
	return a, err
}

func userID(name string) (int, error) {
	u, err := user.Lookup(name)
	if errors.As(err, new(user.UnknownUserError)) {
		return 0, appliance.Errorf(appliance.NotFound, "no user %s on this machine", appliance.Quote(name))
	}
	if err != nil {
		return 0, fmt.Errorf("look up user %s: %w", appliance.Quote(name), err)
	}
	return strconv.Atoi(u.Uid)
}

func groupID(name string) (int, error) {
	g, err := user.LookupGroup(name)
	if errors.As(err, new(user.UnknownGroupError)) {
		return 0, appliance.Errorf(appliance.NotFound, "no group %s on this machine", appliance.Quote(name))
	}
	if err != nil {
		return 0, fmt.Errorf("look up group %s: %w", appliance.Quote(name), err)
	}
	return strconv.Atoi(g.Gid)
}

// differs says for a person what is other than want.
func (a attributes) differs(want attributes) string {
	switch {
	case a.UID != want.UID:
		return fmt.Sprintf("owner %s, want %s", userName(a.UID), userName(want.UID))
	case a.GID != want.GID:
		return fmt.Sprintf("group %s, want %s", groupName(a.GID), groupName(want.GID))
	case a.Mode != want.Mode:
		return fmt.Sprintf("mode %04o, want %04o", a.Mode, want.Mode)
	}
	return ""
}

func userName(id int) string {
	if u, err := user.LookupId(strconv.Itoa(id)); err == nil {
		return u.Username
	}
	return strconv.Itoa(id)
}

func groupName(id int) string {
	if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
		return g.Name
	}
	return strconv.Itoa(id)
}

// set gives the open file these attributes. The owner first: changing it takes special bits of the mode away.
func (a attributes) set(fd int) error {
	if err := unix.Fchown(fd, a.UID, a.GID); err != nil {
		return err
	}
	return unix.Fchmod(fd, a.Mode)
}
