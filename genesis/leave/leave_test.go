package leave

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/genesis/serve"
	"github.com/novox/mesh/genesis/services"
)

// bench is an installation on a machine.
type bench struct {
	*testing.T
	*hosttest.Machine
	i       installation.Installation
	removed bool  // what starts the agent
	tells   int   // how often the mesh was told
	deaf    error // why it does not hear
	cut     int   // the line before which Run is killed; 0: none
}

// newBench makes a node, or a hub, with a module that has a user, a file and data.
func newBench(t *testing.T, hub bool) *bench {
	b := &bench{T: t, Machine: hosttest.New(), i: installation.Installation{Dir: filepath.Join(t.TempDir(), "mesh")}}
	for _, path := range []string{b.i.Binary(), b.i.NodeKeys() + "/identity.key", b.i.Certificate(), b.i.Run() + "/agent/log", b.i.Artifacts() + "/a/b"} {
		b.put(path, "x")
	}
	r := installation.Record{Mesh: appliance.NewMeshID(), MeshName: "home", Node: appliance.NewNodeID(), Name: "n1", Hub: hub}
	if hub {
		b.put(b.i.HubKeys()+"/signing.key", "x")
		b.put(b.i.Operator(), "x")
		s := serve.Settings{Mesh: r.Mesh, Name: r.MeshName, StoreFile: "/etc/theirs"}
		s.Hub.ID, s.Hub.Name = r.Node, r.Name
		b.must(s.Write(b.i))
	}
	var resources []wire.Resource
	for id, spec := range map[string]any{
		"web/user/web":       wire.UserSpec{Name: "web"},
		"web/file/conf":      wire.FileSpec{Path: "/etc/web", Owner: "root", Group: "root", Mode: "0644", Content: "x"},
		"web/directory/data": wire.DirectorySpec{Path: b.i.Module("web") + "/data", Class: "data", Owner: "web", Group: "web", Mode: "0700"},
	} {
		text, err := json.Marshal(spec)
		b.must(err)
		resources = append(resources, wire.Resource{ID: id, Instance: "web", Kind: wire.ResourceKind(strings.Split(id, "/")[1]), Spec: text})
	}
	slices.SortFunc(resources, func(a, b wire.Resource) int { return -strings.Compare(a.ID, b.ID) }) // the user first
	b.must(agent.Raise(t.Context(), b.Host(), b.i.Node(), resources, nil))
	if !hub { // what a node has is declared to it
		path := b.i.Node() + "/applied.json"
		text, err := os.ReadFile(path)
		b.must(err)
		b.put(path, strings.ReplaceAll(string(text), `"carried":true`, `"carried":false`))
	}
	b.must(b.i.Write(r))
	b.Hold("web/user/web", "")
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) put(path, text string) {
	b.Helper()
	b.must(os.MkdirAll(filepath.Dir(path), 0o700))
	b.must(os.WriteFile(path, []byte(text), 0o600))
}

// starting is what starts the agent, of which Run wants only that it does so no more.
type starting struct {
	services.Services
	removed *bool
}

func (s starting) Remove(context.Context) error { *s.removed = true; return nil }

// run is one call of the command, killed where cut says.
func (b *bench) run(purge bool) (done Result, killed bool, err error) {
	b.Helper()
	mark, err := Find(b.i)
	if err != nil {
		return done, false, err
	}
	o := Options{Install: b.i, Purge: purge, Tell: func(context.Context) error { b.tells++; return b.deaf }}
	if mark.Hub || mark.Left {
		o.Tell = nil
	}
	lines := 0
	defer func() {
		if recover() != nil {
			killed = true
		}
	}()
	done, err = Run(b.Context(), o, mark, func(appliance.MeshID, appliance.NodeName) (host.Machine, error) { return b.Host(), nil }, starting{removed: &b.removed}, func(string) {
		if lines++; lines == b.cut {
			panic("killed")
		}
	})
	return done, false, err
}

// left lists the files in the state folder, and what the machine has besides.
func (b *bench) left() (out []string) {
	b.Helper()
	err := filepath.WalkDir(b.i.Dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out = append(out, strings.TrimPrefix(path, b.i.Dir+"/"))
		}
		return nil
	})
	b.must(err)
	return append(out, strings.Split(strings.ReplaceAll(b.String(), b.i.Dir, ""), "\n")...)
}

func (b *bench) want(what string, purge bool, kept []string, left ...string) {
	b.Helper()
	done, _, err := b.run(purge)
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
	var got []string
	for _, k := range done.Kept {
		got = append(got, strings.ReplaceAll(k.What, b.i.Dir, "")+": "+k.Why)
	}
	if d := cmp.Diff(kept, got); d != "" {
		b.Errorf("%s: kept (-want +got):\n%s", what, d)
	}
	if d := cmp.Diff(append(left, ""), b.left()); d != "" {
		b.Errorf("%s: left (-want +got):\n%s", what, d)
	}
	if !b.removed {
		b.Errorf("%s: something starts the agent still", what)
	}
}

var (
	nodeKeeps = []string{"folder /modules/web/data: data", "user web: it owns data that stay"}
	nodeLeft  = []string{"leaving.json", "node/applied.json", "useradd --system --home-dir /nonexistent web", "install -d -o web -g web -m 0700 /modules/web/data"}
	hubKeeps  = append(slices.Clone(nodeKeeps), "the records of mesh home: they are in a database that was there before",
		"folder /hub: the keys of the mesh: without them the data are worth little, and nothing makes them again",
		"folder /node: the keys of the hub's node, and what it has done", "folder /operator: the first operator's credential")
	hubLeft = append([]string{"hub/hub.json", "hub/keys/signing.key", "leaving.json", "node/applied.json", "node/keys/identity.key", "node/tls.crt",
		"operator/admin.json"}, nodeLeft[2:]...)
)

// NODE-8, GEN-10: the machine is left with nothing but what is told, and what is needed for it to be found again; purged with nothing.
func TestLeave(t *testing.T) {
	b := newBench(t, false)
	b.want("leave", false, nodeKeeps, nodeLeft...)
	if b.tells != 1 {
		t.Errorf("the mesh was told %d times", b.tells)
	}
	b.want("again", false, nodeKeeps, nodeLeft...)
	b.put(b.i.Dir+"/notes.txt", "theirs")
	b.want("purge", true, []string{"/notes.txt: the mesh knows nothing of it"}, "notes.txt")
	if b.tells != 1 {
		t.Errorf("the mesh was told %d times", b.tells)
	}
	if _, _, err := b.run(false); appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("where nothing is left: %v", err)
	}
}

// NODE-8: a mesh that does not hear it hinders nothing.
func TestDeafMesh(t *testing.T) {
	b := newBench(t, false)
	b.deaf = errors.New("nobody there")
	done, _, err := b.run(true)
	if err != nil || done.Told || done.Untold != "nobody there" {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := os.Lstat(b.i.Dir); !os.IsNotExist(err) {
		t.Errorf("the state folder: %v", err)
	}
}

// GEN-10: on a hub the keys stay with the data, also without them being data of a module; the mesh can be founded again from them.
func TestUninstall(t *testing.T) {
	b := newBench(t, true)
	b.want("uninstall", false, hubKeeps, hubLeft...)
	if m, err := Find(b.i); err != nil || !m.Left || !m.Hub || !m.Database || m.MeshName != "home" {
		t.Errorf("%+v, %v", m, err)
	}
	b.want("purge", true, hubKeeps[2:3])
	if _, err := os.Lstat(b.i.Dir); !os.IsNotExist(err) || b.tells > 0 {
		t.Errorf("the state folder: %v; told %d times", err, b.tells)
	}
}

// GEN-10: what belongs to a user in the hub's folder does not keep the user when all goes.
func TestPurgeTakesTheHubsFolderFirst(t *testing.T) {
	b := newBench(t, true)
	b.Hook = func(_ context.Context, step, id string) error {
		if _, err := os.Stat(b.i.Hub()); step == "undo" && (err == nil) == strings.Contains(id, "/user/") {
			t.Errorf("undo %s: the hub's folder: %v", id, err)
		}
		return nil
	}
	if _, _, err := b.run(true); err != nil {
		t.Error(err)
	}
}

// SAFE-5: killed before any of its lines, at any step on the machine, and between any two files that go at the end, the same command
// comes to the same end. Until then nothing else comes to life there.
func TestKilled(t *testing.T) {
	for _, c := range []struct {
		hub, purge bool
		kept       []string
		left       []string
	}{{false, false, nodeKeeps, nodeLeft}, {false, true, nil, nil}, {true, false, hubKeeps, hubLeft}, {true, true, hubKeeps[2:3], nil}} {
		for cut := 1; ; cut++ {
			b := newBench(t, c.hub)
			b.cut = cut
			_, killed, err := b.run(c.purge)
			b.must(err)
			if !killed {
				if cut < 8 {
					t.Errorf("hub %v: it says %d lines", c.hub, cut)
				}
				break
			}
			if err := Refuse(b.i, "start agent"); cut > 1 && !strings.Contains(err.Error(), "on its way out") {
				t.Errorf("hub %v, killed at line %d: refused %v", c.hub, cut, err)
			}
			b.cut = 0
			b.want("after the kill", c.purge, c.kept, c.left...)
		}
		for step := 1; ; step++ {
			b := newBench(t, c.hub)
			left := step
			b.Hook = func(context.Context, string, string) error {
				if left--; left == 0 {
					panic("killed")
				}
				return nil
			}
			_, killed, err := b.run(c.purge)
			b.must(err)
			if b.Hook = nil; !killed {
				break
			}
			b.want("after the kill", c.purge, c.kept, c.left...)
		}
		last := []func(installation.Installation) string{installation.Installation.Binary, installation.Installation.Run, installation.Installation.Artifacts}
		if !c.hub || c.purge {
			last = append(last, installation.Installation.Hub, installation.Installation.NodeKeys, installation.Installation.Certificate)
		}
		for n := range append(last, installation.Installation.File) {
			b := newBench(t, c.hub)
			m, err := Find(b.i)
			b.must(err)
			b.must(m.write(b.i))
			for _, path := range last[:n] {
				b.must(os.RemoveAll(path(b.i)))
			}
			b.want("half wiped", c.purge, c.kept, c.left...)
		}
	}
}

func TestFind(t *testing.T) {
	i := installation.Installation{Dir: t.TempDir()}
	if _, err := Find(i); appliance.KindOf(err) != appliance.NotFound {
		t.Errorf("nothing there: %v", err)
	}
	b := newBench(t, true)
	b.must(os.Remove(b.i.File()))
	if m, err := Find(b.i); err != nil || !m.Hub || m.Name != "n1" || m.Begun || m.Left {
		t.Errorf("a genesis that did not come to its end: %+v, %v", m, err)
	}
	if err := Refuse(b.i, "start"); err != nil {
		t.Errorf("nothing is leaving: %v", err)
	}
	for _, text := range []string{"", "{}", "null", `{"mesh":"x"}`} {
		b.put(b.i.LeavingFile(), text)
		if _, err := Find(b.i); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// NODE-8: what was removed is not brought to life again by hand.
func TestRefuseRemoved(t *testing.T) {
	b := newBench(t, false)
	if err := Refuse(b.i, "start agent"); err != nil {
		t.Error(err)
	}
	b.put(b.i.Node()+"/removed.json", `{"at":"2026-12-01T00:00:00Z"}`)
	e := appliance.AsError(Refuse(b.i, "start agent"))
	if e == nil || e.Text != "start agent: mesh home has removed node n1, which heard so at 2026-12-01T00:00:00Z" || e.Next != "mesh leave" {
		t.Errorf("%+v", e)
	}
	b.want("leave", false, nodeKeeps, nodeLeft...)
	if b.tells > 0 {
		t.Error("the mesh was told what it knows")
	}
}
