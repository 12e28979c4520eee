package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/downloads"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/genesis"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/services"
)

// settledWithin bounds the wait for a hub that came up; a package installation before it is not counted.
const settledWithin = 2 * time.Minute

func newGenesis(g *global) *cobra.Command {
	var o genesis.Options
	var name, node, network string
	var rootless, foreground, yes bool
	c := &cobra.Command{Use: "genesis --name NAME --endpoint HOST[:PORT]", Short: "Found a mesh: this machine becomes its hub", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			switch {
			case rootless:
				return appliance.Errorf(appliance.Invalid, "genesis --rootless is not carried out by this version").
					WithHint("without root there would be no TUN device, no ports below 1024, no packages and no users").WithNext("sudo mesh genesis")
			}
			if o.Install, err = g.install(); err != nil {
				return err
			}
			if o.Name = name; name == "" {
				host, _ := os.Hostname()
				o.Name = strings.ToLower(strings.Split(host, ".")[0])
			}
			o.Node = appliance.NodeName(node)
			if network != "" {
				if o.Range, err = netip.ParsePrefix(network); err != nil {
					return usage(c, fmt.Sprintf("--range %s is no range such as 10.64.0.0/16", appliance.Quote(network)))
				}
			}
			if err := probe.Root("genesis"); err != nil {
				return err
			}
			if err := probe.Clock(clock(), pki.Built()); err != nil {
				return err
			}
			return runGenesis(c, g, o, foreground)
		}}
	f := c.Flags()
	f.StringVar(&name, "name", "", "name of the mesh (default: this machine's host name)")
	f.StringVar(&node, "node", "hub", "name of this machine in the mesh")
	f.StringSliceVar(&o.Endpoints, "endpoint", nil, "where other machines reach this one: HOST or HOST:PORT; may be given several times")
	f.StringVar(&network, "range", "", "range of the overlay (default: one that overlaps nothing here)")
	f.StringVar(&o.StoreFile, "store-file", os.Getenv("MESH_STORE_FILE"), "file with the DSN of an existing PostgreSQL database")
	f.StringVar(&o.PostgresBin, "postgres-bin", "", "folder with PostgreSQL's programs")
	f.Uint16Var(&o.Ports.Broker, "broker-port", 0, "port of the broker (default 4222)")
	f.Uint16Var(&o.Ports.Downloads, "downloads-port", 0, "port of the download server (default 4280)")
	f.Uint16Var(&o.Ports.Artifacts, "artifacts-port", 0, "port of the artifact store (default 4281)")
	sizeVar(f, &o.LeastFree, "least-free", leastFreeUsage)
	sizeVar(f, &o.Ballast, "ballast", "disk space held in reserve, so that the hub comes through a full disk (default 64M; 0: none)")
	f.Uint16Var(&o.Ports.Overlay, "overlay-port", 0, "UDP port of the overlay (default 51820)")
	f.BoolVar(&rootless, "rootless", false, "without root (not carried out yet)")
	f.BoolVar(&foreground, "foreground", false, "stay, and stop the mesh's processes at the end (for containers)")
	f.BoolVar(&yes, "yes", false, "ask nothing")
	return c
}

// otherBuild says whether an installation runs another binary than this one.
func otherBuild(i installation.Installation) bool {
	this, err1 := downloads.DigestOf("/proc/self/exe")
	its, err2 := downloads.DigestOf(i.Binary())
	return err1 == nil && err2 == nil && this != its
}

func runGenesis(c *cobra.Command, g *global, o genesis.Options, foreground bool) error {
	o.Log = slog.New(slog.DiscardHandler)
	s := services.For(o.Install)
	begun := time.Now()
	result, err := genesis.Run(c.Context(), o, machine(o.Install), s, settleHub(), g.stepPrinter(c.ErrOrStderr(), c.OutOrStdout()))
	if err != nil {
		return err
	}
	if len(result.Unheeded) > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "note: the hub's endpoints were decided the first time, and stay: %s. Not among them: %s.\n", strings.Join(result.Settings.Endpoints, ", "), strings.Join(result.Unheeded, ", "))
	}
	if result.Already {
		if otherBuild(o.Install) {
			fmt.Fprintf(c.ErrOrStderr(), "note: this binary is another build of mesh than the one that runs here, %s, and that one stays: a running mesh is not upgraded yet.\n", o.Install.Binary())
		}
		fmt.Fprintf(c.ErrOrStderr(), "The hub of mesh %s is founded and runs. A line that joins another machine: mesh token create\n", result.Settings.Name)
		return newStatusAnswer(g, c)
	}
	ctx, cancel := context.WithTimeout(c.Context(), callWithin)
	defer cancel()
	cl, err := client.Dial(ctx, result.Credential, o.Log)
	if err != nil {
		return err
	}
	defer cl.Close()
	var token operators.CreatedToken
	if err := cl.Call(ctx, operators.TokenCreate, operators.NewToken{}, &token); err != nil {
		return err
	}
	end := map[string]any{"step": "closing", "state": "done", "mesh": result.Settings.Mesh, "name": result.Settings.Name, "join": token.Join, "curl": token.Curl, "serves": token.Serves}
	if err := g.show(c, end, func(w io.Writer) { closing(w, o.Install.Dir, result, token, s.Kind(), time.Since(begun)) }); err != nil {
		return err
	}
	if foreground {
		return stayInForeground(c.Context(), o.Install, s)
	}
	return nil
}

// settleHub waits until the nodes, by default all, are current; a hub that was just founded is the only one.
func settleHub(nodes ...appliance.NodeName) func(context.Context, operators.Credential, func(string)) error {
	return func(ctx context.Context, credential operators.Credential, waiting func(string)) error {
		ctx, cancel := context.WithTimeout(ctx, settledWithin)
		defer cancel()
		said := time.AfterFunc(saidAfter, func() { waiting("the hub does not answer yet at " + strings.Join(credential.Broker, ", ")) })
		defer said.Stop()
		cl, err := client.Dial(ctx, credential, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer cl.Close()
		said.Stop()
		return settle(ctx, cl, current(nodes), waiting)
	}
}

// stepPrinter tells steps: a line each with its time on w, or an object each on stdout.
func (g *global) stepPrinter(w, stdout io.Writer) func(genesis.Event) {
	if g.output == "json" {
		e := json.NewEncoder(stdout)
		return func(ev genesis.Event) {
			if ev.State == genesis.Started {
				return
			}
			_ = e.Encode(struct {
				genesis.Event
				Milliseconds int64 `json:"milliseconds"`
			}{ev, ev.Took.Milliseconds()})
		}
	}
	return func(ev genesis.Event) {
		switch ev.State {
		case genesis.Done, genesis.Already:
			fmt.Fprintf(w, "%-8s %-40s %6.2fs\n", ev.State, ev.Step, ev.Took.Seconds())
		case genesis.Failed:
			fmt.Fprintf(w, "%-8s %-40s %6.2fs\n", "failed", ev.Step, ev.Took.Seconds())
		case genesis.Waiting:
			fmt.Fprintf(w, "         %s\n", ev.Text)
		}
	}
}

// closing is the screen at the end: the join lines, what to do next, what to keep.
func closing(w io.Writer, state string, r genesis.Result, token operators.CreatedToken, kind string, took time.Duration) {
	fmt.Fprintf(w, "\nMesh %s stands after %.1f s. This machine is its hub, node %s, %s in the overlay %s.\n", r.Settings.Name, took.Seconds(), r.Settings.Hub.Name, r.Settings.Hub.Address, r.Settings.Range)
	fmt.Fprintf(w, "\nOn a machine that shall join, as root (one machine, until %s):\n", token.Expires.Local().Format(time.DateTime))
	joinLines(w, token)
	fmt.Fprint(w, "\nNext:\n\n  mesh status\n  mesh module register hello\n  mesh module assign hello NODE --push --wait\n")
	fmt.Fprintf(w, "\nKeep a copy of the state folder %s somewhere else: it holds the keys of the mesh, and nothing can make them again.\n", state)
	if kind == "detached" {
		fmt.Fprint(w, "\nThere is no systemd or OpenRC here: a reboot starts nothing. After one, run `mesh start`.\n")
	}
}
