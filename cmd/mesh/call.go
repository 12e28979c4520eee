package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/genesis/leave"
)

const (
	callWithin = 30 * time.Second // one request, the connection included
	dialWithin = 5 * time.Second  // the connection
	saidAfter  = time.Second      // how long it may take before that is said
)

func (g *global) install() (installation.Installation, error) { return installation.Find(g.state) }

// credential gives the operator's credential of this machine.
func (g *global) credential() (operators.Credential, error) {
	i, err := g.install()
	if err != nil {
		return operators.Credential{}, err
	}
	if m, err := leave.Find(i); err == nil && m.Left { // on a hub the credential is among what is kept
		return operators.Credential{}, appliance.Errorf(appliance.Conflict, "ask mesh %s: this machine is in it no more, and only what was kept is here", m.MeshName).
			WithHint("leaving again lists that").WithNext(m.Command())
	}
	c, err := operators.ReadCredential(i.Operator())
	switch {
	case os.IsNotExist(err):
		if r, err := i.Read(); err == nil && !r.Hub {
			if err := leave.Refuse(i, "ask mesh "+r.MeshName); err != nil {
				return c, err
			}
			return c, appliance.Errorf(appliance.NotFound, "no operator's credential on node %s", r.Name).
				WithHint("commands to mesh " + r.MeshName + " are given on its hub, as root")
		}
		return c, appliance.Errorf(appliance.NotFound, "no operator's credential in %s", i.Dir).
			WithHint("mesh commands are given on the hub, as root; genesis makes the first operator there").WithNext("mesh genesis --name NAME --endpoint HOST")
	case os.IsPermission(err):
		return c, appliance.Errorf(appliance.Denied, "read the operator's credential: %w", err).WithHint("it is root's").WithNext("sudo mesh …")
	}
	return c, err
}

// dial connects under this machine's credential, and says so where that takes time.
func (g *global) dial(ctx context.Context, within time.Duration, w io.Writer) (*client.Client, error) {
	c, err := g.credential()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	said := time.AfterFunc(saidAfter, func() { fmt.Fprintf(w, "waiting: for the hub at %s\n", strings.Join(c.Broker, ", ")) })
	defer said.Stop()
	return client.Dial(ctx, c, slog.New(slog.DiscardHandler))
}

// call asks one verb.
func (g *global) call(c *cobra.Command, verb operators.Verb, arguments, result any) error {
	ctx, cancel := context.WithTimeout(c.Context(), callWithin)
	defer cancel()
	cl, err := g.dial(ctx, dialWithin, c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer cl.Close()
	return cl.Call(ctx, verb, arguments, result)
}

// judge says whether a status is what is waited for, cannot become so, or what is not yet so.
type judge func(operators.Status) (good bool, bad, waiting []string)

// current judges by whether the nodes (none: all) are current, clean and healthy.
func current(nodes []appliance.NodeName) judge {
	return func(s operators.Status) (bool, []string, []string) { return s.Settled(nodes...) }
}

// settle asks for the status until it is what is waited for. It says what it waits for when that changes, and ends at once when that
// cannot come about any more (DEC-7).
func settle(ctx context.Context, cl *client.Client, is judge, waiting func(string)) error {
	said := ""
	say := func(text string) {
		if text != said {
			waiting(text)
			said = text
		}
	}
	for {
		var status operators.Status
		err := cl.Call(ctx, operators.StatusShow, struct{}{}, &status)
		switch {
		case err == nil:
			good, bad, rest := is(status)
			if good {
				return nil
			}
			if len(bad) > 0 {
				return appliance.Errorf(appliance.Conflict, "%s", strings.Join(bad, "; ")).WithReason(notSettled).WithHint("the node tries again by itself; its account is in the status").WithNext("mesh status")
			}
			say(strings.Join(rest, "; "))
		case appliance.KindOf(err) != appliance.Unavailable && appliance.KindOf(err) != appliance.NotReady && appliance.KindOf(err) != appliance.NotFound:
			return err
		case ctx.Err() == nil || said == "": // time that is up says nothing of the controller
			say("the controller does not answer yet")
		}
		select {
		case <-ctx.Done():
			return appliance.Errorf(appliance.NotReady, "waited until the time was up; not so yet: %s: %w", said, ctx.Err()).
				WithHint("the mesh goes on without this command; look again, or wait longer").WithNext("mesh status")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// notSettled marks that a current node has failed: the answer is no.
const notSettled appliance.Reason = "not-settled"

// checkWait refuses a wait of no length before anything is asked or changed.
func checkWait(c *cobra.Command, wait bool, timeout time.Duration) error {
	if wait && timeout <= 0 {
		return usage(c, fmt.Sprintf("--timeout %s is no time to wait; such as 30s or 2m", timeout))
	}
	return nil
}

// wait is what --wait does for nodes (none: all).
func (g *global) wait(c *cobra.Command, timeout time.Duration, nodes []appliance.NodeName) error {
	return g.waitUntil(c, timeout, current(nodes))
}

// waitUntil ends with exit 1 when the answer is no.
func (g *global) waitUntil(c *cobra.Command, timeout time.Duration, is judge) error {
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	cl, err := g.dial(c.Context(), max(timeout, dialWithin), c.ErrOrStderr()) // the hub may be reached when the time is up
	if err != nil {
		return err
	}
	defer cl.Close()
	err = settle(ctx, cl, is, func(text string) { fmt.Fprintln(c.ErrOrStderr(), plain("waiting: "+text)) })
	if appliance.IsReason(err, notSettled) {
		fail(c.ErrOrStderr(), c, err)
		return errNo
	}
	return err
}
