// Package cluster moves the hub's records to another major of PostgreSQL (GEN-5): dumped by the newer programs, loaded into a cluster
// beside the old one, compared, and only then put in its place. The old one is kept. All of it is done as the hub's user, while the
// hub's own process is stopped; stopping and starting that is the command's.
package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/embedded/postgres"
	"github.com/novox/mesh/genesis/probe"
	"github.com/novox/mesh/genesis/serve"
)

// Options are folders of PostgreSQL's programs; empty: those on the machine.
type Options struct {
	From string // of the major that made the cluster
	To   string // of the major to go to; empty: the newest
}

// Side is one of the two majors.
type Side struct {
	Major int    `json:"major"`
	Bin   string `json:"bin,omitempty"` // empty where its programs are no longer needed
}

// Plan is what Move will do.
type Plan struct {
	Mesh string `json:"mesh"` // its name
	From Side   `json:"from"`
	To   Side   `json:"to"`
	Kept string `json:"kept"` // where the old cluster stays; once Done: that of an earlier upgrade, if it is still there
	Size int64  `json:"size"` // of it, in bytes
	// Stage says how far an earlier run came.
	Stage Stage `json:"stage"`
}

// Stage of an upgrade.
type Stage string

const (
	Begin  Stage = "begin"  // the cluster is the old one
	Switch Stage = "switch" // the new one is whole, and not yet in its place
	Done   Stage = "done"   // the cluster is of the newest major
)

// Look plans an upgrade and refuses what cannot be, before anything is changed.
func Look(i installation.Installation, o Options) (Plan, error) {
	s, err := serve.ReadSettings(i)
	if err != nil {
		return Plan{}, err
	}
	if s.StoreFile != "" {
		return Plan{}, appliance.Errorf(appliance.Conflict, "upgrade the store: the records of mesh %s are on a server that is not the mesh's own", s.Name).
			WithHint("it was named with --store-file; upgrade it by its own means")
	}
	p := Plan{Mesh: s.Name, Stage: Begin}
	made, err := postgres.MadeBy(serve.Cluster(i))
	if errors.Is(err, os.ErrNotExist) {
		return cutShort(i, p, err)
	}
	if err != nil {
		return p, err
	}
	if p.To, err = newest(s, o); err != nil {
		return p, err
	}
	p.From, p.Kept = Side{Major: made}, kept(i, made)
	switch {
	case made == p.To.Major:
		p.Stage = Done
		return p, p.earlier(i, made-1)
	case made > p.To.Major:
		return p, appliance.Errorf(appliance.Conflict, "upgrade the store: cluster %s was made by PostgreSQL %d, and the newest here is %d", serve.Cluster(i), made, p.To.Major).
			WithHint("it goes to a newer major only: install one, or name the folder of its programs with --to-bin")
	}
	if p.From.Bin, err = older(i, s, o, made); err != nil {
		return p, err
	}
	if err := postgres.Dumps(p.To.Bin); err != nil {
		return p, appliance.Errorf(appliance.NotFound, "upgrade the store: PostgreSQL %d in %s cannot dump: %w", p.To.Major, p.To.Bin, err).
			WithHint("its client programs are in a package of their own: postgresql-client, postgresql")
	}
	if _, err := os.Lstat(p.Kept); err == nil {
		return p, appliance.Errorf(appliance.Conflict, "upgrade the store: %s is there already", p.Kept).
			WithHint("the cluster of an earlier upgrade is kept there; move it away, or remove it if nobody needs it")
	}
	if p.Size, err = size(serve.Cluster(i)); err != nil {
		return p, err
	}
	if err := probe.Disk(serve.Cluster(i), 2*uint64(p.Size)+spare); err != nil { // the dump, and the new cluster
		return p, appliance.AsError(err).WithHint("the dump and the new cluster lie beside the old one until the end; free some space")
	}
	return p, nil
}

// spare is what a new cluster takes beyond its data.
const spare = 128 << 20

// cutShort plans the rest of a run that ended between its last two renames. The old cluster is only moved away when the new one is
// whole, so nothing has to be looked at again.
func cutShort(i installation.Installation, p Plan, gone error) (Plan, error) {
	made, err := postgres.MadeBy(serve.NewCluster(i))
	if err == nil {
		p.Stage, p.To.Major = Switch, made
		err = p.earlier(i, made-1)
	}
	if err == nil && p.Kept != "" {
		return p, nil
	}
	return p, appliance.Errorf(appliance.NotFound, "upgrade the store: there is no cluster: %w", gone).WithHint("is the disk with the store mounted? otherwise restore a backup")
}

// earlier finds the newest cluster that an upgrade has kept, of no newer a major.
func (p *Plan) earlier(i installation.Installation, major int) (err error) {
	for p.From, p.Kept = (Side{}), ""; major > 0; major-- {
		if _, e := os.Lstat(kept(i, major)); e == nil {
			p.From.Major, p.Kept = major, kept(i, major)
			p.Size, err = size(p.Kept)
			return err
		}
	}
	return nil
}

func kept(i installation.Installation, major int) string {
	return fmt.Sprintf("%s.%d", serve.Cluster(i), major)
}

// newest finds the programs to go to.
func newest(s serve.Settings, o Options) (Side, error) {
	bin, major, err := postgres.Find(o.To)
	if o.To == "" && s.PostgresBin != "" {
		if b, m, e := postgres.Find(s.PostgresBin); e == nil && m > major {
			bin, major, err = b, m, nil
		}
	}
	if err != nil {
		return Side{}, appliance.Errorf(appliance.NotFound, "upgrade the store: %w", err).
			WithHint("--to-bin names a folder with initdb, postgres, pg_controldata, pg_dump and pg_restore that user " + serve.User + " can read")
	}
	return Side{major, bin}, nil
}

// older finds the programs that made the cluster: without them nobody can read it.
func older(i installation.Installation, s serve.Settings, o Options, made int) (string, error) {
	if o.From == "" {
		bin, _, err := postgres.FindFor(s.PostgresBin, serve.Cluster(i))
		if err == nil {
			return bin, nil
		}
		return "", appliance.Errorf(appliance.NotFound, "upgrade the store: cluster %s was made by PostgreSQL %d, whose programs are not on this machine", serve.Cluster(i), made).
			WithHint(fmt.Sprintf("only they can read it: bring them back for the upgrade (Debian: postgresql-%d; Fedora: postgresql-upgrade, the major before; Alpine: postgresql%[1]d), or name their folder with --from-bin DIR", made)).
			WithNext(install(made))
	}
	bin, major, err := postgres.Find(o.From)
	if err != nil {
		return "", appliance.Errorf(appliance.NotFound, "upgrade the store: %w", err).
			WithHint("--from-bin names a folder with initdb, postgres and pg_controldata that user " + serve.User + " can read")
	}
	if major != made {
		return "", appliance.Errorf(appliance.Conflict, "upgrade the store: %s has PostgreSQL %d, and cluster %s was made by %d", o.From, major, serve.Cluster(i), made).
			WithHint("--from-bin names the programs of the major that made the cluster")
	}
	return bin, nil
}

// install is the command that brings a major's programs, with what this machine has.
func install(major int) string {
	for _, m := range []struct{ program, command string }{
		{"apt-get", fmt.Sprintf("apt-get install postgresql-%d", major)}, {"dnf", "dnf install postgresql-upgrade"}, {"apk", fmt.Sprintf("apk add postgresql%d", major)},
	} {
		if _, err := run.Find(m.program); err == nil {
			return m.command
		}
	}
	return "mesh store upgrade --from-bin DIR"
}

// size adds up the files of a folder, in which somebody may be at work.
func size(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				total += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return total, err
}
