package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/embedded/postgres"
	"github.com/novox/mesh/genesis"
	"github.com/novox/mesh/genesis/serve"
)

// lockWithin is how long the hub's process, or the rest of a killed upgrade, may take to let go.
const lockWithin = time.Minute

// move is one run.
type move struct {
	install  installation.Installation
	options  Options
	plan     Plan
	old, new *postgres.Server
	log      io.WriteCloser
}

// Move does what Look plans. Killed anywhere, the next Move finishes it: until the switch the old cluster stands untouched and everything
// begins anew, afterwards the new one does.
func Move(ctx context.Context, i installation.Installation, o Options, tell func(genesis.Event)) error {
	p, err := Look(i, o)
	if err == nil && p.Stage != Done {
		var release func()
		if release, err = hold(ctx, i); err != nil {
			return err
		}
		defer release()
		p, err = Look(i, o) // the rest of a killed one may have come to its end meanwhile
	}
	if err != nil {
		return err
	}
	m := &move{install: i, options: o, plan: p}
	defer m.close()
	for _, s := range m.steps() {
		if err := genesis.Take(s.name, tell, func() error { return s.do(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// hold keeps the hub's own process away, as that process would another.
func hold(ctx context.Context, i installation.Installation) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWithin)
	defer cancel()
	for {
		release, err := installation.Hold(serve.LockFile(i), "mesh store upgrade")
		if appliance.KindOf(err) != appliance.Conflict {
			return release, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

type step struct {
	name string
	do   func(context.Context) error
}

func (m *move) steps() []step {
	var steps []step
	if m.plan.Stage == Begin {
		from, to := fmt.Sprintf("PostgreSQL %d", m.plan.From.Major), fmt.Sprintf("PostgreSQL %d", m.plan.To.Major)
		steps = []step{
			{"remove what an earlier try left", m.tidy},
			{"start " + from, m.startOld},
			{"dump the records", func(ctx context.Context) error { return m.old.Dump(ctx, m.plan.To.Bin, m.dump()) }},
			{"make a cluster of " + to, m.startNew},
			{"load the records", func(ctx context.Context) error { return m.new.Load(ctx, m.dump()) }},
			{"compare both", m.compare},
			{"stop both", func(context.Context) error { return m.close() }},
			{"put the old cluster aside", m.putAside},
		}
	}
	if m.plan.Stage != Done {
		steps = append(steps, step{"put the new cluster in its place", m.putInPlace})
	}
	return append(steps, step{"note where the programs are", m.note}, step{"remove what is not needed any more", m.tidy})
}

// beside is a path next to the cluster. Sockets have names no longer than the one the hub uses.
func (m *move) beside(name string) string {
	return filepath.Join(filepath.Dir(serve.Cluster(m.install)), name)
}
func (m *move) dump() string { return serve.Cluster(m.install) + ".dump" }

func (m *move) tidy(ctx context.Context) error {
	if err := postgres.Remove(ctx, serve.NewCluster(m.install), m.beside("new")); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(m.dump()), os.RemoveAll(m.beside("old")))
}

func (m *move) startOld(ctx context.Context) (err error) {
	m.old, err = m.start(ctx, m.plan.From.Bin, serve.Cluster(m.install), "old")
	return err
}

func (m *move) startNew(ctx context.Context) (err error) {
	m.new, err = m.start(ctx, m.plan.To.Bin, serve.NewCluster(m.install), "new")
	return err
}

func (m *move) start(ctx context.Context, bin, data, socket string) (_ *postgres.Server, err error) {
	if m.log == nil {
		if m.log, err = serve.StoreLog(m.install); err != nil {
			return nil, err
		}
	}
	return postgres.Start(ctx, serve.StoreConfig(bin, data, m.beside(socket), m.log))
}

// compare refuses a copy that is not the same in everything.
func (m *move) compare(ctx context.Context) error {
	before, err := store.Contents(ctx, m.old.DSN())
	if err != nil {
		return err
	}
	after, err := store.Contents(ctx, m.new.DSN())
	if err != nil {
		return err
	}
	if d := differences(before, after); len(d) > 0 {
		return appliance.Errorf(appliance.Internal, "compare both clusters: the new one is not the same: %s", strings.Join(d[:min(len(d), 5)], "; ")).
			WithHint("the old cluster is as it was, and the hub goes on with it; what the mesh did not make there is not carried over")
	}
	return nil
}

func differences(before, after map[string]string) (found []string) {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if now, ok := after[name]; !ok {
			found = append(found, name+" is missing")
		} else if now != before[name] {
			found = append(found, fmt.Sprintf("%s had %s, has %s", name, before[name], now))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok {
			found = append(found, name+" was not there")
		}
	}
	return found
}

// close stops the servers, which syncs what they hold.
func (m *move) close() error {
	var errs []error
	for _, s := range []*postgres.Server{m.old, m.new} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if m.log != nil {
		errs = append(errs, m.log.Close())
	}
	m.old, m.new, m.log = nil, nil, nil
	return errors.Join(errs...)
}

func (m *move) putAside(context.Context) error {
	return m.rename(serve.Cluster(m.install), m.plan.Kept)
}

func (m *move) putInPlace(context.Context) error {
	return m.rename(serve.NewCluster(m.install), serve.Cluster(m.install))
}

func (m *move) rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return durable.SyncFolder(filepath.Dir(to))
}

// note writes down the folder of the programs where the hub would not find it by itself.
func (m *move) note(context.Context) error {
	s, err := serve.ReadSettings(m.install)
	if err != nil {
		return err
	}
	want := m.options.To
	if want == "" && s.PostgresBin != "" {
		made, err := postgres.MadeBy(serve.Cluster(m.install))
		if err != nil {
			return err
		}
		if _, major, err := postgres.Find(s.PostgresBin); err == nil && major == made {
			want = s.PostgresBin
		}
	}
	if want == s.PostgresBin {
		return nil
	}
	s.PostgresBin = want
	return s.Write(m.install)
}
