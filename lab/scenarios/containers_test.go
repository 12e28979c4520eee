package scenarios

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// service is one program as two modules: a process out of its folder on the hub, and a container on n1.
type service struct {
	hub, n1 *netns.Host
	program string // on this machine
	life    context.Context
	docker  *exec.Cmd
	images  []string // digests, by version
}

const (
	asProcess   = "http://hub.internal:8080/"
	asContainer = "http://n1.internal:8081/"
)

// The same service as process and as container: up, reached by name, upgraded, rolled back, and left alone by what happens to agent and
// engine.
func TestServiceAsProcessAndAsContainer(t *testing.T) {
	if _, err := exec.LookPath("dockerd"); err != nil {
		t.Skip("the scenario needs a container engine: make packages installs one")
	}
	bed := up(t, beds.Pair)
	equip(t, bed)
	s := &service{hub: bed.Host("hub"), n1: bed.Host("n1"), program: filepath.Join(t.TempDir(), "app"), life: t.Context()}
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", s.program, "./appliance/agent/linux/engine/testdata/app")
	build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build app: %v\n%s", err, out)
	}
	s.startDocker(t)
	command(t, s.hub, 0, founding(s.hub)...)
	token, err := beds.Token(t.Context(), s.hub)
	if err != nil {
		t.Fatal(err)
	}
	command(t, s.n1, 0, "join", token, "--name", "n1")
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"up", s.up},
		{"by name", s.byName},
		{"drift", s.drift},
		{"upgraded", s.upgraded},
		{"rolled back", s.rolledBack},
		{"attached", s.attached},
		{"stopped", s.stopped},
		{"agent killed", s.agentKilled},
		{"engine restarted", s.engineRestarted},
		{"gone", s.gone},
	} {
		begun := time.Now()
		if !t.Run(step.name, step.do) {
			t.FailNow()
		}
		t.Logf("%s: %.1f s", step.name, time.Since(begun).Seconds())
	}
}

// startDocker starts a real engine on n1, which the end of the test ends.
func (s *service) startDocker(t *testing.T) {
	t.Helper()
	s.docker = s.n1.Command(s.life, "dockerd", "--data-root", "/var/lib/docker-of-n1")
	log, err := os.OpenFile(filepath.Join(filepath.Dir(s.program), "dockerd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.docker.Stdout, s.docker.Stderr = log, log
	if err := s.docker.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the engine answers", time.Minute, func() string {
		if out, errs, code, err := s.n1.Run(t.Context(), "docker", "version"); code != 0 || err != nil {
			return fmt.Sprint(out, errs, err)
		}
		return ""
	})
}

// version registers the service as it says text; the image is pushed first.
func (s *service) version(t *testing.T, text string) {
	t.Helper()
	program, err := os.ReadFile(s.program)
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string, content []byte) {
		t.Helper()
		if err := s.hub.Put(t.Context(), path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("/root/process/app", program)
	put("/root/process/module.json", []byte(fmt.Sprintf(`{"module": "process", "description": "The service as a process",
  "ports": {"http": {"port": 8080, "from": "mesh"}},
  "build": {"artifacts": {"program": {"kind": "files", "files": ["app"]}}},
  "resources": [
    {"kind": "user", "name": "process"},
    {"kind": "process", "name": "web", "user": "process", "artifact": "program", "command": ["./app", "serve", "${node:address}:${port:http}", %q],
     "ready": {"http": "http://${node:address}:${port:http}/"}}]}`, text)))
	command(t, s.hub, 0, "module", "register", "/root/process")

	put("/root/image.tar", image(t, program, "/app", "serve", ":80", text))
	var pushed struct{ Digest string }
	if err := ask(t.Context(), s.hub, &pushed, "artifact", "push", "container/image", "/root/image.tar"); err != nil {
		t.Fatal(err)
	}
	s.images = append(s.images, pushed.Digest)
	put("/root/container/module.json", []byte(fmt.Sprintf(`{"module": "container", "description": "The service as a container",
  "ports": {"http": {"port": 8081, "from": "mesh"}},
  "artifacts": {"image": {"kind": "image", "digest": %q, "platforms": ["linux/amd64"]}},
  "resources": [
    {"kind": "user", "name": "container"},
    {"kind": "directory", "path": "${dir}/data", "owner": "container"},
    {"kind": "container", "name": "web", "artifact": "image", "user": "container", "ports": {"http": 80},
     "mounts": [{"source": "${dir}/data", "target": "/data"}], "memory": "64MiB",
     "ready": {"http": "http://${node:address}:${port:http}/"}, "alive": {"http": "http://${node:address}:${port:http}/", "every": "500ms"}}]}`, pushed.Digest)))
	command(t, s.hub, 0, "module", "register", "/root/container")
}

// image is an image FROM scratch in OCI's layout, as a tar.
func image(t *testing.T, program []byte, argv ...string) []byte {
	t.Helper()
	var files, layer bytes.Buffer
	pack := func(to *bytes.Buffer, w *tar.Writer, name string, mode int64, content []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	inside := tar.NewWriter(&layer)
	pack(&layer, inside, "app", 0o755, program)
	inside.Close()
	layout := tar.NewWriter(&files)
	blob := func(mediaType string, content []byte) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(content))
		pack(&files, layout, "blobs/sha256/"+digest, 0o644, content)
		return map[string]any{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + digest, "size": len(content)}
	}
	text := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	l := blob("layer.v1.tar", layer.Bytes())
	c := blob("config.v1+json", text(map[string]any{"os": "linux", "architecture": "amd64", "config": map[string]any{"Entrypoint": argv[:1], "Cmd": argv[1:]},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{l["digest"]}}}))
	m := blob("manifest.v1+json", text(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": c, "layers": []any{l}}))
	pack(&files, layout, "index.json", 0o644, text(map[string]any{"schemaVersion": 2, "manifests": []any{m}}))
	pack(&files, layout, "oci-layout", 0o644, text(map[string]any{"imageLayoutVersion": "1.0.0"}))
	layout.Close()
	return files.Bytes()
}

// says asks the service at a URL from a host, and ask the container to do it from inside.
func (s *service) says(t *testing.T, from *netns.Host, url string) string {
	t.Helper()
	out, errs, _, err := from.Run(t.Context(), "curl", "-s", "--max-time", "5", url)
	if err != nil {
		t.Fatal(err)
	}
	return out + errs
}

func (s *service) inside(t *testing.T, what, q string) string {
	t.Helper()
	return s.says(t, s.hub, asContainer+what+"?q="+url.QueryEscape(q))
}

// container is what the engine says of the container.
func (s *service) container(t *testing.T) (c struct {
	ID, Image string
	Config    struct{ Image string }
	State     struct {
		StartedAt string
		Pid       int
	}
}) {
	t.Helper()
	var all []json.RawMessage
	if err := json.Unmarshal([]byte(run(t, s.n1, "docker", "inspect", "mesh.container.web")), &all); err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	if err := json.Unmarshal(all[0], &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (s *service) answers(t *testing.T, text string) {
	t.Helper()
	for _, url := range []string{asProcess, asContainer} {
		waitFor(t, url+" says "+text, 20*time.Second, func() string {
			if got := s.says(t, s.hub, url); got != text {
				return fmt.Sprintf("it says %q", got)
			}
			return ""
		})
	}
}

// BLD-7, DEC-8: a container runs where there is an engine, and where there is none it is refused by name.
func (s *service) up(t *testing.T) {
	s.version(t, "one")
	command(t, s.hub, 0, "module", "assign", "process", "hub", "--push", "--wait")
	_, errs := command(t, s.hub, 3, "module", "assign", "container", "hub")
	if !strings.Contains(errs, "hub") || !strings.Contains(errs, "container") {
		t.Errorf("on a machine without an engine: %s", errs)
	}
	command(t, s.hub, 0, "module", "assign", "container", "n1", "--push", "--wait")
	s.answers(t, "one")
	if c := s.container(t); c.Config.Image != "hub.internal:4281/container/image@"+s.images[0] {
		t.Errorf("it runs image %s", c.Config.Image)
	}
	// NET-10: bound to the address that its "from" means, and to no other.
	if got := s.says(t, s.n1, "http://127.0.0.1:8081/"); got != "" {
		t.Errorf("on another address: %q", got)
	}
}

// NET-1: inside, the nodes' names mean what they mean outside, now, and the rest is the machine's to know.
func (s *service) byName(t *testing.T) {
	for url, want := range map[string]string{asProcess: "one", asContainer: "one", "http://web.n1.internal:8081/": "one"} {
		if got := s.inside(t, "get", url); got != want {
			t.Errorf("%s from inside: %q", url, got)
		}
	}
	overlay, err := addresses(t.Context(), s.hub)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hub.internal": overlay["hub"], "n1.internal": overlay["n1"]} {
		if got := s.inside(t, "lookup", name); got != want {
			t.Errorf("%s is %s inside, not %s", name, got, want)
		}
	}
	if got := s.inside(t, "lookup", "n9.internal"); !strings.Contains(got, "no such host") {
		t.Errorf("n9.internal is %s", got)
	}
	if got := s.inside(t, "write", "/data/x"); got != "written" {
		t.Errorf("its data folder: %s", got)
	}
}

// DEC-6: what somebody does to it is put right at the next look, and told.
func (s *service) drift(t *testing.T) {
	run(t, s.n1, "docker", "rm", "-f", "mesh.container.web")
	command(t, s.hub, 0, "check", "n1")
	s.answers(t, "one")
	waitFor(t, "the drift is told", 10*time.Second, func() string {
		if out, _ := command(t, s.hub, 0, "status"); !strings.Contains(out, "container/container/web") {
			return out
		}
		return ""
	})
}

func (s *service) upgraded(t *testing.T) {
	before := s.container(t)
	s.version(t, "two")
	command(t, s.hub, 0, "push", "--wait")
	s.answers(t, "two")
	if after := s.container(t); after.ID == before.ID || after.Image == before.Image {
		t.Errorf("container %s of image %s became %s of %s", before.ID, before.Image, after.ID, after.Image)
	}
	if got := s.inside(t, "file", "/data/x"); got != "written" {
		t.Errorf("its data after the upgrade: %s", got)
	}
}

// DEC-9, DEC-14: the version before comes back, of which the node has kept what it was made of, and goes again.
func (s *service) rolledBack(t *testing.T) {
	run(t, s.n1, "docker", "image", "inspect", "hub.internal:4281/container/image@"+s.images[0])
	for _, module := range []string{"process", "container"} {
		command(t, s.hub, 0, "rollback", module, "--yes", "--wait")
	}
	s.answers(t, "one")
	if c := s.container(t); c.Config.Image != "hub.internal:4281/container/image@"+s.images[0] {
		t.Errorf("it runs image %s", c.Config.Image)
	}
	command(t, s.hub, 0, "push", "--wait")
	s.answers(t, "two")
}

// OPS-2, TOOL-2: what it wrote is read, and a command runs inside as its user.
func (s *service) attached(t *testing.T) {
	if out, _ := command(t, s.hub, 0, "logs", "container@n1"); !strings.Contains(out, "serving two") {
		t.Errorf("its log: %q", out)
	}
	if out, _ := command(t, s.hub, 7, "exec", "container@n1", "--no-stdin", "--", "/app", "end", "7"); out != "ending\n" {
		t.Errorf("the command said %q", out)
	}
}

// OPS-1: stopped by an operator it is there and does not run, and started again it is the same.
func (s *service) stopped(t *testing.T) {
	before := s.container(t)
	command(t, s.hub, 0, "module", "stop", "container@n1", "--wait")
	if c := s.container(t); c.ID != before.ID || c.State.Pid != 0 {
		t.Errorf("stopped: %+v", c)
	}
	command(t, s.hub, 0, "module", "start", "container@n1", "--wait")
	if c := s.container(t); c.ID != before.ID || c.State.Pid == 0 {
		t.Errorf("started: %+v", c)
	}
	s.answers(t, "two")
}

// DEC-8: an agent's end and return is no matter of the container's; names come back with the agent.
func (s *service) agentKilled(t *testing.T) {
	before := s.container(t)
	kill(t, s.n1, "agent")
	waitFor(t, "names are known inside", 20*time.Second, func() string {
		if got := s.inside(t, "get", asProcess); got != "two" {
			return got
		}
		return ""
	})
	command(t, s.hub, 0, "check", "n1")
	if after := s.container(t); after != before {
		t.Errorf("container %+v became %+v", before, after)
	}
}

// DEC-8: an engine's end and return brings its containers back, and all is well again by itself.
func (s *service) engineRestarted(t *testing.T) {
	before := s.container(t)
	pid := strings.TrimSpace(run(t, s.n1, "cat", "/run/docker.pid"))
	run(t, s.n1, "kill", pid)
	_ = s.docker.Wait()
	waitFor(t, "the hub hears that it is not well", 30*time.Second, func() string {
		if n := statusOf(t, s.hub).node("n1"); n.Health != "unhealthy" {
			return "health " + n.Health
		}
		return ""
	})
	since := time.Now()
	s.startDocker(t)
	s.answers(t, "two")
	waitFor(t, "all is well", 30*time.Second, func() string { return notCurrent(t.Context(), s.hub, 2, since) })
	if after := s.container(t); after.ID != before.ID {
		t.Error("another container was made")
	}
}

// DEC-4, GEN-10: with the last container goes all that the mesh had put where engines look, but its data.
func (s *service) gone(t *testing.T) {
	command(t, s.hub, 0, "module", "unassign", "container", "n1", "--push", "--wait")
	if out := run(t, s.n1, "docker", "ps", "-aq"); out != "" {
		t.Errorf("containers: %s", out)
	}
	if out, _, code, _ := s.n1.Run(t.Context(), "ls", "/etc/docker/certs.d"); code == 0 {
		t.Errorf("certs.d holds %q", out)
	}
	if got := run(t, s.n1, "cat", "/var/lib/mesh/modules/container/data/x"); got != "written" {
		t.Errorf("its data: %s", got)
	}
}
