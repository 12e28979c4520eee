package scenarios

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// life is one mesh through its days; each day stands on the ones before.
type life struct {
	bed         *netns.Running
	hub, n1, n2 *netns.Host
	lines       []string // that join, of the closing screen
}

// The days of a mesh of three machines, from the first command on.
func TestLifeOfAMesh(t *testing.T) {
	bed := up(t, beds.Three)
	equip(t, bed)
	l := &life{bed: bed, hub: bed.Host("hub"), n1: bed.Host("n1"), n2: bed.Host("n2")}
	for _, day := range []struct {
		name string
		live func(*testing.T)
	}{
		{"genesis", l.genesis},
		{"genesis again", l.genesisAgain},
		{"first node", l.firstNode},
		{"second node while a change is pending", l.pendingChange},
		{"answers for scripts", l.answers},
		{"hello", l.hello},
		{"attached to hello", l.attached},
		{"hello goes and comes", l.helloGoesAndComes},
		{"serve killed", l.serveKilled},
		{"agents killed", l.agentsKilled},
		{"store away", l.storeAway},
		{"hub stopped and started", l.hubStopped},
		{"hub without power", l.hubWithoutPower},
	} {
		begun := time.Now()
		if !t.Run(day.name, day.live) {
			t.FailNow()
		}
		t.Logf("%s: %.1f s", day.name, time.Since(begun).Seconds())
	}
}

var joinLine = regexp.MustCompile(`(?m)^ +(mesh join mesh1\.[A-Za-z0-9_-]+)$`)

// GEN-1, GEN-2, GEN-7: one command makes a current hub and ends with a screen of what to do next.
func (l *life) genesis(t *testing.T) {
	out, errs := command(t, l.hub, 0, "genesis", "--name", "lab", "--endpoint", l.hub.Address.String(), "--endpoint", "hub.example:4222", "--yes")
	for _, m := range joinLine.FindAllStringSubmatch(out, -1) {
		l.lines = append(l.lines, m[1])
	}
	if len(l.lines) != 2 || l.lines[0] == l.lines[1] {
		t.Errorf("the hub has two addresses, the join lines are %q", l.lines)
	}
	if bare := curlLine.FindAllString(out, -1); len(bare) != 2 || bare[0] == bare[1] {
		t.Errorf("the hub has two addresses, the lines for bare machines are %q", bare)
	}
	for _, want := range []string{"\n  The hub has no binary for ", "\n  mesh status\n", "\n  mesh module register hello\n", "\n  mesh module assign hello NODE --push --wait\n", "Keep a copy of the state folder"} {
		if !strings.Contains(out, want) {
			t.Errorf("closing screen without %q:\n%s", want, out)
		}
	}
	if steps := regexp.MustCompile(`(?m)^done .* \d+\.\d\ds$`).FindAllString(errs, -1); len(steps) < 10 {
		t.Errorf("steps told with their time: %q", steps)
	}
	if why := notCurrent(t.Context(), l.hub, 1, time.Time{}); why != "" {
		t.Errorf("after genesis: %s", why)
	}
}

// GEN-3: on a finished hub genesis says so and changes nothing.
func (l *life) genesisAgain(t *testing.T) {
	before, processes := statusOf(t, l.hub), l.hub.Pids(isMesh)
	out, errs := command(t, l.hub, 0, "genesis", "--name", "lab", "--endpoint", l.hub.Address.String(), "--yes")
	if !strings.Contains(errs, "The hub of mesh lab is founded and runs.") || !strings.HasPrefix(out, "NODE ") {
		t.Errorf("genesis on a finished hub said:\n%s%s", errs, out)
	}
	after := statusOf(t, l.hub)
	if before.Mesh != after.Mesh || before.node("hub").Number != after.node("hub").Number {
		t.Errorf("the mesh went from %+v to %+v", before, after)
	}
	if diff := cmp.Diff(processes, l.hub.Pids(isMesh)); diff != "" {
		t.Errorf("processes (-before +after):\n%s", diff)
	}
}

// NODE-3, GEN-3: the printed line joins a machine, which then cannot become a hub.
func (l *life) firstNode(t *testing.T) {
	out, _ := command(t, l.n1, 0, append(strings.Fields(l.lines[0])[1:], "--name", "n1")...)
	if !strings.Contains(out, "This machine is node n1 of mesh lab") {
		t.Errorf("join said %q", out)
	}
	_, errs := command(t, l.n1, 3, "genesis", "--name", "other", "--endpoint", l.n1.Address.String(), "--yes")
	if !strings.Contains(errs, "this machine is node n1 of mesh lab") || !strings.Contains(errs, "hint:") {
		t.Errorf("genesis on a node said %q", errs)
	}
	waitFor(t, "hub and n1 are current", 20*time.Second, func() string { return notCurrent(t.Context(), l.hub, 2, time.Time{}) })
}

// DEC-1, DEC-2, NET-11: what colleagues recorded and did not push stays where it is when somebody joins.
func (l *life) pendingChange(t *testing.T) {
	command(t, l.hub, 0, "module", "register", "hello")
	command(t, l.hub, 0, "module", "assign", "hello", "n1", "--as", "pending")
	before := statusOf(t, l.hub)
	if n := before.node("n1"); n.Unpushed == 0 || !n.Current {
		t.Errorf("with a pending assignment n1 is %+v", n)
	}
	plan, _ := command(t, l.hub, 1, "plan", "n1")
	if !strings.Contains(plan, "pending") {
		t.Errorf("plan:\n%s", plan)
	}

	var token struct{ Join []string }
	if err := ask(t.Context(), l.hub, &token, "token", "create"); err != nil {
		t.Fatal(err)
	}
	// The second line leads with an address that is not known here, and goes on to the other.
	command(t, l.n2, 0, append(strings.Fields(token.Join[1])[1:], "--name", "n2")...)
	waitFor(t, "all are current", 20*time.Second, func() string { return notCurrent(t.Context(), l.hub, 3, time.Time{}) })
	for _, host := range l.bed.Hosts() {
		greeter(t, host)
	}
	everyoneReachesEveryone(t, l.bed) // n1 knows n2 by now

	after := statusOf(t, l.hub)
	for _, name := range []string{"hub", "n1"} {
		if before.node(name).Number != after.node(name).Number {
			t.Errorf("%s went from declaration %s to %s when n2 joined", name, before.node(name).Number, after.node(name).Number)
		}
	}
	if n := after.node("n1"); n.Unpushed != before.node("n1").Unpushed {
		t.Errorf("n1 had %d changes to push, now %d", before.node("n1").Unpushed, n.Unpushed)
	}
	if pids := l.n1.Pids(isHello("")); len(pids) > 0 {
		t.Errorf("hello runs on n1 without a push: %v", pids)
	}
	command(t, l.hub, 0, "module", "unassign", "pending", "n1")
	command(t, l.hub, 0, "plan")
}

// answers: what scripts read has the documented form.
func (l *life) answers(t *testing.T) {
	var status struct {
		Mesh  map[string]any   `json:"mesh"`
		Nodes []map[string]any `json:"nodes"`
	}
	if err := ask(t.Context(), l.hub, &status, "status"); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "status.mesh", status.Mesh, "id", "name")
	for _, n := range status.Nodes {
		wantKeys(t, "status.nodes", n, "name", "id", "mode", "lastSeen", "lost", "current", "number", "unpushed", "declared", "reported", "outcome", "health", "resources", "instances", "warnings")
		wantKeys(t, "status.nodes.resources", n["resources"].(map[string]any), "unchanged", "applied", "failed")
		if n["declared"] != n["reported"] || !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(n["declared"].(string)) || !regexp.MustCompile(`^1\.\d+$`).MatchString(n["number"].(string)) {
			t.Errorf("%s: number %v, declared %v, reported %v", n["name"], n["number"], n["declared"], n["reported"])
		}
	}
	var overlay struct {
		Range string           `json:"range"`
		Nodes []map[string]any `json:"nodes"`
	}
	waitFor(t, "the paths are known", 5*time.Second, func() string { // soon, not with the next heartbeat
		if err := ask(t.Context(), l.hub, &overlay, "overlay", "show"); err != nil {
			return err.Error()
		}
		for _, n := range overlay.Nodes {
			if n["path"] != "direct" {
				return fmt.Sprintf("%v", n)
			}
		}
		return ""
	})
	for _, n := range overlay.Nodes {
		wantKeys(t, "overlay.nodes", n, "name", "address", "path")
		if n["hub"] == true {
			continue
		}
		wantKeys(t, "overlay.nodes", n, "handshake")
		if n["name"] == "hub" {
			t.Errorf("overlay: %v", n)
		}
	}
	var list []struct{ Name, ID, Mode string }
	if err := ask(t.Context(), l.hub, &list, "node", "list"); err != nil {
		t.Fatal(err)
	}
	table, _ := command(t, l.hub, 0, "node", "list")
	for _, n := range list {
		if !regexp.MustCompile(`(?m)^` + n.Name + ` +` + n.ID + ` +` + n.Mode + ` `).MatchString(table) {
			t.Errorf("node %+v is not in\n%s", n, table)
		}
	}
	if len(list) != 3 || len(overlay.Nodes) != 3 || len(status.Nodes) != 3 || overlay.Range != "10.64.0.0/16" {
		t.Errorf("node list %v, overlay %+v", list, overlay)
	}
}

func wantKeys(t *testing.T, what string, have map[string]any, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := have[k]; !ok {
			t.Errorf("%s has no %q: %v", what, k, have)
		}
	}
}

// hello is assigned, pushed, and answers over the overlay by name; a second instance has its own port and data (MOD-12, PORT-1, NET-4).
func (l *life) hello(t *testing.T) {
	command(t, l.hub, 0, "module", "assign", "hello", "n2", "--push", "--wait")
	for visit := 1; visit <= 3; visit++ {
		l.wantVisit(t, "hello", visit)
	}
	command(t, l.hub, 0, "module", "assign", "hello", "n2", "--as", "hello2", "--push", "--wait")
	if one, two := l.url(t, "hello"), l.url(t, "hello2"); one == two {
		t.Errorf("both instances are at %s", one)
	}
	l.wantVisit(t, "hello2", 1)
	l.wantVisit(t, "hello", 4)
}

// url is where an instance of hello on n2 is reached.
func (l *life) url(t *testing.T, instance string) string {
	t.Helper()
	var shown struct {
		Instances []struct {
			Name, Node, Health string
			Ports              map[string]int
		}
	}
	if err := ask(t.Context(), l.hub, &shown, "module", "show", "hello"); err != nil {
		t.Fatal(err)
	}
	for _, i := range shown.Instances {
		if i.Name == instance && i.Node == "n2" && i.Ports["http"] > 0 {
			return fmt.Sprintf("http://n2.internal:%d/", i.Ports["http"])
		}
	}
	t.Fatalf("hello on n2 as %s: %+v", instance, shown)
	return ""
}

// wantVisit fetches an instance's page from the other node.
func (l *life) wantVisit(t *testing.T, instance string, visit int) {
	t.Helper()
	want := fmt.Sprintf("hello from instance %s on node n2, visit %d<", instance, visit)
	if got := run(t, l.n1, probePath, probeCommand, "get", l.url(t, instance)); !strings.Contains(got, want) {
		t.Errorf("%s, not %s", got, want)
	}
}

// MOD-10: unassigned, process and port are gone and the data is kept; assigned again, it goes on with them.
func (l *life) helloGoesAndComes(t *testing.T) {
	const visits = "/var/lib/mesh/modules/hello/data/visits"
	url := l.url(t, "hello")
	command(t, l.hub, 0, "module", "unassign", "hello", "n2", "--push", "--wait")
	if pids := l.n2.Pids(isHello("hello")); len(pids) > 0 {
		t.Errorf("hello still runs: %v", pids)
	}
	if _, errs, code, err := l.n1.Run(t.Context(), probePath, probeCommand, "get", url); code == 0 || !strings.Contains(errs, "connection refused") {
		t.Errorf("%s after hello was unassigned: exit code %d, %s, %v", url, code, errs, err)
	}
	if got := run(t, l.n2, "cat", visits); got != "4" {
		t.Errorf("kept visits: %q", got)
	}
	waitFor(t, "status shows the kept data", 5*time.Second, func() string {
		kept := statusOf(t, l.hub).node("n2").Kept
		for _, k := range kept {
			if k.Instance == "hello" && strings.HasPrefix(visits, k.Path) {
				return ""
			}
		}
		return fmt.Sprintf("kept: %v", kept)
	})
	if text, _ := command(t, l.hub, 0, "status"); !strings.Contains(text, "data of hello is kept in ") {
		t.Errorf("status:\n%s", text)
	}
	l.wantVisit(t, "hello2", 2)

	command(t, l.hub, 0, "module", "assign", "hello", "n2", "--push", "--wait")
	l.wantVisit(t, "hello", 5)
	if kept := statusOf(t, l.hub).node("n2").Kept; len(kept) > 0 {
		t.Errorf("kept although hello has it again: %v", kept)
	}
}

// isMesh matches what the mesh itself keeps running: serve, agent, supervisors, and the store.
func isMesh(cmdline []string) bool {
	return isCommand("serve")(cmdline) || isCommand("agent")(cmdline) || isCommand("supervise")(cmdline) || isPostmaster(cmdline)
}

func isCommand(name string) func([]string) bool {
	return func(cmdline []string) bool {
		return len(cmdline) > 1 && strings.HasSuffix(cmdline[0], "mesh") && cmdline[1] == name
	}
}

// isPostmaster does not match the processes of its own, which change their command line.
func isPostmaster(cmdline []string) bool { return strings.HasSuffix(cmdline[0], "/postgres") }

// isHello matches the process of an instance, or of any.
func isHello(instance string) func([]string) bool {
	return func(cmdline []string) bool {
		return isCommand("hello")(cmdline) && (instance == "" || slices.Contains(cmdline, "/var/lib/mesh/modules/"+instance+"/data"))
	}
}

// the pid of the one process that matches.
func the(t *testing.T, host *netns.Host, what string, match func([]string) bool) int {
	t.Helper()
	pids := host.Pids(match)
	if len(pids) != 1 {
		t.Fatalf("%s on %s: processes %v, not one", what, host.Name, pids)
	}
	return pids[0]
}

// kill ends a process of the mesh as a crash does, and waits until its supervisor has started another.
func kill(t *testing.T, host *netns.Host, name string) {
	t.Helper()
	old := the(t, host, name, isCommand(name))
	if err := host.Kill(old, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, name+" on "+host.Name+" is started again", 10*time.Second, func() string {
		if pids := host.Pids(isCommand(name)); len(pids) != 1 || pids[0] == old {
			return fmt.Sprintf("processes %v, killed was %d", pids, old)
		}
		return ""
	})
}

// everybody is heard of again by a controller that came up after since.
func (l *life) settled(t *testing.T, since time.Time) status {
	t.Helper()
	waitFor(t, "all are current and heard of", time.Minute, func() string { return notCurrent(t.Context(), l.hub, 3, since) })
	return statusOf(t, l.hub)
}

// sameNumbers: a controller that starts anew renders the same bytes, and sends nothing (DEC-10).
func sameNumbers(t *testing.T, before, after status) {
	t.Helper()
	for _, n := range before.Nodes {
		if m := after.node(n.Name); m.Number != n.Number || m.Declared != n.Declared {
			t.Errorf("%s went from declaration %s %s to %s %s", n.Name, n.Number, n.Declared, m.Number, m.Declared)
		}
	}
	if before.Mesh != after.Mesh {
		t.Errorf("mesh %v became %v", before.Mesh, after.Mesh)
	}
}

// GEN-8, DEC-8, DEC-10: serve moves no packet; killed, it costs no request and no datagram, and comes back saying the same.
func (l *life) serveKilled(t *testing.T) {
	before, hello := statusOf(t, l.hub), the(t, l.n2, "hello", isHello("hello"))
	fetching, pinging := begin(t, l.n1, "fetch", l.url(t, "hello")), begin(t, l.n1, "ping", "n2.internal")
	killed := time.Now()
	kill(t, l.hub, "serve")
	after := l.settled(t, killed)
	back := time.Since(killed)
	requests, packets := fetching.end(t), pinging.end(t)
	t.Logf("serve killed: all settled after %s; %d requests, %d lost, longest gap %s; %d datagrams, %d lost, longest gap %s",
		back, requests.Asked, requests.Lost, requests.Gap, packets.Asked, packets.Lost, packets.Gap)
	if requests.Lost > 0 || packets.Lost > 0 {
		t.Errorf("lost %d requests %q and %d datagrams", requests.Lost, requests.Errors, packets.Lost)
	}
	sameNumbers(t, before, after)
	if now := the(t, l.n2, "hello", isHello("hello")); now != hello {
		t.Errorf("hello was process %d, is %d", hello, now)
	}
	if pids := l.hub.Pids(isPostmaster); len(pids) != 1 {
		t.Errorf("stores: %v", pids)
	}
}

// deviceReturn is how long the overlay may be away with an agent.
const deviceReturn = 1500 * time.Millisecond

// GEN-8, DEC-8: an agent's end takes the overlay away for as long as its device needs, and no module.
func (l *life) agentsKilled(t *testing.T) {
	before, hello := statusOf(t, l.hub), the(t, l.n2, "hello", isHello("hello"))
	for _, host := range []*netns.Host{l.n2, l.hub, l.n1} {
		fetching, pinging := begin(t, l.n1, "fetch", l.url(t, "hello")), begin(t, l.n1, "ping", "n2.internal")
		killed := time.Now()
		kill(t, host, "agent")
		waitFor(t, "n1 reaches n2 again", 20*time.Second, func() string { return reach(l.n1, "n2.internal") })
		waitFor(t, host.Name+" is heard of again", 20*time.Second, func() string {
			if seen := statusOf(t, l.hub).node(host.Name).LastSeen; !seen.After(killed) {
				return "last seen " + seen.String()
			}
			return ""
		})
		requests, packets := fetching.end(t), pinging.end(t)
		t.Logf("agent of %s killed: longest gap %s, %d of %d datagrams lost; %d of %d requests lost, longest gap %s",
			host.Name, packets.Gap, packets.Lost, packets.Asked, requests.Lost, requests.Asked, requests.Gap)
		if packets.Gap > deviceReturn || packets.Lost == 0 {
			t.Errorf("agent of %s: the overlay was away for %s (%d datagrams), allowed are %s", host.Name, packets.Gap, packets.Lost, deviceReturn)
		}
		if requests.Lost > 0 {
			t.Errorf("agent of %s: %d requests lost: %q", host.Name, requests.Lost, requests.Errors)
		}
	}
	if now := the(t, l.n2, "hello", isHello("hello")); now != hello {
		t.Errorf("hello was process %d, is %d", hello, now)
	}
	sameNumbers(t, before, statusOf(t, l.hub))
}

// pulse is hello with an eye on it, so that a change of its health is seen within a moment.
const pulse = `{"$schema": "mesh:module.schema.json", "module": "pulse", "description": "hello, closely watched",
  "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}},
  "resources": [
    {"kind": "user", "name": "pulse"},
    {"kind": "directory", "path": "${dir}/data", "class": "data", "owner": "pulse", "mode": "0750"},
    {"kind": "process", "name": "web", "user": "pulse",
     "command": ["mesh", "hello", "--listen", "${node:address}:${port:http}", "--data", "${dir}/data"],
     "ready": {"http": "http://${node:address}:${port:http}/healthz", "within": "30s"},
     "alive": {"http": "http://${node:address}:${port:http}/healthz", "every": "200ms", "failures": 1}}]}`

// BUS-12, GEN-8: with the store away nodes stay connected, and what they say meanwhile is recorded once it is back.
func (l *life) storeAway(t *testing.T) {
	if err := l.hub.Put(t.Context(), "/root/pulse/module.json", []byte(pulse), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, l.hub, 0, "module", "register", "/root/pulse")
	command(t, l.hub, 0, "module", "assign", "pulse", "n2", "--push", "--wait")

	// Its disk is not there, and a crash takes the running one away. The hub must not take that for a mesh to be founded.
	const cluster, aside = "/var/lib/mesh/modules/mesh-store/store/cluster", "/var/lib/mesh/modules/mesh-store/store/aside"
	before := statusOf(t, l.hub)
	run(t, l.hub, "mv", cluster, aside)
	kill(t, l.hub, "serve")
	waitFor(t, "the store is away", 10*time.Second, func() string {
		if pids := l.hub.Pids(isPostmaster); len(pids) > 0 {
			return fmt.Sprintf("it runs: %v", pids)
		}
		return ""
	})
	waitFor(t, "the hub says what is missing, and makes no other", 10*time.Second, func() string {
		const log = "/var/lib/mesh/run/process/mesh-controller.serve/log"
		if text, err := l.hub.Get(t.Context(), log); err != nil || !strings.Contains(string(text), "the records of mesh lab ("+before.Mesh.ID+") are gone: there is no "+cluster) {
			return fmt.Sprintf("not in %s: %v", log, err)
		}
		return ""
	})
	for _, host := range l.bed.Hosts() {
		waitFor(t, host.Name+" is connected to the bus without the store", 30*time.Second, func() string { return unconnected(t, host) })
	}

	// Without its data folder the process ends at every start. The node tells so, once.
	last := l.outbox(t).Sequence
	run(t, l.n2, "chmod", "0000", "/var/lib/mesh/modules/pulse/data")
	if err := l.n2.Kill(the(t, l.n2, "pulse", isHello("pulse")), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var told outbox
	waitFor(t, "n2's account of it is in the stream", 20*time.Second, func() string {
		if told = l.outbox(t); told.Sequence <= last || told.Report != nil {
			return fmt.Sprintf("last report %d, before %d, waiting here: %s", told.Sequence, last, told.Report)
		}
		return ""
	})
	if _, _, code, err := l.hub.Run(t.Context(), beds.Binary, "status"); code != 4 {
		t.Errorf("status without a store: exit code %d, %v", code, err)
	}

	back := time.Now()
	run(t, l.hub, "test", "!", "-e", cluster)
	run(t, l.hub, "mv", aside, cluster)
	waitFor(t, "what n2 said meanwhile is recorded", 30*time.Second, func() string {
		var s status
		if err := ask(t.Context(), l.hub, &s, "status"); err != nil {
			return err.Error()
		}
		for _, i := range s.node("n2").Instances {
			if i.Name == "pulse" && i.Health != "healthy" {
				return ""
			}
		}
		return fmt.Sprintf("%+v", s.node("n2").Instances)
	})
	t.Logf("recorded %s after the store may come back", time.Since(back))
	sameNumbers(t, before, statusOf(t, l.hub))
	command(t, l.hub, 0, "module", "unassign", "pulse", "n2", "--push", "--wait")
	l.settled(t, back)
}

// outbox is what the agent of n2 has not delivered, and its last number.
type outbox struct {
	Sequence uint64          `json:"sequence"`
	Report   json.RawMessage `json:"report"`
}

func (l *life) outbox(t *testing.T) (o outbox) {
	t.Helper()
	text, err := l.n2.Get(t.Context(), "/var/lib/mesh/node/outbox.json")
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// unconnected says why a host has no connection to the broker, by the kernel's own table.
func unconnected(t *testing.T, host *netns.Host) string {
	t.Helper()
	table := run(t, host, "cat", "/proc/net/tcp")
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", 4222)) && f[3] == "01" {
			return ""
		}
	}
	return "no established connection to port 4222"
}

// GEN-8: stopped and started, the hub is the same and nobody lost anything.
func (l *life) hubStopped(t *testing.T) {
	before, hello := statusOf(t, l.hub), the(t, l.n2, "hello", isHello("hello"))
	command(t, l.hub, 0, "stop")
	if pids := l.hub.Pids(isMesh); len(pids) > 0 {
		t.Errorf("after the stop there run %v", pids)
	}
	started := time.Now()
	command(t, l.hub, 0, "start")
	l.returned(t, before, hello, started)
}

// GEN-8: after a power cut one command brings the hub back without any other machine.
func (l *life) hubWithoutPower(t *testing.T) {
	before, hello := statusOf(t, l.hub), the(t, l.n2, "hello", isHello("hello"))
	addresses, err := addresses(t.Context(), l.hub)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.hub.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	command(t, l.hub, 0, "start")
	l.returned(t, before, hello, started)
	listen(t, l.hub)
	everyoneReachesEveryone(t, l.bed)
	if diff := cmp.Diff(addresses, l.addresses(t)); diff != "" {
		t.Errorf("addresses (-before +after):\n%s", diff)
	}
}

func (l *life) addresses(t *testing.T) map[string]string {
	t.Helper()
	found, err := addresses(t.Context(), l.hub)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// returned: the hub is back since a moment, as it was.
func (l *life) returned(t *testing.T, before status, hello int, since time.Time) {
	t.Helper()
	after := l.settled(t, since)
	t.Logf("all settled %s after the start", time.Since(since))
	sameNumbers(t, before, after)
	if now := the(t, l.n2, "hello", isHello("hello")); now != hello {
		t.Errorf("hello was process %d, is %d", hello, now)
	}
	waitFor(t, "hello answers", 20*time.Second, func() string {
		_, errs, code, err := l.n1.Run(t.Context(), probePath, probeCommand, "get", l.url(t, "hello"))
		if code != 0 || err != nil {
			return fmt.Sprintf("%s %v", errs, err)
		}
		return ""
	})
}
