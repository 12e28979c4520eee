package operators_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/wire"
)

// OP-2: the table, as it is meant.
func TestAuthorize(t *testing.T) {
	viewers := []operators.Verb{operators.ArtifactList, operators.ArtifactShow, operators.ModuleList, operators.ModuleShow, operators.OverlayShow, operators.PlanList, operators.PlanShow, operators.SettingList, operators.StatusShow, operators.SessionLogs, operators.SessionSend}
	var may []operators.Verb
	for _, verb := range operators.Verbs() {
		if err := operators.Authorize(operators.Admin, verb); err != nil {
			t.Errorf("admin asks %s: %v", verb, err)
		}
		if err := operators.Authorize(operators.Viewer, verb); err == nil {
			may = append(may, verb)
		} else if appliance.KindOf(err) != appliance.Denied || appliance.AsError(err).Hint == "" {
			t.Errorf("viewer asks %s: %v", verb, err)
		}
		for _, role := range []operators.Role{"", "root", "ADMIN"} {
			if err := operators.Authorize(role, verb); appliance.KindOf(err) != appliance.Denied {
				t.Errorf("role %q asks %s: %v", role, verb, err)
			}
		}
	}
	slices.Sort(viewers)
	if d := cmp.Diff(viewers, may); d != "" {
		t.Errorf("what a viewer may (-want +got):\n%s", d)
	}
	for _, verb := range []operators.Verb{"", "module", "module.assign.x", "module.>", operators.Verb(strings.Repeat("v", 10_000))} {
		err := operators.Authorize(operators.Admin, verb)
		if appliance.KindOf(err) != appliance.NotFound || len(err.Error()) > 200 {
			t.Errorf("verb of %d bytes: %v", len(verb), err)
		}
	}
}

// DEC-7: good when all are current, clean and healthy; bad at once when a current node has failed; else a reason for each.
func TestSettled(t *testing.T) {
	good := operators.NodeStatus{Name: "n1", Current: true, Number: "1.2", Outcome: "clean", Health: wire.Healthy}
	with := func(change func(*operators.NodeStatus)) operators.NodeStatus {
		n := good
		change(&n)
		return n
	}
	for name, tc := range map[string]struct {
		nodes        []operators.NodeStatus
		of           []appliance.NodeName
		bad, waiting []string
	}{
		"all well":    {nodes: []operators.NodeStatus{good}},
		"not current": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) { n.Current = false })}, waiting: []string{"n1: its report does not name declaration 1.2 yet"}},
		"lost": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) { n.Current, n.Lost = false, true })},
			waiting: []string{"n1: lost, it has not been heard of for a while"}},
		"failed, not current": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) { n.Current, n.Outcome = false, "failed" })},
			waiting: []string{"n1: its report does not name declaration 1.2 yet"}},
		"failed": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) {
			n.Outcome, n.Failures = "failed", []wire.Outcome{{ID: "a/file/b", Step: "do", Error: "no space"}}
		})}, bad: []string{"n1: a/file/b: do: no space"}},
		"failed, unknown how": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) { n.Outcome = "failed" })}, bad: []string{"n1: applying failed"}},
		"starting": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) {
			n.Health, n.Instances = wire.Starting, []operators.InstanceStatus{{Name: "a", Health: wire.Starting, Why: "refused"}, {Name: "b", Health: wire.Healthy}}
		})}, waiting: []string{"n1: a is starting (refused)"}},
		"crash-looping": {nodes: []operators.NodeStatus{with(func(n *operators.NodeStatus) { n.Health = wire.Looping })}, bad: []string{"n1: is crash-looping"}},
		"another node's failure": {nodes: []operators.NodeStatus{good, with(func(n *operators.NodeStatus) { n.Name, n.Outcome = "n2", "failed" })},
			of: []appliance.NodeName{"n1"}},
		"no such node": {nodes: []operators.NodeStatus{good}, of: []appliance.NodeName{"n1", "n9"}, bad: []string{"n9: no such node"}},
	} {
		ok, bad, waiting := operators.Status{Nodes: tc.nodes}.Settled(tc.of...)
		if d := cmp.Diff([][]string{tc.bad, tc.waiting}, [][]string{bad, waiting}); d != "" || ok != (len(tc.bad)+len(tc.waiting) == 0) {
			t.Errorf("%s: good %v\n%s", name, ok, d)
		}
	}
}

// SAFE-1, SAFE-4: a credential that others can read, or that is not whole, is refused by its path.
func TestCredential(t *testing.T) {
	_, key, _ := ed25519.GenerateKey(rand.Reader)
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	whole := operators.Credential{Mesh: appliance.NewMeshID(), MeshName: "home", Operator: appliance.NewOperatorID(), Name: "admin", Role: operators.Admin,
		Broker: []string{"192.0.2.1:4222"}, Authority: []byte("der"), Signing: key.Public().(ed25519.PublicKey), Key: key.Seed(), Bus: string(seed)}
	path := filepath.Join(t.TempDir(), "admin.json")
	if err := operators.WriteCredential(path, whole); err != nil {
		t.Fatal(err)
	}
	got, err := operators.ReadCredential(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(whole, got); d != "" {
		t.Error(d)
	}
	signing, bus, err := got.Public()
	public, _ := user.PublicKey()
	if err != nil || !signing.Equal(key.Public()) || bus != public {
		t.Errorf("public halves: %v", err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := operators.ReadCredential(path); appliance.KindOf(err) != appliance.Denied || !strings.Contains(err.Error(), path) || appliance.AsError(err).Next == "" {
		t.Errorf("readable by others: %v", err)
	}
	for name, spoil := range map[string]func(*operators.Credential){
		"mesh": func(c *operators.Credential) { c.Mesh = "m" }, "operator": func(c *operators.Credential) { c.Operator = "" },
		"short key": func(c *operators.Credential) { c.Key = c.Key[:31] }, "no key": func(c *operators.Credential) { c.Key = nil },
		"signing": func(c *operators.Credential) { c.Signing = nil }, "bus": func(c *operators.Credential) { c.Bus = "" }, "broker": func(c *operators.Credential) { c.Broker = nil },
	} {
		c := whole
		spoil(&c)
		if err := operators.WriteCredential(path, c); err != nil {
			t.Fatal(err)
		}
		if _, err := operators.ReadCredential(path); appliance.KindOf(err) != appliance.Invalid || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := operators.ReadCredential(path); appliance.KindOf(err) != appliance.Invalid {
		t.Errorf("half a file: %v", err)
	}
}
