package resolve_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/resolve"
)

func parse(t *testing.T, data string) *manifest.Manifest {
	t.Helper()
	m, err := manifest.Parse([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const node = appliance.NodeID("naaaaaaaaaaaaaaa")

// plan resolves one instance of a manifest on one node.
func plan(t *testing.T, m *manifest.Manifest, instance appliance.InstanceName, ports ...resolve.Port) resolve.Plan {
	t.Helper()
	plans, err := resolve.Resolve(resolve.Intent{
		Nodes:       []resolve.Node{{ID: node, Name: "n1"}},
		Modules:     map[appliance.ModuleName]*manifest.Manifest{m.Module: m},
		Assignments: []resolve.Assignment{{Instance: instance, Node: node, Module: m.Module}},
		Ports:       ports,
	})
	if err != nil {
		t.Fatal(err)
	}
	return plans[node]
}

const before = `{"module": "web", "ports": {"http": {"port": 80, "from": "mesh", "assign": true}, "old": {"port": 81, "from": "node"}},
 "resources": [{"kind": "user", "name": "web"}, {"kind": "directory", "path": "${dir}/data"}, {"kind": "directory", "path": "${dir}/conf", "class": "config"},
  {"kind": "file", "path": "${dir}/conf/a", "mode": "0644", "content": "one"}, {"kind": "process", "name": "web", "user": "web", "command": ["a"]}]}`

const after = `{"module": "web", "ports": {"http": {"port": 80, "from": "public", "assign": true}, "new": {"port": 82, "protocol": "udp", "from": "node"}},
 "resources": [{"kind": "user", "name": "web"}, {"kind": "package", "name": "curl", "names": {"apt": "curl"}}, {"kind": "directory", "path": "${dir}/conf", "class": "config", "owner": "web"},
  {"kind": "file", "path": "${dir}/conf/a", "mode": "0600", "content": "two"}, {"kind": "process", "name": "web", "user": "web", "command": ["a", "b"], "restart": "never"}]}`

// DEC-2: the difference, resource by resource.
func TestDiff(t *testing.T) {
	empty := resolve.Plan{Version: resolve.PlanVersion, Node: node, Instances: []resolve.Instance{}}
	old, new := plan(t, parse(t, before), "web"), plan(t, parse(t, after), "web")
	moved := plan(t, parse(t, before), "web", resolve.Port{Instance: "web", Node: node, Name: "http", Number: 20000})
	named := parse(t, strings.Replace(before, `"module": "web"`, `"module": "web", "description": "Serves"`, 1))
	for name, c := range map[string]struct {
		old, new resolve.Plan
		want     []string
	}{
		"nothing": {old, old, nil},
		"added": {empty, old, []string{
			"add directory/conf ", "add directory/data ", "add file/conf/a ", "add module web", "add port/http 80/tcp from mesh",
			"add port/old 81/tcp from node", "add process/web ", "add user/web ",
		}},
		"removed": {old, empty, []string{
			"remove directory/conf ", "remove directory/data its data is kept", "remove file/conf/a ", "remove module web", "remove port/http 80/tcp from mesh",
			"remove port/old 81/tcp from node", "remove process/web ", "remove user/web ",
		}},
		"changed": {old, new, []string{
			"change directory/conf group root to web, owner root to web", "remove directory/data its data is kept", "change file/conf/a content, mode 0644 to 0600",
			fmt.Sprintf("change manifest %s to %s", parse(t, before).Digest().Short(), parse(t, after).Digest().Short()), "add package/curl ",
			"change port/http 80/tcp from mesh to 80/tcp from public", "add port/new 82/udp from node", "remove port/old 81/tcp from node",
			"change process/web command, restart always to never",
		}},
		"port moved":       {old, moved, []string{"change port/http 80/tcp from mesh to 20000/tcp from mesh"}},
		"description only": {old, plan(t, named, "web"), []string{fmt.Sprintf("change manifest %s to %s", parse(t, before).Digest().Short(), named.Digest().Short())}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range resolve.Diff(c.old, c.new) {
				if d.Instance != "web" {
					t.Errorf("instance %q", d.Instance)
				}
				got = append(got, d.What+" "+d.Resource+" "+d.Detail)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// DEC-2: the exit status of a plan rests on this: no change is shown exactly where nothing would be pushed.
func TestDiffIsEmptyExactlyForSameBytes(t *testing.T) {
	plans := []resolve.Plan{
		{Version: 1, Node: node, Instances: []resolve.Instance{}},
		plan(t, parse(t, before), "web"), plan(t, parse(t, after), "web"), plan(t, parse(t, before), "other"),
		plan(t, parse(t, strings.Replace(before, `"module": "web"`, `"module": "wub"`, 1)), "web"),
		plan(t, parse(t, before), "web", resolve.Port{Instance: "web", Node: node, Name: "http", Number: 20000}),
		plan(t, parse(t, before), "web", resolve.Port{Instance: "web", Node: node, Name: "old", Number: 20000, Given: true}),
		{Version: 1, Node: "nbbbbbbbbbbbbbbb", Instances: []resolve.Instance{}},
	}
	for i, a := range plans {
		for j, b := range plans {
			same := string(a.Bytes()) == string(b.Bytes())
			if shown := len(resolve.Diff(a, b)) > 0; shown == same || same != (i == j) {
				t.Errorf("plans %d and %d: same bytes %t, difference shown %t", i, j, same, shown)
			}
		}
	}
}

// DEC-1: pure; the order of the records decides nothing, and a node without assignments has a plan all the same.
func TestResolveIgnoresOrder(t *testing.T) {
	m := parse(t, before)
	free := parse(t, `{"module": "free", "resources": [{"kind": "user", "name": "free"}]}`)
	in := resolve.Intent{Modules: map[appliance.ModuleName]*manifest.Manifest{"web": m, "free": free}}
	for i := range 6 {
		id := appliance.NodeID(fmt.Sprintf("n%015d", i))
		in.Nodes = append(in.Nodes, resolve.Node{ID: id, Name: appliance.NodeName(fmt.Sprint("n", i))})
		if i == 5 {
			break
		}
		for j := range 4 {
			in.Assignments = append(in.Assignments, resolve.Assignment{Instance: appliance.InstanceName(fmt.Sprint("free-", j)), Node: id, Module: "free"})
		}
		in.Assignments = append(in.Assignments, resolve.Assignment{Instance: "web", Node: id, Module: "web"})
		in.Ports = append(in.Ports, resolve.Port{Instance: "web", Node: id, Name: "http", Number: uint16(20000 + i)}, resolve.Port{Instance: "web", Node: id, Name: "http", Number: uint16(30000 + i), Given: true})
	}
	want := text(t, in)
	if !strings.Contains(want, `"node":"n000000000000005","instances":[]`) {
		t.Errorf("no empty plan in\n%s", want)
	}
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		random.Shuffle(len(in.Nodes), func(i, j int) { in.Nodes[i], in.Nodes[j] = in.Nodes[j], in.Nodes[i] })
		random.Shuffle(len(in.Assignments), func(i, j int) { in.Assignments[i], in.Assignments[j] = in.Assignments[j], in.Assignments[i] })
		random.Shuffle(len(in.Ports), func(i, j int) { in.Ports[i], in.Ports[j] = in.Ports[j], in.Ports[i] })
		if diff := cmp.Diff(want, text(t, in)); diff != "" {
			t.Fatalf("seed %d:\n%s", seed, diff)
		}
	}
}

func text(t *testing.T, in resolve.Intent) string {
	t.Helper()
	plans, err := resolve.Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range in.Nodes {
		b.Write(plans[appliance.NodeID(fmt.Sprintf("n%015d", i))].Bytes())
	}
	return b.String()
}

// SAFE-2: a plan is recorded, so one that this binary cannot read is refused, naming what it can.
func TestParsePlan(t *testing.T) {
	for data, want := range map[string]string{
		`{"version":2,"node":"n","instances":[]}`: "parse plan: version 2, this binary reads 1 to 1",
		`{"version":1,"more":1}`:                  `parse plan: json: unknown field "more"`,
		``:                                        "parse plan: EOF",
	} {
		if _, err := resolve.ParsePlan([]byte(data)); err == nil || err.Error() != want || appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("ParsePlan(%s): %v, want %s", data, err, want)
		}
	}
}
