package engine

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// DEC-4, DEC-8, NET-10: pulled by digest from a store that asks for the node's certificate, made as its spec says, and seen to be so from
// inside; twice is once, and it goes without a trace.
func TestContainer(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", map[string]any{"Env": []string{"A=image", "FROM=image"}})
	data, file := filepath.Join(b.dir, "data"), filepath.Join(b.dir, "file")
	if err := os.Mkdir(data, 0o777); err != nil || os.Chmod(data, 0o777) != nil || os.WriteFile(file, []byte("first"), 0o644) != nil {
		t.Fatal(err)
	}
	r := b.web(image, func(s *wire.ContainerSpec) {
		s.ReadOnly, s.Resolver = true, "10.64.0.1"
		s.Mounts = []wire.Mount{{Source: data, Target: "/data"}, {Source: file, Target: "/etc/file", ReadOnly: true}}
		s.Devices = []string{"/dev/null"}
		s.Ports = append(s.Ports, wire.Published{Inside: 81, Port: 8081, Protocol: "udp", Address: "127.0.0.1"}, wire.Published{Inside: 80, Port: 8082, Protocol: "tcp", Address: "0.0.0.0"})
	})
	if o := b.observe(r); o.Present || o.Matches {
		t.Errorf("before: %+v", o)
	}
	have := b.do(r)
	b.answers("one")
	got := map[string]string{}
	for _, q := range []string{"env A", "env FROM", "env MESH_NODE", "env MESH_INSTANCE", "write /data/x", "write /etc/file", "write /x", "file /etc/file", "file /proc/sys/kernel/hostname"} {
		what, arg, _ := strings.Cut(q, " ")
		got[q] = strings.TrimSpace(ask(what, arg))
	}
	for line := range strings.Lines(ask("file", "/proc/self/status")) {
		name, value, _ := strings.Cut(line, ":")
		if strings.HasPrefix(name, "Cap") || name == "Uid" || name == "NoNewPrivs" {
			got[name] = strings.Join(strings.Fields(value), " ")
		}
	}
	for line := range strings.Lines(ask("file", "/etc/resolv.conf")) {
		if strings.HasPrefix(line, "nameserver") {
			got["resolver"] += strings.TrimSpace(line)
		}
	}
	want := map[string]string{
		"env A": "b", "env FROM": "image", "env MESH_NODE": "n1", "env MESH_INSTANCE": "web", "write /data/x": "written", "file /etc/file": "first",
		"write /etc/file": "open /etc/file: read-only file system", "write /x": "open /x: read-only file system", "file /proc/sys/kernel/hostname": "web",
		"Uid": "65534 65534 65534 65534", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapPrm": "0000000000000000", "CapInh": "0000000000000000",
		"CapBnd": "00000000000004eb", "CapAmb": "0000000000000000", "resolver": "nameserver 10.64.0.1",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	var bound []string
	for _, address := range []string{"10.64.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8082", "10.64.0.1:8082"} {
		if c, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			c.Close()
			bound = append(bound, address)
		}
	}
	if d := cmp.Diff([]string{"10.64.0.1:8080", "127.0.0.1:8082", "10.64.0.1:8082"}, bound); d != "" {
		t.Error(d)
	}
	if h := have.HostConfig; h.Memory != 256<<20 || h.NanoCPUs != 500e6 || valueOf(h.PidsLimit) != 100 || h.LogConfig.Config["max-size"] != "524288" || h.LogConfig.Config["max-file"] != "2" {
		t.Errorf("limits: %+v", h)
	}
	if b.store.pulls != 1 {
		t.Errorf("pulled %d times", b.store.pulls)
	}
	b.undo(r)
	if o := b.observe(r); o.Present {
		t.Errorf("after undo: %+v", o)
	}
	if text, err := os.ReadFile(filepath.Join(data, "x")); err != nil || string(text) != "written" {
		t.Errorf("data after undo: %q, %v", text, err)
	}
}

// MOD-14: what a privilege allows is given, and nothing of it otherwise; on the node's network its names are the node's own.
func TestContainerWithPrivileges(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	have := b.do(b.web(image, func(s *wire.ContainerSpec) { s.Privileged, s.User, s.Stopped = true, "root", true })) // no test machine need allow it
	if h := have.HostConfig; !h.Privileged || len(h.CapDrop) > 0 || have.Config.User != "0:0" {
		t.Errorf("%+v", h)
	}
	have = b.do(b.web(image, func(s *wire.ContainerSpec) {
		s.Network, s.Ports, s.User, s.Command = "host", nil, "root", []string{"/app", "serve", "10.64.0.1:8080", "one"}
	}))
	if h := have.HostConfig; h.Privileged || h.NetworkMode != "host" {
		t.Errorf("%+v", h)
	}
	b.answers("one")
	hosts, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(hosts, "10.64.0.7 later.internal") // in place, as the agent writes it
	hosts.Close()
	if got := ask("file", "/etc/hosts"); !strings.Contains(got, "10.64.0.7 later.internal") {
		t.Error(got)
	}
	if s := ask("file", "/proc/self/status"); !strings.Contains(s, "NoNewPrivs:\t1") || !strings.Contains(s, "CapEff:\t00000000000004eb") {
		t.Error(s)
	}
}

// DEC-6: whatever somebody does to a container is seen, named and put right; only what cannot be changed makes another of it.
func TestDrift(t *testing.T) {
	b := newBench(t)
	image, other := b.store.push("app", nil), b.store.push("other", map[string]any{"Env": []string{"OTHER=1"}})
	name := b.name("web")
	r := b.web(image, nil)
	b.do(b.web(other, nil)) // it lies on the machine, as a person would take it
	b.do(r)
	labels := func() (args []string) {
		for name, value := range b.inspect("web").Config.Labels {
			args = append(args, "--label", name+"="+value)
		}
		return args
	}
	swap := func(args ...string) {
		l := labels()
		b.person("rm", "-f", name)
		b.person(append(append(append([]string{"run", "-d", "--name", name}, l...), args...), "/app", "serve", ":80", "swapped")...)
	}
	for _, c := range []struct {
		what    string
		do      func()
		differs string
		same    bool // the same container goes on
	}{
		{"stopped", func() { b.person("stop", name) }, "exited, want running", true},
		{"killed", func() { b.person("kill", name) }, "exited, want running", true},
		{"paused", func() { b.person("pause", name) }, "paused, want running", true},
		{"renamed", func() { b.person("rename", name, "theirs") }, `name "theirs", want ` + name, true},
		{"restart changed", func() { b.person("update", "--restart", "no", name) }, "restart no, want always", true},
		{"removed", func() { b.person("rm", "-f", name) }, "", false},
		{"memory changed", func() { b.person("update", "--memory", "300m", "--memory-swap", "300m", name) }, "memory 314572800, want 268435456", false},
		{"cpu changed", func() { b.person("update", "--cpus", "1.5", name) }, "cpu 1500000000, want 500000000", false},
		{"pids changed", func() { b.person("update", "--pids-limit", "-1", name) }, "pids none, want 100", false},
		{"network cut", func() { b.person("network", "disconnect", "bridge", name) }, "attached to none, want bridge", false},
		{"another network", func() { b.person("network", "create", "lan"); b.person("network", "connect", "lan", name) }, "attached to bridge lan, want bridge", false},
		{"image swapped", func() { swap("--user", "65534:65534", b.store.address+"/web/"+other) }, "image ", false},
		{"run by another", func() { swap("--user", "0:0", "--restart", "always", b.store.address+"/web/"+image) }, "user 0:0, want 65534:65534", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := b.inspect("web").ID
			c.do()
			if o := b.observe(r); o.Matches || o.Present != (c.differs != "") || !strings.HasPrefix(o.Differs, c.differs) {
				t.Errorf("seen as %+v, want %q", o, c.differs)
			}
			have := b.do(r)
			b.answers("one")
			if (have.ID == before) != c.same {
				t.Errorf("the same container: %v, want %v", have.ID == before, c.same)
			}
		})
	}
	b.person("network", "rm", "lan")
}

// SAFE-1: a container with our name that does not carry our labels is not touched, and named; once it has gone, ours comes back.
func TestForeign(t *testing.T) {
	b := newBench(t)
	r := b.web(b.store.push("app", nil), nil)
	b.do(r)
	name := b.name("web")
	image := b.inspect("web").Image
	b.person("rm", "-f", name)
	id := b.person("run", "-d", "--name", name, "--user", "0:0", image, "/app", "serve", ":80", "theirs")
	if o := b.observe(r); o.Matches || !strings.Contains(o.Differs, id[:12]) {
		t.Errorf("seen as %+v", o)
	}
	if err := b.Do(t.Context(), r); appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), id[:12]) || appliance.AsError(err).Hint == "" {
		t.Errorf("%v", err)
	}
	b.undo(r)
	if have := b.inspect("web"); have.ID != id || !have.State.Running {
		t.Errorf("%s, running %v", have.ID, have.State.Running)
	}
	// Another installation's is foreign, too, and neither is in the other's way.
	b.person("rm", "-f", name)
	b.do(r)
	twin := New(Config{Mesh: testMesh, Node: "n2", State: "/elsewhere", Record: b.config.Record + "2", Credentials: b.config.Credentials})
	if o, err := twin.Observe(t.Context(), r); err != nil || o.Present {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := twin.Undo(t.Context(), r, nil); err != nil {
		t.Error(err)
	}
	b.answers("one")
}

// What changes makes another container, once it is there; until then, and where it does not come about, the old one goes on.
func TestReplace(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	one := b.web(image, nil)
	old := b.do(one)
	b.answers("one")
	goesOn := func(what string, err error, says string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", what, err)
		}
		b.answers("one")
		if have := b.inspect("web"); have.ID != old.ID {
			t.Errorf("%s: another container runs", what)
		}
		if all := strings.Fields(b.person("ps", "-aq")); len(all) != 1 {
			t.Errorf("%s: %d containers are left", what, len(all))
		}
	}
	try := func(change func(*wire.ContainerSpec)) error {
		r := b.web(image, change)
		if o := b.observe(r); o.Matches {
			t.Error("seen as made")
		}
		return b.Do(t.Context(), r)
	}
	goesOn("a mount of nothing", try(func(s *wire.ContainerSpec) { s.Mounts = []wire.Mount{{Source: "/nowhere", Target: "/x"}} }), "/nowhere")
	goesOn("no such program", try(func(s *wire.ContainerSpec) { s.Command = []string{"/none"} }), "/none")
	taken, err := net.Listen("tcp", "10.64.0.1:8090")
	if err != nil {
		t.Fatal(err)
	}
	goesOn("a port that is taken", try(func(s *wire.ContainerSpec) { s.Ports[0].Port = 8090 }), "8090")
	taken.Close()
	volume := b.store.push("volume", map[string]any{"Volumes": map[string]any{"/data": struct{}{}}})
	image = volume
	err = try(nil)
	goesOn("data that nothing keeps", err, `keeps data at "/data"`)
	if e := appliance.AsError(err); e != nil && !strings.Contains(e.Hint, `{"source": "${dir}/…", "target": "/data"}`) {
		t.Errorf("hint %q", e.Hint)
	}
	image = "app@sha256:" + strings.Repeat("0", 64)
	goesOn("an image that nobody has", try(nil), image)
	b.store.mu.Lock()
	b.store.closed = true
	b.store.mu.Unlock()
	goesOn("a store that is away", try(nil), image)
	if o := b.observe(one); !o.Matches {
		t.Errorf("after all that: %+v", o)
	}
	b.store.closed = false

	image = volume
	data := t.TempDir()
	changed := b.web(image, func(s *wire.ContainerSpec) {
		s.Command, s.Mounts = []string{"/app", "serve", ":80", "two"}, []wire.Mount{{Source: data, Target: "/data"}}
	})
	if have := b.do(changed); have.ID == old.ID {
		t.Error("nothing was made")
	}
	b.answers("two")
	if volumes := b.person("volume", "ls", "-q"); volumes != "" {
		t.Errorf("volumes: %s", volumes)
	}
	// PORT-5: where the image comes from is no part of what it is made of.
	moved := b.web(image, func(s *wire.ContainerSpec) {
		s.Command, s.Mounts = []string{"/app", "serve", ":80", "two"}, []wire.Mount{{Source: data, Target: "/data"}}
		s.Store.Address = strings.Replace(s.Store.Address, "hub.", "moved.", 1)
		s.Image = s.Store.Address + "/web/" + image
	})
	id := b.inspect("web").ID
	if have := b.do(moved); have.ID != id {
		t.Error("made anew because the store has another address")
	}
}

// SAFE-5: whatever an agent was doing when it was killed is found and brought to its end, without a second container and with the first
// one undisturbed where it is right.
func TestInterrupted(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	one, two := b.web(image, nil), b.web(image, func(s *wire.ContainerSpec) { s.Command[3] = "two" })
	w, err := b.wanted(two)
	if err != nil {
		t.Fatal(err)
	}
	for _, steps := range []int{1, 2, 4, 5} {
		t.Run(fmt.Sprintf("after %d steps", steps), func(t *testing.T) {
			b.do(one)
			c, ours, err := b.find(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var next string
			for i, step := range []func() error{
				func() error {
					made, err := c.create(t.Context(), w)
					next = made.ID
					return err
				},
				func() error { return c.stop(t.Context(), ours[0]) },
				func() error { return c.rename(t.Context(), ours[0].ID, w.name+".old") },
				func() error { return c.rename(t.Context(), next, w.name) },
				func() error { b.person("start", next); return nil },
				func() error { return c.remove(t.Context(), ours[0].ID) },
			} {
				if i == steps {
					break
				}
				if err := step(); err != nil {
					t.Fatal(err)
				}
			}
			if o := b.observe(two); o.Matches {
				t.Errorf("seen as %+v", o)
			}
			if have := b.do(two); have.ID != next {
				t.Error("what had been made was not taken up")
			}
			b.answers("two")
			if all := strings.Fields(b.person("ps", "-aq")); len(all) != 1 {
				t.Errorf("%d containers are left", len(all))
			}
		})
	}
}

// OPS-1: what an operator stopped is there and does not run, whatever happens to the engine; started again, it is the same container.
func TestStopped(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	stopped := func(s *wire.ContainerSpec) { s.Stopped = true }
	on := b.do(b.web(image, nil))
	b.answers("one")
	off := b.do(b.web(image, stopped))
	if off.ID != on.ID || off.State.Running || off.HostConfig.RestartPolicy.Name != container.RestartPolicyDisabled {
		t.Errorf("the same %v, running %v, restart %s", off.ID == on.ID, off.State.Running, off.HostConfig.RestartPolicy.Name)
	}
	if err := b.Act(t.Context(), b.web(image, stopped), "restart"); err != nil || b.inspect("web").State.Running {
		t.Errorf("a change started it: %v", err)
	}
	b.docker.end(t, syscall.SIGTERM)
	if err := b.docker.start(); err != nil {
		t.Fatal(err)
	}
	if b.inspect("web").State.Running {
		t.Error("the engine started it")
	}
	if o := b.observe(b.web(image, stopped)); !o.Matches {
		t.Errorf("%+v", o)
	}
	b.person("start", b.name("web"))
	if o := b.observe(b.web(image, stopped)); o.Matches || o.Differs != "running, want stopped" {
		t.Errorf("%+v", o)
	}
	b.do(b.web(image, stopped))
	if have := b.do(b.web(image, nil)); have.ID != on.ID || !have.State.Running {
		t.Errorf("the same %v, running %v", have.ID == on.ID, have.State.Running)
	}
	if have := b.do(b.web(b.store.push("app2", map[string]any{"Env": []string{"B=1"}}), stopped)); have.ID == on.ID || have.State.Running {
		t.Error("a new one, stopped")
	}
}

// DEC-8: without any agent, what runs comes back with the engine, however that ended; what has done its work stays ended. Meanwhile the
// engine's absence is said, and nothing waits for it.
func TestEngineRestarts(t *testing.T) {
	b := newBench(t)
	image := b.store.push("app", nil)
	web := b.web(image, nil)
	job := func(name, restart, code string) wire.Resource {
		return b.web(image, func(s *wire.ContainerSpec) {
			s.Name, s.Ports, s.Restart, s.Command = name, nil, restart, []string{"/app", "end", code}
		})
	}
	once, done := job("once", "never", "3"), job("done", "on-failure", "0")
	id := b.do(web).ID
	for _, r := range []wire.Resource{once, done} {
		if err := b.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	ended := func() {
		t.Helper()
		await(t, func() string {
			for _, r := range []wire.Resource{once, done} {
				if s, err := b.Status(t.Context(), r); err != nil || s.State != "stopped" {
					return fmt.Sprintf("%s: %+v, %v", r.ID, s, err)
				}
			}
			return ""
		})
		if o := b.observe(done); !o.Matches {
			t.Errorf("a job that has done its work: %+v", o)
		}
	}
	ended()
	if o := b.observe(once); !o.Matches {
		t.Errorf("a job that shall run once: %+v", o)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		time.Sleep(50 * time.Millisecond) // starts are known to the hundredth of a second: the job ended well before the next
		b.docker.end(t, signal)
		begun := time.Now()
		_, err := b.Observe(t.Context(), web)
		_, err2 := b.Status(t.Context(), web)
		for _, err := range []error{err, err2, b.Do(t.Context(), web)} {
			if appliance.KindOf(err) != appliance.Unavailable {
				t.Errorf("%s: engine away: %v", signal, err)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s: an engine that is away took %s", signal, took)
		}
		if b.Runtime() != "docker" {
			t.Errorf("%s: a restarting engine is none", signal)
		}
		if err := b.docker.start(); err != nil {
			t.Fatal(err)
		}
		b.answers("one")
		if o := b.observe(web); !o.Matches || b.inspect("web").ID != id {
			t.Errorf("%s: %+v", signal, o)
		}
		// A job is for the engine's run what it is for the machine's.
		if o := b.observe(done); o.Matches || o.Differs != "exited, want running" {
			t.Errorf("%s: a job of before: %+v", signal, o)
		}
		if err := b.Do(t.Context(), done); err != nil {
			t.Error(err)
		}
		ended()
	}
}

// Where there is no engine, that is said, and what never was is removed without one.
func TestNoEngine(t *testing.T) {
	b := newBench(t)
	e := New(Config{Mesh: testMesh, Node: "n1", State: b.dir, Record: filepath.Join(b.dir, "x.json"), Sockets: []string{"/nowhere/docker.sock"}, Credentials: b.config.Credentials})
	if r := e.Runtime(); r != "" {
		t.Error(r)
	}
	r := b.web("app@sha256:"+strings.Repeat("0", 64), nil)
	if _, err := e.Observe(t.Context(), r); appliance.KindOf(err) != appliance.Unavailable || !strings.Contains(err.Error(), "/nowhere/docker.sock") {
		t.Error(err)
	}
	later := filepath.Join(b.dir, "docker.sock")
	e.config.Sockets = append(e.config.Sockets, later)
	if err := os.Symlink(Sockets[0], later); err != nil || e.Runtime() != "docker" {
		t.Errorf("installed later: %q, %v", e.Runtime(), err)
	}
	e = New(e.config)
	// One that takes questions and gives no answers holds nobody up for long.
	silent := filepath.Join(b.dir, "silent.sock")
	l, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e.config.Sockets = []string{silent}
	begun := time.Now()
	if r := e.Runtime(); r != "" || time.Since(begun) > 2*glance {
		t.Errorf("%q after %s", r, time.Since(begun))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := e.Observe(ctx, r); err == nil {
		t.Error("observed")
	}
}

// SAFE-3: what does not fit is refused before the engine is asked.
func TestRefusals(t *testing.T) {
	e := New(Config{Mesh: testMesh, Node: "n1", State: "/x", Sockets: []string{"/nowhere"}})
	digest := strings.Repeat("0", 64)
	for what, change := range map[string]func(*wire.ContainerSpec){
		"a name":           func(s *wire.ContainerSpec) { s.Name = "../x" },
		"no digest":        func(s *wire.ContainerSpec) { s.Image = "hub.internal:1/web/app:latest" },
		"another registry": func(s *wire.ContainerSpec) { s.Image = "evil.example:1/web/app@sha256:" + digest },
		"a path for one": func(s *wire.ContainerSpec) {
			s.Store.Address = "../../x:1"
			s.Image = "../../x:1/web/app@sha256:" + digest
		},
		"a duration": func(s *wire.ContainerSpec) { s.Stop = "soon" },
		"an address": func(s *wire.ContainerSpec) {
			s.Ports = []wire.Published{{Inside: 1, Port: 1, Protocol: "tcp", Address: "x"}}
		},
		"a resolver": func(s *wire.ContainerSpec) { s.Resolver = "x" },
		"no user":    func(s *wire.ContainerSpec) { s.User = "nobody-of-that-name" },
	} {
		b := bench{t: t, store: &store{address: "hub.internal:1"}}
		r := b.web("app@sha256:"+digest, change)
		if err := e.Do(t.Context(), r); err == nil || appliance.KindOf(err) == appliance.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
}
