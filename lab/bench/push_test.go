package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/client"
	"github.com/novox/mesh/appliance/operators"
)

// pushCommand makes this binary measure pushes from the hub it runs on.
const pushCommand = "measure-pushes"

// pushes registers a module whose one file changes each time, and times push to current. It prints a metric a line.
func pushes(args []string) int {
	node, n := appliance.NodeName(args[0]), 0
	n, err := strconv.Atoi(args[1])
	if err == nil {
		err = measure(node, n)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func measure(node appliance.NodeName, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	credential, err := operators.ReadCredential("/var/lib/mesh/operator/admin.json")
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, credential, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer c.Close()
	register := func(i int) error {
		manifest := fmt.Sprintf(`{"module": "measured", "description": "one file", "resources": [{"kind": "file", "path": "${dir}/file", "content": "%d\n"}]}`, i)
		return c.Call(ctx, operators.ModuleRegister, operators.RegisterModule{Manifest: json.RawMessage(manifest)}, nil)
	}
	if err := register(0); err != nil {
		return err
	}
	if err := c.Call(ctx, operators.ModuleAssign, operators.AssignModule{Module: "measured", Node: node}, nil); err != nil {
		return err
	}
	var asked, current []time.Duration
	for i := range n {
		if err := register(i + 1); err != nil {
			return err
		}
		begun := time.Now()
		if err := c.Call(ctx, operators.PlanPush, operators.Scope{Nodes: []appliance.NodeName{node}}, nil); err != nil {
			return err
		}
		asked = append(asked, time.Since(begun))
		for {
			var s operators.Status
			if err := c.Call(ctx, operators.StatusShow, struct{}{}, &s); err != nil {
				return err
			}
			if good, bad, _ := s.Settled(node); good {
				break
			} else if len(bad) > 0 {
				return fmt.Errorf("%v", bad)
			}
		}
		current = append(current, time.Since(begun))
	}
	for name, d := range map[string][]time.Duration{"ms/push-answered": asked, "ms/push-to-current": current} {
		slices.Sort(d)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		fmt.Printf("%s-p50 %.2f\n%s-p99 %.2f\n", name, ms(d[len(d)/2]), name, ms(d[len(d)*99/100]))
	}
	return nil
}
