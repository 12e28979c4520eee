package services

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
)

const (
	openrcScript = "/etc/init.d/mesh"
	openrcLevel  = "/etc/runlevels/default/mesh"
)

// openrc starts the detached processes at boot by a script in the default run level.
type openrc struct {
	detached
	root string // what the paths are beneath: /, but in tests
}

func (o openrc) Kind() string { return "openrc" }

// Script is the text of the OpenRC script.
func Script(i installation.Installation) string {
	return fmt.Sprintf(`#!/sbin/openrc-run
description="Mesh (%[1]s)"

depend() {
	need net
	after firewall
}

start() {
	ebegin "Starting mesh"
	%[2]s start --state %[1]s
	eend $?
}

stop() {
	ebegin "Stopping mesh"
	%[2]s stop --state %[1]s
	eend $?
}
`, i.Dir, i.Binary())
}

func (o openrc) Start(ctx context.Context) error {
	if err := durable.WriteFile(filepath.Join(o.root, openrcScript), []byte(Script(o.install)), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(openrcScript, filepath.Join(o.root, openrcLevel)); err != nil && !os.IsExist(err) {
		return err
	}
	return o.detached.Start(ctx)
}

// Remove leaves a script alone that is another installation's.
func (o openrc) Remove(ctx context.Context) error {
	script := filepath.Join(o.root, openrcScript)
	if have, err := os.ReadFile(script); err == nil && string(have) == Script(o.install) {
		for _, path := range []string{filepath.Join(o.root, openrcLevel), script} { // the script last: it says whose the link is
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
	} else if err != nil && !os.IsNotExist(err) {
		return err
	}
	return o.detached.Remove(ctx)
}
