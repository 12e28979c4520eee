package services

import (
	"context"
	"fmt"
	"os"

	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
)

const (
	openrcScript = "/etc/init.d/mesh"
	openrcLevel  = "/etc/runlevels/default/mesh"
)

// openrc starts the detached processes at boot by a script in the default run level.
type openrc struct{ detached }

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
	if err := durable.WriteFile(openrcScript, []byte(Script(o.install)), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(openrcScript, openrcLevel); err != nil && !os.IsExist(err) {
		return err
	}
	return o.detached.Start(ctx)
}
