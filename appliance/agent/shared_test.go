package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

// sharing is an instance that has a package, a user, a folder and trust in common with others of its kind.
func sharing(instance, class string) []wire.Resource {
	return []wire.Resource{
		resource(instance+"/package/git", wire.PackageSpec{Names: map[string]string{"apt": "git", "apk": "git-" + instance}}),
		resource(instance+"/user/media", wire.UserSpec{Name: "media"}),
		resource(instance+"/directory//srv/media", wire.DirectorySpec{Path: "/srv/media", Class: class, Owner: "media", Group: "media", Mode: "0750"}, instance+"/user/media"),
		resource(instance+"/trust/mesh", wire.TrustSpec{Name: "mesh", Authority: []byte("a")}),
	}
}

// DEC-13: what instances share is made once and goes with the last of them, in whatever order they come and go, and what was there before
// the first comes back.
func TestShared(t *testing.T) {
	a, b := sharing("a", "cache"), sharing("b", "cache")
	all := slices.Concat(a, b)
	file := []wire.Resource{resource("c/file//srv/media/c", wire.FileSpec{Path: "/srv/media/c", Owner: "root", Group: "root", Mode: "0644", Content: "c"})}
	made := "apt-get install git\nuseradd --system --home-dir /nonexistent media\nupdate-ca-certificates # with the mesh's\ninstall -d -o media -g media -m 0750 /srv/media\n"
	old := hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0700"}
	for name, c := range map[string]struct {
		before func(*bench)
		passes [][]wire.Resource
		during string // after the last but one
		after  string // after the last
	}{
		"first leaves first":   {passes: [][]wire.Resource{a, all, b, nil}, during: made},
		"first leaves last":    {passes: [][]wire.Resource{a, all, a, nil}, during: made},
		"together":             {passes: [][]wire.Resource{all, nil}, during: made},
		"one after the other":  {passes: [][]wire.Resource{a, b, nil}, during: made},
		"and back":             {passes: [][]wire.Resource{a, b, a, all, b, nil}, during: made},
		"they come reversed":   {passes: [][]wire.Resource{slices.Concat(b, a), a, nil}, during: made},
		"somebody lives there": {passes: [][]wire.Resource{slices.Concat(a, file), file, file, nil}, during: "useradd --system --home-dir /nonexistent media\ninstall -d -o media -g media -m 0750 /srv/media\ninstall -o root -g root -m 0644 /srv/media/c # 1 bytes, 2e7d2c03a950\n"},
		"it was there before": {before: func(b *bench) { b.AddPackage("git"); b.AddUser("media", "/home/media"); b.Put("/srv/media", old) },
			passes: [][]wire.Resource{a, all, b, nil}, during: "apt-get install git\nuseradd --system --home-dir /home/media media\nupdate-ca-certificates # with the mesh's\ninstall -d -o media -g media -m 0750 /srv/media\n",
			after: "apt-get install git\nuseradd --system --home-dir /home/media media\ninstall -d -o root -g root -m 0700 /srv/media\n"},
	} {
		t.Run(name, func(t *testing.T) {
			bench := newBench(t)
			if c.before != nil {
				c.before(bench)
			}
			for i, pass := range c.passes {
				if i == len(c.passes)-1 {
					if d := cmp.Diff(c.during, bench.String()); d != "" {
						t.Errorf("before the last goes (-want +got):\n%s", d)
					}
				}
				for range 2 {
					outcomes, err := bench.apply(pass, false)
					if err != nil || !clean(outcomes) {
						t.Fatalf("pass %d: %q, %v", i, lines(outcomes), err)
					}
				}
			}
			if d := cmp.Diff(c.after, bench.String()); d != "" {
				t.Errorf("after the last has gone (-want +got):\n%s", d)
			}
			s, err := openState(bench.dir)
			if err != nil || len(s.applied.Records) > 0 {
				t.Errorf("records left: %+v, %v", s.applied.Records, err)
			}
		})
	}
}

// DEC-13, SAFE-5: killed at any step while shared things come and go, the next agent comes to the same end.
func TestSharedAndKilled(t *testing.T) {
	a, b := sharing("a", "cache"), sharing("b", "cache")
	passes := [][]wire.Resource{a, slices.Concat(a, b), b, a, nil}
	plain := newBench(t)
	var steps []int // of each pass
	var states []string
	for _, pass := range passes {
		plain.survive(pass)
		steps, states = append(steps, len(plain.Steps())), append(states, plain.String())
	}
	for i, n := range steps {
		for n := range n {
			for _, after := range []bool{false, true} {
				bench := newBench(t)
				for j, pass := range passes {
					if j == i {
						bench.dieAt(n, after)
						bench.survive(pass)
					}
					bench.survive(pass)
					if d := cmp.Diff(states[j], bench.String()); d != "" {
						t.Fatalf("killed in pass %d at step %d (after %v), pass %d (-want +got):\n%s", i, n, after, j, d)
					}
				}
			}
		}
	}
}

// DEC-13, DEC-4: what is carried and declared goes with neither declaration.
func TestSharedWithCarried(t *testing.T) {
	carried := []wire.Resource{resource("base/package/git", wire.PackageSpec{Names: map[string]string{"apt": "git"}})}
	a := sharing("a", "cache")[:1]
	for name, first := range map[string]bool{"carried first": true, "declared first": false} {
		bench := newBench(t)
		for _, c := range []bool{first, !first} {
			desired := a
			if c {
				desired = carried
			}
			if _, err := bench.apply(desired, c); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := bench.apply(nil, false); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(bench.Commands(), "; "); got != "apt-get install git" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// MOD-10, DEC-13: shared data is kept once, under the name of whoever left last, and is no longer kept once somebody has it again.
func TestSharedData(t *testing.T) {
	bench := newBench(t)
	kept := func() []wire.Kept {
		s, err := openState(bench.dir)
		if err != nil {
			t.Fatal(err)
		}
		return withoutTimes(keptData(s.applied.Records))
	}
	a, b := sharing("a", "data"), sharing("b", "data")
	for _, step := range []struct {
		desired []wire.Resource
		kept    []wire.Kept
	}{
		{slices.Concat(a, b), nil},
		{b, nil},
		{nil, []wire.Kept{{Instance: "b", Path: "/srv/media"}}},
		{a, nil},
		{nil, []wire.Kept{{Instance: "a", Path: "/srv/media"}}},
	} {
		if _, err := bench.apply(step.desired, false); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(step.kept, kept()); d != "" {
			t.Errorf("kept (-want +got):\n%s", d)
		}
	}
	if e, ok := bench.Path("/srv/media"); !ok || e.Owner != "media" {
		t.Errorf("it is %+v", e)
	}
}
