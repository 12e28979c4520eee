package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
)

// Labels by which a container is ours, and which it is.
const (
	labelMesh     = "mesh.id"
	labelNode     = "mesh.node"
	labelState    = "mesh.state"
	labelResource = "mesh.resource"
	labelMadeOf   = "mesh.made-of"
)

// capabilities are what a container that begins as root needs to become somebody else and to own its files; nobody else has any.
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}

const noNewPrivileges = "no-new-privileges"

// wanted is a container as it shall be, with everything looked up, and in the engine's words.
type wanted struct {
	id     string // of the resource
	name   string // of the container
	labels map[string]string
	spec   wire.ContainerSpec
	config *container.Config
	host   *container.HostConfig
}

var (
	plainName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`) // the closed grammar where names become others' (SAFE-3)
	imageName = regexp.MustCompile(`^([a-z0-9.-]+:[0-9]+)/[a-z0-9-]+/[a-z0-9-]+@sha256:[0-9a-f]{64}$`)
)

// named gives what is known of a container without looking anything up: enough to find and remove it.
func (e *Engine) named(r wire.Resource) (w wanted, err error) {
	if err := json.Unmarshal(r.Spec, &w.spec); err != nil {
		return w, appliance.Errorf(appliance.Invalid, "read %s: %w", r.ID, err)
	}
	if !plainName.MatchString(string(r.Instance)) || !plainName.MatchString(w.spec.Name) {
		return w, appliance.Errorf(appliance.Invalid, "container %s of instance %s: a name does not fit the grammar",
			appliance.Quote(w.spec.Name), appliance.Quote(string(r.Instance))).WithHint("lower-case letters, digits and dashes, at most 40")
	}
	prefix := "mesh"
	if e.config.State != installation.Default { // as units are called
		prefix += "-" + appliance.DigestOf([]byte(e.config.State)).Short()[:8]
	}
	w.id, w.name = r.ID, prefix+"."+string(r.Instance)+"."+w.spec.Name
	w.labels = map[string]string{labelMesh: string(e.config.Mesh), labelNode: string(e.config.Node), labelState: e.config.State, labelResource: r.ID}
	return w, nil
}

// wanted looks up what the spec names.
func (e *Engine) wanted(r wire.Resource) (wanted, error) {
	w, err := e.named(r)
	if err != nil {
		return w, err
	}
	fail := func(err error) (wanted, error) { return w, fmt.Errorf("container %s: %w", r.ID, err) }
	s := w.spec
	if !imageName.MatchString(s.Image) || !strings.HasPrefix(s.Image, s.Store.Address+"/") {
		return fail(appliance.Errorf(appliance.Invalid, "image %s is not <store>/<module>/<artifact>@sha256:…", appliance.Quote(s.Image)))
	}
	stop, err := time.ParseDuration(cmp.Or(s.Stop, "10s"))
	if err != nil || stop < 0 {
		return fail(appliance.Errorf(appliance.Invalid, "stop %s is not a duration", appliance.Quote(s.Stop)))
	}
	seconds := int(math.Ceil(stop.Seconds()))
	w.config = &container.Config{Image: s.Image, Labels: w.labels, StopTimeout: &seconds, Entrypoint: s.Command,
		Env: environment(s.Environment, map[string]string{"MESH_NODE": string(e.config.Node), "MESH_INSTANCE": string(r.Instance)})}
	logs := strconv.FormatInt(max(s.LogSize/2, 4096), 10) // two files of half the size
	w.host = &container.HostConfig{
		LogConfig:      container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": logs, "max-file": "2"}},
		RestartPolicy:  container.RestartPolicy{Name: policy(s.Run)},
		NetworkMode:    container.NetworkMode(cmp.Or(s.Network, network.NetworkBridge)),
		ReadonlyRootfs: s.ReadOnly,
		Privileged:     s.Privileged,
		Resources:      container.Resources{Memory: s.Memory, MemorySwap: s.Memory, NanoCPUs: s.CPU * 1e6},
	}
	if s.PIDs > 0 {
		w.host.PidsLimit = &s.PIDs
	}
	if !s.Privileged {
		w.host.CapDrop, w.host.CapAdd, w.host.SecurityOpt = []string{"ALL"}, capabilities, []string{noNewPrivileges}
	}
	if s.User != "" {
		if w.config.User, w.host.GroupAdd, err = account(s.User); err != nil {
			return fail(err)
		}
	}
	if err := w.reach(string(r.Instance)); err != nil {
		return fail(err)
	}
	w.labels[labelMadeOf] = w.madeOf()
	return w, nil
}

// reach says how the container is reached, and what it reaches: network, ports, names, mounts, devices.
func (w *wanted) reach(instance string) error {
	s := w.spec
	if s.Network == network.NetworkHost {
		// Names are the node's own there, and stay so: the engine would copy the file once.
		w.host.Mounts = append(w.host.Mounts, mount.Mount{Type: mount.TypeBind, Source: "/etc/hosts", Target: "/etc/hosts", ReadOnly: true})
	} else {
		w.config.Hostname = instance
	}
	if s.Resolver != "" {
		at, err := netip.ParseAddr(s.Resolver)
		if err != nil {
			return appliance.Errorf(appliance.Invalid, "resolver %s is not an address", appliance.Quote(s.Resolver))
		}
		w.host.DNS = []netip.Addr{at}
	}
	for _, p := range s.Ports {
		inside, ok := network.PortFrom(p.Inside, network.IPProtocol(p.Protocol))
		at, err := netip.ParseAddr(p.Address)
		if !ok || err != nil || p.Inside == 0 || p.Port == 0 {
			return appliance.Errorf(appliance.Invalid, "port %d/%s at %s is none", p.Inside, appliance.Quote(p.Protocol), appliance.Quote(p.Address))
		}
		if at.IsUnspecified() {
			at = netip.Addr{} // every address, of either family
		}
		if w.config.ExposedPorts == nil {
			w.config.ExposedPorts, w.host.PortBindings = network.PortSet{}, network.PortMap{}
		}
		w.config.ExposedPorts[inside] = struct{}{}
		w.host.PortBindings[inside] = append(w.host.PortBindings[inside], network.PortBinding{HostIP: at, HostPort: strconv.Itoa(int(p.Port))})
	}
	for _, m := range s.Mounts {
		w.host.Mounts = append(w.host.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	for _, d := range s.Devices {
		w.host.Devices = append(w.host.Devices, container.DeviceMapping{PathOnHost: d, PathInContainer: d, CgroupPermissions: "rwm"})
	}
	return nil
}

// policy is how the engine keeps it going, with or without an agent: not at all what an operator has stopped, so that no restart of the
// engine starts it.
func policy(r wire.Run) container.RestartPolicyMode {
	switch {
	case r.Stopped || r.Restart == "never":
		return container.RestartPolicyDisabled
	case r.Restart == "on-failure":
		return container.RestartPolicyOnFailure
	}
	return container.RestartPolicyAlways
}

// environment gives NAME=VALUE lines, sorted; later ones win.
func environment(sets ...map[string]string) []string {
	all := map[string]string{}
	for _, set := range sets {
		for name, value := range set {
			all[name] = value
		}
	}
	lines := make([]string, 0, len(all))
	for name, value := range all {
		lines = append(lines, name+"="+value)
	}
	slices.Sort(lines)
	return lines
}

// account gives uid:gid of the node's user, and the other groups it is in: names inside are the image's.
func account(name string) (uidGID string, groups []string, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", nil, appliance.Errorf(appliance.NotFound, "no user %s on this machine", appliance.Quote(name))
	}
	groups, err = u.GroupIds()
	if err != nil {
		return "", nil, fmt.Errorf("groups of user %s: %w", u.Username, err)
	}
	slices.Sort(groups)
	return u.Uid + ":" + u.Gid, slices.DeleteFunc(groups, func(g string) bool { return g == u.Gid }), nil
}
