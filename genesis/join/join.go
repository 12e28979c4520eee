// Package join makes this machine a node of a mesh: from a token to the first declaration applied. It is resumable: killed anywhere, the
// same command finishes. A refusal says which of address, pin, token, clock, port, name, platform or range is wrong, and leaves
// nothing behind.
package join

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/leave"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/services"
)

// Options are what a person decides. Token is required.
type Options struct {
	Install installation.Installation
	Token   string
	Name    appliance.NodeName // empty: this machine's host name, unless it is a node already
	Labels  map[string]string
	Adopt   bool // what is on the machine is left as it is
	// What has to stay free on the disk, see installation.Record; nil: not said.
	LeastFree *disk.Size
	Log       *slog.Logger
	Timeout   time.Duration    // for reaching the hub and being answered; 0: one minute
	Now       func() time.Time // this machine's clock; nil: time.Now
}

// Machine makes the machine that the node's effects happen on.
type Machine func(mesh appliance.MeshID, node appliance.NodeName) (host.Machine, error)

// Result is what the closing line shows.
type Result struct {
	Record  installation.Record
	Address string
	Already bool
}

// needFree is the free space below which a join does not begin, in bytes.
const needFree = 128 << 20

// joining is one run.
type joining struct {
	Options
	token   enrol.Token
	machine host.Machine // once probe has looked at it
	service services.Services
	tell    func(string)
	fresh   bool // the state folder is this run's own
}

// Run joins. Tell says what is being done, and what it waits for.
func Run(ctx context.Context, o Options, machine Machine, s services.Services, tell func(string)) (Result, error) {
	token, err := enrol.Parse(o.Token)
	if err != nil {
		return Result{}, err
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	j := &joining{Options: o, token: token, service: s, tell: tell}
	record, err := o.Install.Read()
	switch {
	case err == nil:
		if err := leave.Refuse(o.Install, "join"); err != nil {
			return Result{}, err
		}
		return j.again(ctx, record)
	case appliance.KindOf(err) != appliance.NotFound:
		return Result{}, err
	}
	if was, err := leave.Find(o.Install); err == nil && was.Hub {
		return Result{}, appliance.Errorf(appliance.Conflict, "join: %s holds the keys and the data of a hub, that of mesh %s", o.Install.Dir, was.MeshName).
			WithHint("genesis makes a hub of them again, uninstall --purge removes them; or join with another folder").WithNext("mesh join TOKEN --state FOLDER")
	}
	if err := j.named(); err != nil {
		return Result{}, err
	}
	if err := j.probe(machine); err != nil {
		return Result{}, err
	}
	_, err = os.Stat(o.Install.Dir)
	j.fresh = os.IsNotExist(err)
	release, err := o.Install.Lock("mesh join")
	if err != nil {
		return Result{}, err
	}
	defer release()
	admission, err := j.enter(ctx)
	if err != nil {
		j.cleanUp(err)
		return Result{}, err
	}
	if record, err = j.settle(admission); err != nil {
		return Result{}, err
	}
	return j.finish(ctx, record, false)
}

// again is the same command on a machine that is a node: of this mesh, it sees to it that the agent runs; of another, it refuses.
func (j *joining) again(ctx context.Context, r installation.Record) (Result, error) {
	if r.Mesh != j.token.Mesh {
		return Result{}, appliance.Errorf(appliance.Conflict, "join: this machine is node %s of mesh %s (%s)", r.Name, r.MeshName, r.Mesh).
			WithHint("a machine is in one mesh per state folder; join another mesh with --state and another folder").WithNext("mesh join TOKEN --state FOLDER")
	}
	if j.Name != "" && j.Name != r.Name {
		return Result{}, appliance.Errorf(appliance.Conflict, "join: this machine is node %s already, not %s", r.Name, j.Name).
			WithHint("a node keeps its name; the same line without --name, or with this one, sees to it that it runs").WithNext("mesh start")
	}
	if !r.Keeps(j.LeastFree) {
		if err := j.keepFree(ctx, &r); err != nil {
			return Result{}, err
		}
	}
	return j.finish(ctx, r, true)
}

// keepFree records another floor, which the agent takes up when it starts.
func (j *joining) keepFree(ctx context.Context, r *installation.Record) error {
	release, err := j.Install.Lock("mesh join")
	if err != nil {
		return err
	}
	defer release()
	r.LeastFree = j.LeastFree
	if err := j.Install.Write(*r); err != nil {
		return err
	}
	return j.service.StopAgent(ctx)
}

// named takes the host name where none is given.
func (j *joining) named() (err error) {
	if j.Name != "" {
		return nil
	}
	host, _ := os.Hostname()
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	if j.Name, err = appliance.ParseName[appliance.NodeName]("node", host); err != nil {
		return appliance.AsError(err).WithHint("this machine's host name is no name in a mesh; give one").WithNext("mesh join TOKEN --name NAME")
	}
	return nil
}

func (j *joining) probe(machine Machine) (err error) {
	if j.machine, err = machine(j.token.Mesh, j.Name); err != nil {
		return err
	}
	if err := enrol.CheckPlatform(j.machine.Capabilities()); err != nil {
		return err
	}
	if err := probe.Clock(j.Now(), pki.Built()); err != nil {
		return err
	}
	if err := probe.TUN(); err != nil {
		return err
	}
	if err := probe.Disk(j.Install.Dir, needFree); err != nil {
		return err
	}
	return probe.Room(j.Install.Dir, j.LeastFree)
}

// settle writes down what the node is. The installation's record comes last: with it the machine is a node.
func (j *joining) settle(a enrol.Admission) (installation.Record, error) {
	i := j.Install
	if err := durable.WriteFile(filepath.Join(i.Node(), "membership"), a.Enrolled.Membership, 0o600); err != nil {
		return installation.Record{}, err
	}
	if err := durable.WriteFile(i.Certificate(), pki.EncodePEM(a.Enrolled.Certificate), 0o644); err != nil {
		return installation.Record{}, err
	}
	if err := a.Trust.Write(i.Node()); err != nil {
		return installation.Record{}, err
	}
	r := installation.Record{Mesh: a.Trust.Mesh, MeshName: a.Trust.MeshName, Node: a.Trust.Node, Name: a.Trust.Name, Created: time.Now().UTC(), LeastFree: j.LeastFree}
	return r, i.Write(r)
}

// finish starts the agent and waits until the first declaration is applied.
func (j *joining) finish(ctx context.Context, r installation.Record, already bool) (Result, error) {
	running, err := j.service.Running(ctx)
	if err != nil || !running {
		j.tell("starting the agent")
		if err := j.service.Start(ctx); err != nil {
			return Result{}, fmt.Errorf("start the agent: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, j.Timeout)
	defer cancel()
	said := time.Now()
	for {
		_, about, outcomes, err := agent.Records(j.Install.Node())
		if err == nil && about.Digest != "" {
			if bad := firstBad(outcomes); bad == nil {
				return Result{Record: r, Already: already}, nil
			} else if time.Since(said) > 2*time.Second {
				j.tell(fmt.Sprintf("waiting for %s: %s", bad.ID, bad.Error))
				said = time.Now()
			}
		} else if time.Since(said) > 2*time.Second {
			j.tell("waiting for the first declaration; what the agent says: " + j.service.Logs())
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			return Result{}, appliance.Errorf(appliance.NotReady, "join: this machine is node %s, and its first declaration is not applied: %w", r.Name, ctx.Err()).
				WithHint("the agent goes on trying; its log says what stands against it").WithNext(j.service.Logs())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func firstBad(outcomes []wire.Outcome) *wire.Outcome {
	for i, o := range outcomes {
		if o.Status == wire.Failed || o.Status == wire.Refused {
			return &outcomes[i]
		}
	}
	return nil
}

// claimedFile marks that a claim may have reached the mesh: from then on the keys are kept until the mesh says that it knows nothing of them.
func (j *joining) claimedFile() string { return filepath.Join(j.Install.Node(), "claimed") }

// cleanUp leaves nothing behind after a failure, unless the keys made here may already be a node's.
func (j *joining) cleanUp(why error) {
	if _, err := os.Stat(j.claimedFile()); err == nil && !enrol.NeverEnrolled(why) {
		j.tell("the keys in " + j.Install.Dir + " are kept: the mesh may have taken them; run the same command again")
		return
	}
	i := j.Install
	paths := []string{i.Run(), filepath.Dir(i.Binary()), i.LockFile()}
	if j.fresh {
		paths = append(paths, i.Dir)
	}
	if err := leave.ClearNode(i); err != nil { // data of an earlier mesh keep their records
		j.tell("left behind: " + err.Error())
	}
	for _, p := range paths {
		if err := os.RemoveAll(p); err != nil {
			j.tell("left behind: " + err.Error())
		}
	}
}

// keys makes the node's keys, or takes those of an interrupted run.
func (j *joining) keys() (identity.NodeKeys, error) {
	i := j.Install
	for _, dir := range []string{i.Node(), i.Run()} {
		mode := os.FileMode(0o755)
		if dir == i.Node() {
			mode = 0o700
		}
		if err := os.MkdirAll(dir, mode); err != nil {
			return identity.NodeKeys{}, err
		}
	}
	if err := services.InstallBinary(i); err != nil {
		return identity.NodeKeys{}, err
	}
	made, err := identity.GenerateNode()
	if err == nil {
		err = made.Save(i.NodeKeys())
	}
	if err != nil {
		return identity.NodeKeys{}, err
	}
	return identity.LoadNode(i.NodeKeys())
}
