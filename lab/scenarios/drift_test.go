package scenarios

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/lab/beds"
)

// site is a module with one of each kind that can drift.
const site = `{
  "module": "site", "description": "A page, with all that can be around one",
  "privileged": [{"trust": "system", "reason": "other pages of the mesh are asked by programs of the machine"}],
  "certificates": {"web": {"names": ["site.internal"], "authority": true}},
  "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}},
  "build": {"artifacts": {"pages": {"kind": "files", "files": ["pages"]}}},
  "resources": [
    {"kind": "user", "name": "site"},
    {"kind": "directory", "path": "${dir}/data", "owner": "site"},
    {"kind": "directory", "path": "${dir}/etc", "class": "config", "owner": "site"},
    {"kind": "directory", "path": "${dir}/tmp", "class": "cache", "owner": "site"},
    {"kind": "file", "path": "${dir}/etc/conf", "owner": "site", "content": "pages in ${artifact:pages}\n"},
    {"kind": "file", "path": "${dir}/etc/more", "owner": "site", "content": "more\n"},
    {"kind": "trust", "name": "mesh"},
    {"kind": "process", "name": "web", "user": "site", "on-change": {"etc/conf": "none", "etc/more": "none"},
     "command": ["mesh", "hello", "--listen", "${node:address}:${port:http}", "--data", "${dir}/data"],
     "ready": {"http": "http://${node:address}:${port:http}/healthz", "within": "30s"}}
  ]
}`

// DEC-6, DEC-13, PKI-3, MOD-10: on a real machine everything that somebody changes of a module is seen, named and put right when an operator
// asks for a look; a lost key is made and certified anew; what is not the mesh's stays; and when the module leaves, all goes but its data,
// which a purge removes.
func TestDriftAndPurge(t *testing.T) {
	bed := up(t, beds.One)
	equip(t, bed)
	hub := bed.Host("hub")
	run(t, hub, "update-ca-certificates") // what the machine does by itself some day, so that only the mesh's part differs
	command(t, hub, 0, founding(hub)...)
	before := run(t, hub, "sha256sum", "/etc/passwd", "/etc/ssl/certs/ca-certificates.crt")
	folder := t.TempDir()
	for name, content := range map[string]string{"module.json": site, "pages/index": "welcome"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	copyTo(t, hub, folder, "/root/site")
	command(t, hub, 0, "module", "register", "/root/site")
	command(t, hub, 0, "module", "assign", "site", "hub", "--push", "--wait")

	const dir = "/var/lib/mesh/modules/site"
	trees := strings.Fields(run(t, hub, "find", "/var/lib/mesh/artifacts", "-mindepth", "1", "-maxdepth", "1", "-type", "d"))
	if len(trees) != 1 || run(t, hub, "cat", trees[0]+"/pages/index") != "welcome" {
		t.Fatalf("trees %q", trees)
	}
	trust := run(t, hub, "find", "/usr/local/share/ca-certificates", "-name", "mesh-*.crt")
	uid := run(t, hub, "id", "-u", "site")
	certificate := func() *x509.Certificate {
		t.Helper()
		block, _ := pem.Decode([]byte(run(t, hub, "cat", dir+"/certificates/web/cert.pem")))
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	first := certificate()
	if d := cmp.Diff([]string{"site.hub.internal", "site.internal"}, first.DNSNames); d != "" {
		t.Errorf("names of the certificate:\n%s", d)
	}

	run(t, hub, "install", "-m", "0666", "/dev/null", dir+"/etc/theirs")
	for _, change := range [][]string{
		{"chmod", "0666", dir + "/etc/conf"},
		{"rm", dir + "/etc/more"},
		{"chmod", "0777", dir + "/etc"},
		{"chown", "nobody", dir + "/data"},
		{"rmdir", dir + "/tmp"},
		{"userdel", "--force", "site"},
		{"cp", dir + "/certificates/web/ca.pem", dir + "/certificates/web/cert.pem"},
		{"cp", "/etc/hostname", trees[0] + "/pages/index"},
		{"rm", trust},
	} {
		run(t, hub, change...)
	}
	supervisor := the(t, hub, "supervisor of site", func(cmdline []string) bool {
		return slices.Contains(cmdline, "supervise") && strings.HasSuffix(cmdline[len(cmdline)-1], "/site.web")
	})
	if err := hub.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	command(t, hub, 0, "check")
	type drift struct {
		ID, What string
		Repaired bool
	}
	drifts := func() (all []drift, outcome string) {
		var s struct {
			Nodes []struct {
				Outcome string
				Drift   []drift
			}
		}
		if err := ask(t.Context(), hub, &s, "status"); err != nil || len(s.Nodes) != 1 {
			t.Fatal(err)
		}
		return s.Nodes[0].Drift, s.Nodes[0].Outcome
	}
	want := []drift{
		{"site/user/site", "gone", true},
		{"site/directory/data", "owner nobody, want site", true},
		{"site/directory/etc", "mode 0777, want 0750", true},
		{"site/directory/tmp", "gone", true},
		{"site/trust/mesh", "gone", true},
		{"site/certificate/web", "cert.pem: content", true},
		{"site/artifact/pages", `"pages/index": content`, true},
		{"site/file/etc/conf", "mode 0666, want 0640", true},
		{"site/file/etc/more", "gone", true},
		{"site/process/web", "no supervisor", true},
	}
	waitFor(t, "all drift is told and repaired", 30*time.Second, func() string {
		all, _ := drifts()
		return cmp.Diff(want, all)
	})
	if text, _ := command(t, hub, 0, "status"); strings.Count(text, "had drifted: ") != len(want) {
		t.Errorf("status:\n%s", text)
	}
	command(t, hub, 0, "status", "--wait")
	if got := run(t, hub, "cat", trees[0]+"/pages/index"); got != "welcome" {
		t.Errorf("the page is %q", got)
	}
	if now := run(t, hub, "id", "-u", "site"); now != uid {
		t.Errorf("the user's number is %s, was %s", now, uid)
	}
	if got := run(t, hub, "stat", "-c", "%a %U", dir+"/etc/theirs"); got != "666 root" {
		t.Errorf("what is not the mesh's: %s", got)
	}

	run(t, hub, "rm", dir+"/certificates/web/key.pem")
	command(t, hub, 0, "check")
	waitFor(t, "another key is certified", 30*time.Second, func() string {
		if _, outcome := drifts(); outcome != "clean" {
			return "outcome " + outcome
		}
		_, _, code, _ := hub.Run(t.Context(), "test", "-e", dir+"/certificates/web/cert.pem", "-a", "-e", dir+"/certificates/web/key.pem")
		if code != 0 || certificate().Equal(first) {
			return "there is none yet"
		}
		return ""
	})
	command(t, hub, 0, "status", "--wait")

	if _, errs := command(t, hub, 3, "module", "purge", "site@hub", "--yes"); !strings.Contains(errs, "assigned there") {
		t.Errorf("purged while in use: %s", errs)
	}
	command(t, hub, 0, "module", "unassign", "site", "hub", "--push", "--wait")
	text, _ := command(t, hub, 0, "status")
	if !strings.Contains(text, "data of site is kept in "+dir+": ") || !strings.Contains(text, ", kept for ") {
		t.Errorf("status:\n%s", text)
	}
	if _, errs := command(t, hub, 2, "module", "purge", "site@hub"); !strings.Contains(errs, dir) || !strings.Contains(errs, "--yes") {
		t.Errorf("asked: %s", errs)
	}
	if out, _ := command(t, hub, 0, "module", "purge", "site@hub", "--yes"); out != fmt.Sprintf("removed: %s on hub\n", dir) {
		t.Errorf("purged: %q", out)
	}
	if _, _, code, _ := hub.Run(t.Context(), "test", "-e", dir); code == 0 {
		t.Error("the data is still there")
	}
	if d := cmp.Diff(before, run(t, hub, "sha256sum", "/etc/passwd", "/etc/ssl/certs/ca-certificates.crt")); d != "" {
		t.Errorf("users and trust afterwards:\n%s", d)
	}
}
