package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

func newLogs(g *global) *cobra.Command {
	open := wire.Opening{Logs: &wire.Logs{}}
	c := &cobra.Command{Use: "logs INSTANCE[@NODE]", Short: "Show what an instance's processes and containers wrote", Args: exactly(1, "INSTANCE or INSTANCE@NODE"),
		ValidArgsFunction: g.complete(false, scopedNames),
		RunE: func(c *cobra.Command, args []string) error {
			if g.output == "yaml" {
				return usage(c, "logs come as lines or, with -o json, as one object for each line")
			}
			cl, err := g.dial(c.Context(), dialWithin, c.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cl.Close()
			instance, nodes, err := placed(c.Context(), cl, args[0])
			if err != nil {
				return err
			}
			open.Instance = instance
			out := &logOutput{w: c.OutOrStdout(), rest: c.ErrOrStderr(), json: g.output == "json", instance: instance, several: len(nodes) > 1}
			if err := attachAll(c.Context(), cl, nodes, open, out); err != nil {
				return err
			}
			if len(out.parts) == 0 && c.Context().Err() == nil {
				fmt.Fprintf(c.ErrOrStderr(), "%s has written nothing\n", args[0])
			}
			return nil
		}}
	c.Flags().BoolVarP(&open.Logs.Follow, "follow", "f", false, "go on with what is written from now on")
	c.Flags().IntVarP(&open.Logs.Lines, "lines", "n", 100, "how many lines of the past")
	c.Flags().StringVar(&open.Part, "in", "", "only this process or container of the instance")
	_ = c.RegisterFlagCompletionFunc("in", cobra.NoFileCompletions)
	return c
}

// attachAll shows the logs on all nodes at once.
func attachAll(ctx context.Context, cl *client.Client, nodes []appliance.NodeName, open wire.Opening, out *logOutput) error {
	failed := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() { failed <- followLogs(ctx, cl, node, open, out) }()
	}
	var all []error
	for range nodes {
		if err := <-failed; err != nil && ctx.Err() == nil && !slices.ContainsFunc(all, func(one error) bool { return one.Error() == err.Error() }) {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// attach opens a session, and says so where the node takes its time.
func attach(ctx context.Context, cl *client.Client, node appliance.NodeName, open wire.Opening, w io.Writer) (*client.Session, error) {
	said := time.AfterFunc(saidAfter, func() { fmt.Fprintf(w, "waiting: for node %s\n", node) })
	defer said.Stop()
	return cl.Attach(ctx, node, open)
}

func followLogs(ctx context.Context, cl *client.Client, node appliance.NodeName, open wire.Opening, out *logOutput) error {
	s, err := attach(ctx, cl, node, open, out.rest)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Each(ctx, func(o wire.Output) error { return out.write(node, o) })
	return err
}

// logOutput writes lines of several nodes and processes to one place.
type logOutput struct {
	w, rest  io.Writer // the lines, and what is said beside them
	json     bool
	instance appliance.InstanceName
	several  bool // nodes

	mu    sync.Mutex
	parts map[string]bool
}

// logLine is a line with -o json.
type logLine struct {
	Instance appliance.InstanceName `json:"instance"`
	Node     appliance.NodeName     `json:"node"`
	Part     string                 `json:"part"`
	Line     string                 `json:"line"`
}

func (l *logOutput) write(node appliance.NodeName, o wire.Output) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parts == nil {
		l.parts = map[string]bool{}
	}
	l.parts[o.Part] = true
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	for line := range strings.Lines(strings.ToValidUTF8(string(o.Data), "\uFFFD")) {
		line = strings.TrimSuffix(line, "\n")
		if l.json {
			if err := e.Encode(logLine{l.instance, node, o.Part, line}); err != nil {
				return err
			}
			continue
		}
		var from []string
		if l.several {
			from = append(from, string(node))
		}
		if len(l.parts) > 1 {
			from = append(from, o.Part)
		}
		if len(from) > 0 {
			fmt.Fprintf(&text, "%s | ", strings.Join(from, "/"))
		}
		fmt.Fprintln(&text, plain(line))
	}
	_, err := l.w.Write(text.Bytes())
	return err
}

// placed reads INSTANCE or INSTANCE@NODE and says where the instance is.
func placed(ctx context.Context, cl *client.Client, arg string) (appliance.InstanceName, []appliance.NodeName, error) {
	name, at, _ := strings.Cut(arg, "@")
	var status operators.Status
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	if err := cl.Call(ctx, operators.StatusShow, struct{}{}, &status); err != nil {
		return "", nil, err
	}
	return status.Placed(appliance.InstanceName(name), appliance.NodeName(at))
}

// placedNames offers instances with their nodes.
func placedNames(ctx context.Context, g *global) (out []string) {
	for _, n := range ask[operators.Status](ctx, g, operators.StatusShow).Nodes {
		for _, i := range n.Instances {
			out = append(out, string(i.Name)+"@"+string(n.Name))
		}
	}
	return out
}
