package serve

import "os/user"

// User is the system user that the hub runs as; the base bundles make it.
const User = "mesh"

// UserName is the user of this process.
func UserName() string {
	u, err := user.Current()
	if err != nil {
		return User
	}
	return u.Username
}
