package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// artifact is a tree of a version, and a process that runs in it.
func artifact(version string) []wire.Resource {
	digest := appliance.DigestOf([]byte(version))
	tree := path.Join("/a", version)
	return []wire.Resource{
		resource("a/user/a", wire.UserSpec{Name: "a"}),
		resource("a/artifact/tree", wire.ArtifactSpec{Reference: "artifact-store://a/tree@" + string(digest), Digest: digest, Path: tree}),
		resource("a/process/main", wire.ProcessSpec{Name: "main", User: "a", Command: []string{"./run"}, Directory: tree, Run: wire.Run{Restart: "always"}},
			"a/artifact/tree", "a/user/a"),
		resource("a/process/other", wire.ProcessSpec{Name: "other", User: "a", Command: []string{"run"}, Directory: "/", Run: wire.Run{Restart: "always"}}, "a/artifact/tree", "a/user/a"),
	}
}

// trees are those on the machine, by version.
func (l *loop) trees() (versions []string) {
	synctest.Wait()
	for line := range strings.Lines(l.machine.String()) {
		if rest, ok := strings.CutPrefix(line, "tar -x -C /a/"); ok {
			version, _, _ := strings.Cut(rest, " ")
			versions = append(versions, version)
		}
	}
	return versions
}

// DEC-14: the artifacts of the present plan and of the two before it stay; the rest goes once all is well. A plan that was there before is
// none more, and one that never came about leaves nothing.
func TestArtifactsWithinReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			counter := uint64(0)
			declare := func(version string, want ...string) {
				t.Helper()
				counter++
				l.declare(counter, artifact(version))
				if d := cmp.Diff(want, l.trees()); d != "" {
					t.Errorf("with %s (-want +got):\n%s", version, d)
				}
			}
			declare("1", "1")
			declare("2", "1", "2")
			declare("3", "1", "2", "3")
			declare("1", "1", "2", "3") // rolled back
			declare("4", "1", "3", "4")
			declare("4", "1", "3", "4")
			l.machine.Fail("a/process/main", "do", errors.New("it does not start"), 0)
			declare("5", "1", "3", "4", "5")
			time.Sleep(time.Hour)
			if got := l.trees(); len(got) != 4 {
				t.Errorf("while it fails: %q", got)
			}
			l.machine.Heal("a/process/main")
			declare("6", "1", "4", "6")
			l.machine.Fail("artifacts", "collect", errors.New("busy"), 1)
			declare("7", "1", "4", "6", "7")
			time.Sleep(6 * time.Minute)
			if got := l.trees(); !slices.Equal(got, []string{"4", "6", "7"}) {
				t.Errorf("at the next look: %q", got)
			}
			counter++
			l.declare(counter, user)
			if got := l.trees(); !slices.Equal(got, []string{"6", "7"}) {
				t.Errorf("without an artifact: %q", got)
			}
		})
		again, err := openState(l.cfg.Dir)
		if err != nil || len(again.applied.Artifacts) != 3 {
			t.Errorf("on disk: %v, %v", again.applied.Artifacts, err)
		}
	})
}

// DEC-6, DEC-11: what runs in a tree that had to be made anew is started anew, and nothing else is.
func TestRestartOnAnArtifactMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		l.run(func() {
			l.declare(1, artifact("1"))
			synctest.Wait()
			l.machine.Commands()
			l.machine.LoseTree("/a/1")
			time.Sleep(6 * time.Minute)
			l.wantDrift("a tree", "applied|a/artifact/tree|drift||gone", fmt.Sprintf("tar -x -C /a/1 # %s\nsystemctl restart a-main", appliance.DigestOf([]byte("1")).Short()))
		})
	})
}

// DEC-14, SAFE-5: a pull that takes ten minutes keeps the agent from nothing: a membership is taken up meanwhile, the same declaration once
// more is no news, and a newer one ends the pull.
func TestPullIsNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(t)
		var pulled []error
		l.machine.Hook = func(ctx context.Context, step, id string) error {
			if step != "do" || id != "a/artifact/tree" {
				return nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Minute):
			}
			pulled = append(pulled, ctx.Err())
			return ctx.Err()
		}
		m := newMembers(l)
		m.add(appliance.NewNodeID(), "hub", true)
		m.add(l.cfg.Node, "me", false)
		l.run(func() {
			l.declare(1, append([]wire.Resource{resource("net/overlay/device", wire.OverlaySpec{})}, artifact("1")...))
			time.Sleep(time.Minute)
			m.publish(1)
			if n := len(l.machine.Overlay().Hosts); n != 2 {
				t.Errorf("%d hosts while it pulls", n)
			}
			time.Sleep(time.Minute)
			l.declare(1, append([]wire.Resource{resource("net/overlay/device", wire.OverlaySpec{})}, artifact("1")...))
			synctest.Wait()
			if len(pulled) > 0 {
				t.Errorf("the pull ended: %v", pulled)
			}
			l.declare(2, user)
			if got := l.account(); len(pulled) != 1 || pulled[0] == nil || l.carriedOut() != 2 || !slices.Contains(got, "unchanged a/user/a") {
				t.Errorf("a newer declaration: pulls %v, carried out %d, account %q", pulled, l.carriedOut(), got)
			}
			l.declare(3, artifact("1"))
			time.Sleep(11 * time.Minute)
			if got := l.account(); len(pulled) != 2 || pulled[1] != nil || l.carriedOut() != 3 || len(l.trees()) != 1 {
				t.Errorf("without interruption: pulls %v, carried out %d, account %q", pulled, l.carriedOut(), got)
			}
		})
	})
}
