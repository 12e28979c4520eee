package appliancetest_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/operators"
)

// DEC-14, NODE-6: a node that pulls for long is heard of all the while and takes up who joins; what is pushed meanwhile ends the pull and is
// carried out, and the pull goes on where it is declared again.
func TestLongPull(t *testing.T) {
	t.Parallel()
	m := appliancetest.New(t)
	n := m.AddNode("n1")
	var pulling, ended atomic.Int32
	release := make(chan struct{})
	n.Stop()
	n.Machine.Hook = func(ctx context.Context, step, id string) error {
		if step != "do" || !strings.Contains(id, "/artifact/") {
			return nil
		}
		pulling.Add(1)
		defer ended.Add(1)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	n.Start()
	m.Must(operators.ModuleRegister, withTree("large", pushFiles(t, m, "large", "tree", "x").Digest), nil)
	m.Must(operators.ModuleAssign, operators.AssignModule{Module: "large", Node: "n1"}, nil)
	m.Push("n1")
	m.Wait("it pulls", func() string { return count(int(pulling.Load()), 1) })

	begun := time.Now()
	m.Wait("it is heard of after three beats", func() string {
		if seen := m.Node("n1").LastSeen; seen.Sub(begun) < 3*appliancetest.Beat {
			return fmt.Sprintf("last seen %s after it began", seen.Sub(begun))
		}
		return ""
	})
	m.AddNode("n2")
	m.Wait("it knows who joined", func() string {
		if _, ok := n.Machine.Overlay().Hosts["n2"]; !ok {
			return fmt.Sprintf("it knows %v", n.Machine.Overlay().Hosts)
		}
		return ""
	})
	if s := m.Node("n1"); s.Current || ended.Load() != 0 {
		t.Errorf("the pull ended: current %v", s.Current)
	}
	register(m, "one")
	assign(m, "n1")
	m.Push("n1")
	m.Wait("the pull ended for a newer declaration, and began again", func() string { return count(int(min(2, pulling.Load())), 2) })
	close(release)
	m.Current("n1")
	if c := n.Machine.String(); !strings.Contains(c, "/artifacts/") || !strings.Contains(c, "app-web") {
		t.Errorf("the machine is\n%s", c)
	}
}
