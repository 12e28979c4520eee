package linux

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/supervise"
)

// unitName is one per installation, instance and process; the parts hold no dots.
func (c Config) unitName(p named) string {
	if c.Installation.Dir == installation.Default {
		return fmt.Sprintf("mesh.%s.%s.service", p.instance, p.name)
	}
	return fmt.Sprintf("mesh-%s.%s.%s.service", appliance.DigestOf([]byte(c.Installation.Dir)).Short()[:8], p.instance, p.name)
}

// target is what starts the units with the machine.
const target = "multi-user.target"

// policyMark begins the lines that can change without a restart.
const policyMark = "# How it is kept:\n"

// unit gives the unit file of a process; the same text for the same process.
func unit(p wanted) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by the mesh; changes here are lost.")
	line("[Unit]")
	line("Description=mesh: %s of %s", p.name, p.instance)
	line("StartLimitIntervalSec=0")
	line("\n[Service]")
	line("Type=exec")
	line("User=%s", p.user)
	line("Group=%d", p.spec.GID)
	line("WorkingDirectory=%s", escape(p.spec.Directory))
	command := make([]string, len(p.spec.Command))
	for i, word := range p.spec.Command {
		command[i] = quote(word)
	}
	line("ExecStart=:%s", strings.Join(command, " ")) // the colon: no variable is filled in
	for _, name := range slices.Sorted(maps.Keys(p.spec.Environment)) {
		line("Environment=%s", quote(name+"="+p.spec.Environment[name]))
	}
	line("StandardInput=null")
	line("UMask=0022")
	line("KillMode=mixed")
	if p.spec.UID != 0 {
		for _, what := range []string{"NoNewPrivileges", "ProtectKernelTunables", "ProtectControlGroups", "RestrictSUIDSGID", "LockPersonality", "PrivateTmp"} {
			line("%s=yes", what)
		}
		line("ProtectSystem=full")
	}
	b.WriteString("\n" + policyMark)
	restart := p.spec.Restart
	if restart == supervise.Never {
		restart = "no"
	}
	line("Restart=%s", restart)
	line("RestartSec=1s")
	line("TimeoutStopSec=%dms", cmp.Or(p.spec.Stop.Milliseconds(), 10_000))
	line("\n[Install]")
	line("WantedBy=" + target)
	return b.String()
}

// madeOf is the part of a unit file that cannot change without a restart.
func madeOf(unit string) string {
	before, _, _ := strings.Cut(unit, policyMark)
	return before
}

func escape(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// quote makes one word of s, whatever is in it.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range []byte(escape(s)) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
