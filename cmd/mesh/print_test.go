package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
)

// DEC-6: what had drifted is said as one line each.
func TestStatusShowsDrift(t *testing.T) {
	var out bytes.Buffer
	printStatus(&out, operators.Status{Nodes: []operators.NodeStatus{{Name: "n1", Drift: []operators.Drift{
		{ID: "hello/file/x", What: "mode 0644, want 0640", Repaired: true}, {ID: "hello/user/y", What: "gone"}}}}})
	for _, want := range []string{"\nn1: hello/file/x had drifted: mode 0644, want 0640; repaired\n", "\nn1: hello/user/y had drifted: gone; not repaired\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

// SAFE-2: a module's log, or a node that lies, does not write to the operator's terminal.
func TestTerminalIsNotWrittenTo(t *testing.T) {
	const evil = "\x1b]0;title\a\x1b[2Jred\r\u009b31m\u202edesrever\x7f\xff"
	status := operators.Status{Nodes: []operators.NodeStatus{{Name: "n1", Instances: []operators.InstanceStatus{{Name: "a", Health: evil, Why: evil, Log: []string{evil}}}}}}
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	if err := (&global{output: "table"}).show(c, status, func(w io.Writer) { printStatus(w, status) }); err != nil {
		t.Fatal(err)
	}
	fail(&out, c, appliance.Errorf(appliance.Denied, "%s", evil).WithHint(evil).WithNext(evil))
	if strings.ContainsAny(out.String(), "\x1b\a\r\u009b\u202e\x7f") {
		t.Errorf("printed %q", out.String())
	}
	if want := "error: \uFFFD]0;title"; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "n1: a is ") {
		t.Errorf("no %q in %q", want, out.String())
	}
	if got := plain("héllo\t✓\n"); got != "héllo\t✓\n" {
		t.Errorf("changed %q", got)
	}
}
