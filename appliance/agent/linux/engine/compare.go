package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// fact is one thing that a container is made of.
type fact struct {
	what, value string
	limit       bool // not every machine can
	docker      bool // only Docker says it in these words
	secret      bool // its value is nobody's business
}

// facts describe a container, wanted or found, in the same words. They name no image: see differs.
func facts(c *container.Config, h *container.HostConfig, mounts []string) []fact {
	hostname, confinement := c.Hostname, fmt.Sprintf("+%s -%s %s", capabilityNames(h.CapAdd), capabilityNames(h.CapDrop), strings.Join(h.SecurityOpt, " "))
	if h.NetworkMode.IsHost() {
		hostname = "" // it is the machine's
	}
	if h.Privileged {
		confinement = "" // it is the engine's to say
	}
	return []fact{
		{what: "user", value: c.User},
		{what: "groups", value: strings.Join(h.GroupAdd, " "), docker: true},
		{what: "command", value: fmt.Sprintf("%q", slices.Concat(c.Entrypoint, c.Cmd)), docker: true},
		{what: "environment", value: strings.Join(c.Env, "\n"), secret: true},
		{what: "hostname", value: hostname, docker: true},
		{what: "network", value: string(h.NetworkMode), docker: true},
		{what: "resolver", value: fmt.Sprint(h.DNS), docker: true},
		{what: "ports", value: ports(h.PortBindings)},
		{what: "mounts", value: strings.Join(mounts, " ")},
		{what: "devices", value: devices(h.Devices), docker: true},
		{what: "memory", value: limit(h.Memory), limit: true},
		{what: "cpu", value: limit(h.NanoCPUs), limit: true},
		{what: "pids", value: limit(valueOf(h.PidsLimit)), limit: true},
		{what: "read-only", value: strconv.FormatBool(h.ReadonlyRootfs)},
		{what: "privileged", value: strconv.FormatBool(h.Privileged)},
		{what: "confinement", value: confinement, docker: true},
		{what: "log", value: h.LogConfig.Type + " " + fmt.Sprint(h.LogConfig.Config), docker: true}, // maps print sorted
		{what: "stop", value: fmt.Sprint(valueOf(c.StopTimeout)), docker: true},
	}
}

func valueOf[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func limit(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func ports(m network.PortMap) string {
	var list []string
	for inside, bindings := range m {
		for _, b := range bindings {
			at := "*"
			if b.HostIP.IsValid() && !b.HostIP.IsUnspecified() {
				at = b.HostIP.String()
			}
			list = append(list, at+":"+b.HostPort+"->"+inside.String())
		}
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func devices(all []container.DeviceMapping) string {
	var list []string
	for _, d := range all {
		list = append(list, d.PathOnHost+":"+d.PathInContainer+":"+d.CgroupPermissions)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func capabilityNames(all []string) string {
	var list []string
	for _, c := range all {
		list = append(list, strings.TrimPrefix(strings.ToUpper(c), "CAP_"))
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

func mountText(kind mount.Type, source, target string, readOnly bool) string {
	access := "rw"
	if readOnly {
		access = "ro"
	}
	return fmt.Sprintf("%s:%s:%s:%s", kind, source, target, access)
}

func (w wanted) mounts() []string {
	var list []string
	for _, m := range w.host.Mounts {
		list = append(list, mountText(m.Type, m.Source, m.Target, m.ReadOnly))
	}
	slices.Sort(list)
	return list
}

func mountsOf(have container.InspectResponse) []string {
	var list []string
	for _, m := range have.Mounts {
		list = append(list, mountText(m.Type, m.Source, m.Destination, !m.RW))
	}
	slices.Sort(list)
	return list
}

// madeOf names what the container is made of: all that cannot change without making another. Where the image is pulled from is no part of
// it (PORT-5), nor how it is kept going.
func (w wanted) madeOf() string {
	text := w.spec.Reference
	for _, f := range facts(w.config, w.host, w.mounts()) {
		text += "\n" + f.what + " " + f.value
	}
	return string(appliance.DigestOf([]byte(text)))
}

// differs says how a container of ours is made otherwise than it shall be; empty: it is not. It trusts the label only as far as the engine
// says the same.
func (c *connection) differs(ctx context.Context, w wanted, have container.InspectResponse, image client.ImageInspectResult) string {
	if have.Image != image.ID {
		return fmt.Sprintf("image %s, want %s", short(have.Image), short(image.ID))
	}
	want := *w.config
	if image.Config != nil { // what the image says, where the spec says nothing
		if len(want.Entrypoint) == 0 {
			want.Entrypoint, want.Cmd = image.Config.Entrypoint, image.Config.Cmd
		}
		want.Env = environment(lines(image.Config.Env), lines(want.Env))
		if want.User == "" {
			want.User = image.Config.User
		}
	}
	known, is := lines(want.Env), *have.Config
	set := lines(is.Env)
	maps.DeleteFunc(set, func(name, _ string) bool { _, ours := known[name]; return !ours }) // the engine's own
	is.Env = environment(set)
	found := facts(&is, have.HostConfig, mountsOf(have))
	for i, f := range facts(&want, w.host, w.mounts()) {
		switch other := found[i]; {
		case f == other, f.docker && c.podman, f.limit && other.value == "" && !c.limits(ctx, f.what):
		case f.secret:
			return f.what
		default:
			return fmt.Sprintf("%s %s, want %s", f.what, orNone(other.value), orNone(f.value))
		}
	}
	if have.Config.Labels[labelMadeOf] != w.labels[labelMadeOf] {
		return "definition"
	}
	return w.attached(have, c.podman)
}

// limits says whether this machine can limit something at all; where it cannot, the engine leaves it out.
func (c *connection) limits(ctx context.Context, what string) bool {
	info, err := c.Info(ctx, client.InfoOptions{})
	switch {
	case err != nil:
		return false // and the container is left as it is
	case what == "memory":
		return info.Info.MemoryLimit
	case what == "cpu":
		return info.Info.CPUCfsQuota
	}
	return info.Info.PidsLimit
}

// attached says how the container's networks differ: the engine's own one, and no other.
func (w wanted) attached(have container.InspectResponse, podman bool) string {
	want := string(w.host.NetworkMode)
	if podman && want == network.NetworkBridge {
		want = "podman"
	}
	var is []string
	if have.NetworkSettings != nil {
		is = slices.Sorted(maps.Keys(have.NetworkSettings.Networks))
	}
	if podman && want == network.NetworkHost || slices.Equal(is, []string{want}) {
		return ""
	}
	return fmt.Sprintf("attached to %s, want %s", orNone(strings.Join(is, " ")), want)
}

// kept says how a container that is made right is otherwise not as it shall be: its name, and whether it runs.
func (w wanted) kept(have container.InspectResponse, engineStarted time.Time) string {
	if name := nameOf(have); name != w.name {
		return "name " + appliance.Quote(name) + ", want " + w.name
	}
	if is := have.HostConfig.RestartPolicy.Name; is != w.host.RestartPolicy.Name && !(is == "" && w.host.RestartPolicy.IsNone()) {
		return fmt.Sprintf("restart %s, want %s", is, w.host.RestartPolicy.Name)
	}
	return state(have, w.spec.Run, engineStarted)
}

// state says how a container does not run, or runs, against what is wanted. One that ended by itself, as its restart says it may, has done
// its work; one that ended with the engine or the machine has not.
func state(have container.InspectResponse, want wire.Run, engineStarted time.Time) string {
	s := have.State
	is := string(s.Status)
	if want.Stopped {
		if s.Running || s.Restarting || s.Paused {
			return is + ", want stopped"
		}
		return ""
	}
	switch ended := s.Status == container.StateExited && endedAt(have).After(engineStarted); {
	case s.Status == container.StateRunning, s.Status == container.StateRestarting:
		return ""
	case ended && (want.Restart == "never" || want.Restart == "on-failure" && s.ExitCode == 0):
		return ""
	}
	return is + ", want running"
}

func endedAt(have container.InspectResponse) time.Time { return moment(have.State.FinishedAt) }

func moment(text string) time.Time {
	t, _ := time.Parse(time.RFC3339Nano, text) // zero where the engine says nothing
	return t
}

func nameOf(have container.InspectResponse) string { return strings.TrimPrefix(have.Name, "/") }

func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// lines reads NAME=VALUE lines.
func lines(list []string) map[string]string {
	set := map[string]string{}
	for _, l := range list {
		name, value, _ := strings.Cut(l, "=")
		set[name] = value
	}
	return set
}
