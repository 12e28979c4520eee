package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/genesis"
	"github.com/novox/mesh/genesis/cluster"
	"github.com/novox/mesh/genesis/serve"
)

// What is done with the store's files is done as the user whose they are, in a process of its own: root is led nowhere by what that
// user put there. The two speak in lines of JSON.

// told is one line: a step, the plan, or the error at the end.
type told struct {
	genesis.Event
	Took  time.Duration    `json:"took,omitempty"`
	Plan  *cluster.Plan    `json:"plan,omitempty"`
	Error *appliance.Error `json:"error,omitempty"`
}

const maxTold = 1 << 20 // of all lines together

// The kinds of work.
const (
	workPlan     = "plan"
	workMove     = "move"
	workPrograms = "programs" // look for the programs that may start the store
)

func newStoreWork(g *global) *cobra.Command {
	var o cluster.Options
	c := &cobra.Command{Use: "work WHAT", Short: "The part of store upgrade that runs as the hub's user", Hidden: true, Args: exactly(1, "what to do"),
		RunE: func(c *cobra.Command, args []string) error {
			i, err := g.install()
			if err != nil {
				return err
			}
			out := json.NewEncoder(c.OutOrStdout())
			tell := func(t told) { _ = out.Encode(t) } // who does not listen any more has ended us, too
			if err := storeWork(c.Context(), args[0], i, o, tell); err != nil {
				tell(told{Error: appliance.AsError(err)})
			}
			return nil
		}}
	c.Flags().StringVar(&o.From, "from-bin", "", "")
	c.Flags().StringVar(&o.To, "to-bin", "", "")
	return c
}

func storeWork(ctx context.Context, what string, i installation.Installation, o cluster.Options, tell func(told)) error {
	if what == workPrograms {
		s, err := serve.ReadSettings(i)
		if err == nil && s.StoreFile == "" {
			_, err = serve.Programs(i, s)
		}
		return err
	}
	if what == workPlan {
		p, err := cluster.Look(i, o)
		tell(told{Plan: &p})
		return err
	}
	return cluster.Move(ctx, i, o, func(e genesis.Event) { tell(told{Event: e, Took: e.Took}) })
}

// hubUser does the work of an installation.
type hubUser struct {
	install installation.Installation
	options cluster.Options
}

func asHub(i installation.Installation, o cluster.Options) hubUser { return hubUser{i, o} }

func (h hubUser) plan(ctx context.Context) (p cluster.Plan, err error) {
	err = h.work(ctx, workPlan, func(t told) {
		if t.Plan != nil {
			p = *t.Plan
		}
	})
	return p, err
}

func (h hubUser) move(ctx context.Context, tell func(genesis.Event)) error {
	return h.work(ctx, workMove, func(t told) {
		if t.State != "" {
			tell(genesis.Event{Step: plain(t.Step), State: t.State, Text: plain(t.Text), Took: t.Took})
		}
	})
}

// whyAway says, where the hub is this machine and does not answer, whether it is the store that keeps it.
func whyAway(ctx context.Context, root *cobra.Command, err error) error {
	if kind := appliance.KindOf(err); kind != appliance.Unavailable && kind != appliance.NotReady || os.Geteuid() != 0 {
		return err
	}
	state, _ := root.PersistentFlags().GetString("state")
	i, e := installation.Find(state)
	if e != nil {
		return err
	}
	if r, e := i.Read(); e != nil || !r.Hub {
		return err
	}
	if e := asHub(i, cluster.Options{}).work(ctx, workPrograms, func(told) {}); appliance.IsReason(e, serve.OtherMajor) {
		return e
	}
	return err
}

func (h hubUser) work(ctx context.Context, what string, hear func(told)) error {
	u, err := user.Lookup(serve.User)
	if err != nil {
		return appliance.Errorf(appliance.NotFound, "work as the hub's user: %w", err).WithHint("genesis makes it; run it once more").WithNext("mesh genesis …")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	args := []string{"store", "work", what, "--state", h.install.Dir, "--from-bin", h.options.From, "--to-bin", h.options.To}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, os.Stderr
	// It ends with us, in good order. The kernel ties that to the thread that starts it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 2 * time.Minute
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("work as user %s: %w", serve.User, err)
	}
	var said *appliance.Error
	for lines := json.NewDecoder(io.LimitReader(out, maxTold)); ; {
		var t told
		if err := lines.Decode(&t); err != nil {
			break // its end
		}
		if t.Error != nil {
			said = t.Error
		}
		hear(t)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("work as user %s: %w", serve.User, err)
	}
	if said != nil {
		return said
	}
	return nil
}
