package linux

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent"
	"github.com/novox/mesh/appliance/agent/linux/run"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/supervise"
	"github.com/novox/mesh/appliance/wire"
)

// node is a real agent on the real machine that looks all the time, with something of every kind declared, and no bus.
type node struct {
	*artifactStore
	mesh      ed25519.PrivateKey
	id        appliance.NodeID
	authority *pki.Authority
	resources []wire.Resource
	counter   uint64

	user, dir, tree string
	certificate     wire.CertificateSpec
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{artifactStore: newArtifactStore(t), id: appliance.NewNodeID(), authority: newAuthority(t), user: fmt.Sprintf("mt%dd", os.Getpid())}
	t.Cleanup(func() { exec.Command("userdel", n.user).Run(); exec.Command("groupdel", n.user).Run() })
	number := strconv.Itoa(61000 + os.Getpid()%1000) // of our own: others take the next one that is free
	for _, args := range [][]string{{"groupadd", "--gid", number, n.user}, {"useradd", "--system", "--uid", number, "--gid", number, n.user}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	_, n.mesh, _ = ed25519.GenerateKey(rand.Reader)
	n.dir = n.in.Module("hello")
	artifact := n.push(map[string]string{"run": "*#!/bin/sh\nexec sleep 1000\n", "words": "one two", "more": ""})
	n.tree = specOf(t, artifact).Path
	n.certificate = wire.CertificateSpec{Name: "web", Names: []string{"hello.internal"}, Owner: n.user, Authority: n.authority.Certificate.Raw, Folder: n.dir + "/certificates/web"}
	directory := func(name, class, owner string) wire.Resource {
		return resource(wire.Directory, name, wire.DirectorySpec{Path: filepath.Join(n.dir, name), Class: class, Owner: owner, Group: owner, Mode: "0755"})
	}
	n.resources = []wire.Resource{
		resource(wire.User, "hello", wire.UserSpec{Name: n.user}),
		directory(".", "config", "root"), directory("etc", "config", n.user), directory("data", "data", n.user), directory("rows", "data", n.user),
		resource(wire.Trust, "mesh", wire.TrustSpec{Name: "mesh", Authority: n.authority.Certificate.Raw}),
		resource(wire.Certificate, "web", n.certificate),
		artifact,
		resource(wire.File, "conf", wire.FileSpec{Path: n.at("etc/conf"), Owner: n.user, Group: n.user, Mode: "0640", Content: "secret words"}),
		resource(wire.Process, "web", wire.ProcessSpec{Name: "web", User: n.user, Command: []string{"./run"}, Directory: n.tree, Run: wire.Run{Restart: "always", Stop: "1s"}}),
	}
	return n
}

func (n *node) at(name string) string   { return filepath.Join(n.dir, name) }
func (n *node) cert(name string) string { return filepath.Join(n.certificate.Folder, name) }

// with runs the agent on a new declaration of everything while f goes on.
func (n *node) with(f func()) {
	n.t.Helper()
	for i, r := range n.resources {
		if r.Kind == wire.Certificate {
			n.resources[i].Spec, _ = json.Marshal(n.certificate)
		}
	}
	n.counter++
	body, err := wire.Encode(wire.Content{Version: wire.Version, Resources: n.resources})
	if err != nil {
		n.t.Fatal(err)
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindDeclaration, Version: wire.Version, Mesh: testMesh, From: string(testMesh), To: string(n.id),
		Epoch: 1, Counter: n.counter, Time: time.Now()}, body, n.mesh)
	if err != nil {
		n.t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(n.in.Node(), "declaration"), data, 0o600); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() {
		done <- agent.Run(ctx, agent.Config{
			Believes: agent.Believes{Mesh: testMesh, Node: n.id, Signing: n.mesh.Public().(ed25519.PublicKey)}, Identity: n.mesh, Dir: n.in.Node(), Machine: n.m,
			Check: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
			Connect: func(ctx context.Context, _ func()) (*bus.Link, error) { <-ctx.Done(); return nil, ctx.Err() },
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			n.t.Error(err)
		}
	}()
	f()
}

// account waits until the agent's last account of the present declaration is as wanted.
func (n *node) account(what string, missing func(map[string]wire.Outcome) string) {
	n.t.Helper()
	await(n.t, func() string {
		_, about, outcomes, err := agent.Records(n.in.Node())
		if err != nil || about.Number.Counter != n.counter {
			return fmt.Sprintf("%s: account of %s, %v", what, about.Number, err)
		}
		all := map[string]wire.Outcome{}
		for _, o := range outcomes {
			all[o.ID] = o
		}
		return missing(all)
	})
}

// bad gives an outcome that is not good; empty where all are.
func bad(all map[string]wire.Outcome) string {
	for _, o := range all {
		if o.Status != wire.Unchanged && o.Status != wire.Applied && o.Status != wire.Removed {
			return fmt.Sprintf("%s is %s: %s: %s", o.ID, o.Status, o.Step, o.Error)
		}
	}
	return ""
}

// clean waits until everything is as declared, by the account and on the machine.
func (n *node) clean(what string) {
	n.t.Helper()
	n.account(what, bad)
	for _, r := range n.resources {
		if o := observe(n.t, n.m, r); !o.Matches {
			n.t.Errorf("%s: %s is told to be well, and %s", what, r.ID, o.Differs)
		}
	}
}

// sign has the mesh certify the key that the node has, and the node hear it.
func (n *node) sign() {
	n.t.Helper()
	r := n.resources[slices.IndexFunc(n.resources, func(r wire.Resource) bool { return r.Kind == wire.Certificate })]
	der, err := n.m.Request(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	key, err := pki.ParseRequest(der)
	if err != nil {
		n.t.Fatal(err)
	}
	if n.certificate.Certificate, err = n.authority.Issue(pki.Request{Public: key, Names: n.certificate.Names, Usage: pki.Server, Now: time.Now()}); err != nil {
		n.t.Fatal(err)
	}
}

// drifts sees that a change is seen, named and put right.
func (n *node) drifts(name, id string, change func() error, drift string) {
	n.t.Helper()
	n.with(func() {
		n.clean("before " + name)
		if err := change(); err != nil {
			n.t.Fatalf("%s: %v", name, err)
		}
		n.account(name, func(all map[string]wire.Outcome) string {
			if o := all[id]; o.Drift == "" || !strings.Contains(o.Drift, drift) {
				return fmt.Sprintf("%s: drift of %s is %q, want %q", name, id, o.Drift, drift)
			}
			return bad(all)
		})
		n.clean(name)
	})
}

// DEC-6, with the real package manager.
func TestPackageDrift(t *testing.T) {
	n := newNode(t)
	if os.Getenv("MESH_TEST_PACKAGES") == "" {
		t.Skip("installs and removes the package hello: set MESH_TEST_PACKAGES=1, with a mirror in reach")
	}
	r := resource(wire.Package, "hello", wire.PackageSpec{Names: map[string]string{"apt": "hello", "dnf": "hello", "apk": "hello"}})
	t.Cleanup(func() { effector(n.m, r).Undo(context.Background(), r, nil) })
	n.resources = []wire.Resource{r}
	n.drifts("package removed", r.ID, func() error { _, err := effector(n.m, r).Undo(t.Context(), r, nil); return err }, "gone")
}

// DEC-6: whatever somebody changes of what is declared is seen, named and put right, one by one, by a real agent on a real machine; what is
// not the mesh's stays as it is, beside what is repaired.
func TestDrift(t *testing.T) {
	machine(t) // or skip
	if underSystemd() {
		t.Skip("systemd is PID 1 here: run the tests in a container without it")
	}
	store := trustStores[0]
	if _, err := run.Find(store.update[0]); err != nil {
		t.Skip("changes a copy of what this machine trusts: install ca-certificates")
	}
	if !trustApart(t, store) {
		return
	}
	n := newNode(t)
	t.Cleanup(func() { n.m.Processes.Undo(context.Background(), n.resources[9], nil) })
	n.with(func() {
		n.account("the first", func(all map[string]wire.Outcome) string {
			if o := all["hello/certificate/web"]; o.Status != wire.Waiting {
				return fmt.Sprintf("the certificate is %s: %s", o.Status, o.Error)
			}
			return ""
		})
	})
	n.sign()
	n.with(func() { n.clean("signed") })

	theirs := []string{n.at("theirs"), n.at("data/theirs"), n.cert("theirs"), filepath.Join(n.in.Artifacts(), "theirs"), filepath.Join(n.in.Dir, "modules", "theirs"), store.folder + "/theirs.crt"}
	for _, path := range theirs {
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	foreign := func() (all []string) {
		for _, path := range theirs {
			all = append(all, path+" "+state(path))
		}
		return all
	}
	before := foreign()

	process := n.in.ProcessDir("hello", "web")
	type running struct{ Supervisor, Child struct{ PID int } }
	kill := func(which func(running) []int) func() error {
		return func() error {
			var r running
			text, err := os.ReadFile(filepath.Join(process, "state.json"))
			err = errors.Join(err, json.Unmarshal(text, &r))
			for _, pid := range which(r) {
				err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
			}
			return err
		}
	}
	write := func(path, content string) func() error {
		return func() error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	mode := func(path string, mode uint32) func() error { return func() error { return syscall.Chmod(path, mode) } }
	owner := func(path string, uid, gid int) func() error { return func() error { return os.Chown(path, uid, gid) } }
	gone := func(path string) func() error { return func() error { return os.RemoveAll(path) } }
	id := func(kind wire.ResourceKind, name string) string { return "hello/" + string(kind) + "/" + name }
	file, etc, data := id(wire.File, "conf"), id(wire.Directory, "etc"), id(wire.Directory, "data")
	tree, cert, web, trust := id(wire.Artifact, "tree"), id(wire.Certificate, "web"), id(wire.Process, "web"), id(wire.Trust, "mesh")
	other, _ := n.authority.Issue(pki.Request{Public: &otherKey(t).PublicKey, Names: n.certificate.Names, Usage: pki.Server, Now: time.Now()})
	trustFile := trusted{testMesh}.file(store)
	uid, _ := userID(n.user)

	kinds := []struct {
		name, id string
		change   func() error
		drift    string
	}{
		{"file edited", file, write(n.at("etc/conf"), "secret wordz"), "content"},
		{"file emptied", file, write(n.at("etc/conf"), ""), "content"},
		{"file mode", file, mode(n.at("etc/conf"), 0o666), "mode 0666, want 0640"},
		{"file set-uid", file, mode(n.at("etc/conf"), 0o4640), "mode 4640, want 0640"},
		{"file owner", file, owner(n.at("etc/conf"), 0, -1), "owner root, want " + n.user},
		{"file group", file, owner(n.at("etc/conf"), -1, 0), "group root, want " + n.user},
		{"file deleted", file, gone(n.at("etc/conf")), "gone"},
		{"file replaced", file, func() error { return os.Rename(n.at("theirs"), n.at("etc/conf")) }, "owner root, want " + n.user},
		{"folder mode", etc, mode(n.at("etc"), 0o777), "mode 0777, want 0755"},
		{"folder owner", etc, owner(n.at("etc"), 0, -1), "owner root, want " + n.user},
		{"folder group", etc, owner(n.at("etc"), -1, 0), "group root, want " + n.user},
		{"folder deleted", etc, gone(n.at("etc")), "gone"},
		{"data folder mode", data, mode(n.at("data"), 0o700), "mode 0700, want 0755"},
		{"data folder owner", data, owner(n.at("data"), 65534, -1), "owner nobody, want " + n.user},
		{"data folder deleted", id(wire.Directory, "rows"), gone(n.at("rows")), "gone"},
		{"user removed", id(wire.User, "hello"), func() error { return exec.Command("userdel", "--force", n.user).Run() }, "gone"},
		{"artifact edited", tree, write(filepath.Join(n.tree, "words"), "two one"), `"words": content`},
		{"artifact's file deleted", tree, gone(filepath.Join(n.tree, "more")), `"more" is gone`},
		{"artifact's program mode", tree, mode(filepath.Join(n.tree, "run"), 0o777), `"run": mode 0777, want 0755`},
		{"artifact added to", tree, write(filepath.Join(n.tree, "less"), ""), `"less" is not of it`},
		{"artifact removed", tree, gone(n.tree), "gone"},
		{"artifact's list lost", tree, gone(n.tree + ".list"), "not known to be whole"},
		{"supervisor killed", web, kill(func(r running) []int { return []int{r.Supervisor.PID} }), "no supervisor"},
		{"process and supervisor killed", web, kill(func(r running) []int { return []int{r.Supervisor.PID, r.Child.PID} }), "no supervisor"},
		{"process stopped", web, func() error { return supervise.Stop(t.Context(), process) }, "stopped, want running"},
		{"process's definition edited", web, func() error {
			spec, _ := supervise.Described(process)
			spec.Environment["A"] = "b"
			text, _ := json.Marshal(spec)
			return os.WriteFile(filepath.Join(process, "spec.json"), text, 0o600)
		}, "definition"},
		{"certificate replaced", cert, write(n.cert("cert.pem"), string(pki.EncodePEM(other))), "cert.pem: content"},
		{"certificate deleted", cert, gone(n.cert("cert.pem")), "cert.pem is gone"},
		{"authority edited", cert, write(n.cert("ca.pem"), "x"), "ca.pem: content"},
		{"key readable", cert, mode(n.cert("key.pem"), 0o644), "key.pem: mode 0644, want 0600"},
		{"key's owner", cert, owner(n.cert("key.pem"), 0, -1), "key.pem: owner root, want " + n.user},
		{"certificate's folder opened", cert, mode(n.certificate.Folder, 0o755), "mode 0755, want 0750"},
		{"trust removed", trust, gone(trustFile), "gone"},
		{"trust replaced", trust, write(trustFile, string(pki.EncodePEM(other))), ""},
		{"trust left out of the bundle", trust, func() error {
			return errors.Join(os.Rename(trustFile, trustFile+".x"), store.make(t.Context()), os.Rename(trustFile+".x", trustFile))
		}, ""},
	}
	for _, k := range kinds {
		n.drifts(k.name, k.id, k.change, k.drift)
	}
	t.Logf("%d kinds", len(kinds)+2)
	if again, _ := userID(n.user); again != uid {
		t.Errorf("the user's number is %d, was %d", again, uid)
	}

	// A key that is gone or another is told as drift until the mesh has signed its successor.
	for name, change := range map[string]func() error{"key deleted": gone(n.cert("key.pem")), "key replaced": write(n.cert("key.pem"), otherKeyText(t))} {
		n.with(func() {
			n.clean("before " + name)
			if err := change(); err != nil {
				t.Fatal(err)
			}
			n.account(name, func(all map[string]wire.Outcome) string {
				if o := all[cert]; o.Status != wire.Waiting || !strings.HasPrefix(o.Drift, "key.pem") {
					return fmt.Sprintf("%s: %+v", name, o)
				}
				return ""
			})
		})
		n.sign()
		n.with(func() { n.clean(name) })
	}
	if d := cmp.Diff(before[1:], foreign()[1:]); d != "" { // the first one was moved over a file
		t.Error("what is not the mesh's:\n" + d)
	}
}

func otherKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func otherKeyText(t *testing.T) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(otherKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// DEC-13, MOD-10: on a real machine what two instances name is there until the last of them leaves; the user keeps its number for as long as
// there is data of its, and has it when an instance comes back.
func TestSharedOnTheMachine(t *testing.T) {
	n := newNode(t)
	name := n.user + "s"
	t.Cleanup(func() { exec.Command("userdel", name).Run(); exec.Command("groupdel", name).Run() })
	cache, data := filepath.Join(n.in.Dir, "cache"), filepath.Join(n.in.Dir, "rows")
	of := func(instance appliance.InstanceName) (all []wire.Resource) {
		directory := func(path, class string) wire.Resource {
			return resource(wire.Directory, path, wire.DirectorySpec{Path: path, Class: class, Owner: name, Group: name, Mode: "0750"})
		}
		for _, r := range []wire.Resource{resource(wire.User, "shared", wire.UserSpec{Name: name}), directory(cache, "cache"), directory(data, "data")} {
			r.ID, r.Instance = strings.Replace(r.ID, "hello", string(instance), 1), instance
			all = append(all, r)
		}
		return all
	}
	uid := -1
	for _, step := range []struct {
		what      string
		resources []wire.Resource
		cache     bool
	}{
		{"one", of("a"), true},
		{"both", append(of("a"), of("b")...), true},
		{"the other", of("b"), true},
		{"none", nil, false},
		{"the first again", of("a"), false},
	} {
		n.resources = step.resources
		n.with(func() {
			n.account(step.what, func(all map[string]wire.Outcome) string {
				for _, o := range all {
					if o.Status == wire.Failed || o.Status == wire.Refused {
						return fmt.Sprintf("%s: %s", o.ID, o.Error)
					}
				}
				return ""
			})
		})
		now, err := userID(name)
		if uid < 0 {
			uid = now
		}
		if err != nil || now != uid {
			t.Errorf("%s: uid %d, was %d, %v", step.what, now, uid, err)
		}
		if step.what == "one" {
			os.WriteFile(cache+"/warm", nil, 0o600)
		}
		if _, err := os.Lstat(cache + "/warm"); (err == nil) != step.cache {
			t.Errorf("%s: what is in the cache: %v", step.what, err)
		}
		if _, err := os.Lstat(data); err != nil {
			t.Errorf("%s: the data: %v", step.what, err)
		}
	}
}
