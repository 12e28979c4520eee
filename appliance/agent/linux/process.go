package linux

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
)

// keeper keeps processes running: systemd, or supervise.
type keeper interface {
	observe(ctx context.Context, p wanted) (host.Observation, error)
	start(ctx context.Context, p wanted) error
	halt(ctx context.Context, p wanted) error
	remove(ctx context.Context, p named) error
	status(ctx context.Context, p named) (host.Running, error)
	restart(ctx context.Context, p named) error
	signal(ctx context.Context, p named, name string) error // one of supervise.Signals
	log(ctx context.Context, p named, n int) ([]string, error)
	follow(ctx context.Context, p named, n int, follow bool, emit func(line []byte) error) error
}

// named is a process of an instance.
type named struct {
	instance appliance.InstanceName
	name     string
}

// wanted is a process with everything looked up.
type wanted struct {
	named
	user    string
	spec    supervise.Spec
	stopped bool // it is there and does not run
}

func keeperFor(c Config) keeper {
	if underSystemd() {
		return systemd{c}
	}
	return supervisors{c}
}

func underSystemd() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// processes is the effector; the keeper does the work.
type processes struct {
	Config
	keeper keeper
}

func (e processes) named(r wire.Resource) (named, wire.ProcessSpec, error) {
	s, err := read[wire.ProcessSpec](r)
	if err == nil && !(safe(string(r.Instance)) && safe(s.Name)) {
		err = appliance.Errorf(appliance.Invalid, "process %s of instance %s: a name does not fit the grammar", appliance.Quote(s.Name), appliance.Quote(string(r.Instance))).
			WithHint("lower-case letters, digits and dashes, at most 40")
	}
	return named{r.Instance, s.Name}, s, err
}

// safe is the closed grammar of names where they become paths (SAFE-3).
func safe(name string) bool {
	return name != "" && len(name) <= appliance.MaxName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// wanted looks up what the spec names: user, program, folder.
func (e processes) wanted(r wire.Resource) (w wanted, err error) {
	var s wire.ProcessSpec
	if w.named, s, err = e.named(r); err != nil {
		return w, err
	}
	fail := func(err error) (wanted, error) { return w, fmt.Errorf("process %s: %w", r.ID, err) }
	if len(s.Command) == 0 {
		return fail(appliance.Errorf(appliance.Invalid, "no command"))
	}
	u, err := user.Lookup(s.User)
	if err != nil {
		return fail(appliance.Errorf(appliance.NotFound, "no user %s on this machine", appliance.Quote(s.User)))
	}
	w.user, w.stopped = s.User, s.Stopped
	w.spec = supervise.Spec{Command: slices.Clone(s.Command), Directory: cmp.Or(s.Directory, e.Installation.Module(r.Instance)), Restart: cmp.Or(s.Restart, supervise.Always)}
	if w.spec.Command[0], err = e.find(s.Command[0], w.spec.Directory); err != nil {
		return fail(err)
	}
	if s.Stop != "" {
		if w.spec.Stop, err = time.ParseDuration(s.Stop); err != nil {
			return fail(appliance.Errorf(appliance.Invalid, "stop %s is not a duration", appliance.Quote(s.Stop)))
		}
		w.spec.Stop = max(w.spec.Stop, time.Millisecond) // zero would mean the default
	}
	if w.spec.UID, w.spec.GID, w.spec.Groups, err = ids(u); err != nil {
		return fail(err)
	}
	home := u.HomeDir
	if home == "" || home == noHome {
		home = w.spec.Directory
	}
	w.spec.Environment = map[string]string{"HOME": home, "USER": u.Username, "LOGNAME": u.Username}
	for name, value := range s.Environment {
		w.spec.Environment[name] = value
	}
	w.spec.Environment["MESH_STATE"] = e.Installation.Dir
	w.spec.Environment["MESH_NODE"] = string(e.Node)
	w.spec.Environment["MESH_INSTANCE"] = string(r.Instance)
	return w, nil
}

func ids(u *user.User) (uid, gid uint32, groups []uint32, err error) {
	number := func(s string) uint32 {
		n, e := strconv.ParseUint(s, 10, 32)
		if e != nil && err == nil {
			err = fmt.Errorf("user %s: %w", u.Username, e)
		}
		return uint32(n)
	}
	uid, gid = number(u.Uid), number(u.Gid)
	names, e := u.GroupIds()
	if e != nil {
		return 0, 0, nil, fmt.Errorf("groups of user %s: %w", u.Username, e)
	}
	for _, g := range names {
		groups = append(groups, number(g))
	}
	slices.Sort(groups)
	return uid, gid, groups, err
}

func (e processes) Observe(ctx context.Context, r wire.Resource) (host.Observation, error) {
	w, err := e.wanted(r)
	if err != nil && appliance.KindOf(err) == appliance.NotFound { // user or program: they come before it
		return host.Observation{Differs: err.Error()}, nil
	}
	if err != nil {
		return host.Observation{}, err
	}
	return e.keeper.observe(ctx, w)
}

// Before has nothing to keep: the process's names are the mesh's own.
func (e processes) Before(context.Context, wire.Resource) (json.RawMessage, error) { return nil, nil }

func (e processes) Do(ctx context.Context, r wire.Resource) error {
	w, err := e.wanted(r)
	if err != nil {
		return err
	}
	if w.stopped {
		return e.keeper.halt(ctx, w)
	}
	return e.keeper.start(ctx, w)
}

func (e processes) Undo(ctx context.Context, r wire.Resource, _ json.RawMessage) (bool, error) {
	n, _, err := e.named(r)
	if err != nil {
		return false, err
	}
	return false, e.keeper.remove(ctx, n)
}

func (e processes) Status(ctx context.Context, r wire.Resource) (host.Running, error) {
	n, _, err := e.named(r)
	if err != nil {
		return host.Running{}, err
	}
	return e.keeper.status(ctx, n)
}

func (e processes) Act(ctx context.Context, r wire.Resource, action string) error {
	n, s, err := e.named(r)
	if err != nil {
		return err
	}
	switch action {
	case "restart":
		return e.keeper.restart(ctx, n)
	case "reload":
		return e.keeper.signal(ctx, n, "HUP")
	case "signal":
		if name := cmp.Or(s.Signal, "HUP"); supervise.Signals[name] != 0 {
			return e.keeper.signal(ctx, n, name)
		}
		return appliance.Errorf(appliance.Invalid, "process %s: %s is no signal that is sent", r.ID, appliance.Quote(s.Signal))
	}
	return appliance.Errorf(appliance.Invalid, "process %s: unknown action %s", r.ID, appliance.Quote(action))
}

func (e processes) Log(ctx context.Context, r wire.Resource, n int) ([]string, error) {
	p, _, err := e.named(r)
	if err != nil {
		return nil, err
	}
	return e.keeper.log(ctx, p, n)
}

func (e processes) Check(ctx context.Context, r wire.Resource, command []string) error {
	c, err := e.beside(ctx, r, command)
	if err != nil {
		return err
	}
	_, err = run.Output(ctx, c)
	return err
}

// supervisors keeps each process by a supervisor of its own.
type supervisors struct{ Config }

func (s supervisors) dir(p named) string { return s.Installation.ProcessDir(p.instance, p.name) }

func (s supervisors) observe(ctx context.Context, p wanted) (host.Observation, error) {
	have, ok := supervise.Described(s.dir(p.named))
	if !ok {
		return host.Observation{}, nil
	}
	status, err := supervise.Get(ctx, s.dir(p.named))
	if err != nil {
		return host.Observation{}, err
	}
	o := host.Observation{Present: true}
	switch {
	case !have.Same(p.spec):
		o.Differs = "definition"
	case p.stopped && (status.Supervised || status.PID != 0 || !status.Stopped):
		o.Differs = status.State + ", want stopped"
	case p.stopped:
	case !status.Supervised:
		o.Differs = "no supervisor"
	case status.State == "stopped" && (status.Stopped || p.spec.Restart == supervise.Always):
		o.Differs = "stopped, want running"
	}
	o.Matches = o.Differs == ""
	return o, nil
}

func (s supervisors) start(ctx context.Context, p wanted) error {
	dir := s.dir(p.named)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := supervise.Start(ctx, dir, p.spec, []string{s.Installation.Binary(), "supervise"}); err != nil {
		return err
	}
	if status, err := supervise.Get(ctx, dir); err == nil && status.PID == 0 && strings.HasPrefix(status.LastExit, "start: ") {
		return appliance.Errorf(appliance.NotReady, "process %s of %s: %s", p.name, p.instance, status.LastExit)
	}
	return nil
}

func (s supervisors) halt(ctx context.Context, p wanted) error {
	dir := s.dir(p.named)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return supervise.Halt(ctx, dir, p.spec)
}

func (s supervisors) remove(ctx context.Context, p named) error {
	return supervise.Remove(ctx, s.dir(p))
}

func (s supervisors) status(ctx context.Context, p named) (host.Running, error) {
	status, err := supervise.Get(ctx, s.dir(p))
	return host.Running{State: status.State, PID: status.PID, Since: status.Since, Restarts: status.Restarts}, err
}

func (s supervisors) restart(ctx context.Context, p named) error {
	return supervise.Restart(ctx, s.dir(p))
}

func (s supervisors) signal(ctx context.Context, p named, name string) error {
	if name == "HUP" {
		return supervise.Reload(ctx, s.dir(p)) // an older supervisor knows no other
	}
	return supervise.Signal(ctx, s.dir(p), name)
}

func (s supervisors) log(_ context.Context, p named, n int) ([]string, error) {
	return supervise.Log(s.dir(p), n)
}
