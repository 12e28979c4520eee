package scenarios

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// probePackages are built on each host into a repository of its own. Mesh-probe needs another, and has a configuration file; mesh-user
// needs mesh-probe; mesh-before is on the machine before the mesh asks for it.
var probePackages = []struct{ name, needs string }{{"mesh-probe-needed", ""}, {"mesh-probe", "mesh-probe-needed"}, {"mesh-user", "mesh-probe"}, {"mesh-before", ""}}

const (
	repository  = "/opt/repository"
	probeConfig = "/etc/mesh-probe.conf"
)

// distribution is a host with one package manager and what a person would type there.
type distribution struct {
	host                 *netns.Host
	install, remove, has []string
	confAfter            string // what the configuration file is called once the package is removed
}

// DEC-4, DEC-13, MOD-2: a module's packages are installed by the name that the machine's own manager knows, with the real apt and the
// real dnf: shared by two instances, put back when somebody removes them, removed with what came with them when the last instance goes
// and never purged; what was there before stays, and so does what others have come to need.
func TestPackages(t *testing.T) {
	for _, program := range []string{"dpkg-deb", "dnf", "rpmbuild", "createrepo_c"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this needs apt and dnf with what builds packages for them: run `make packages` on Debian (%v)", err)
		}
	}
	bed := up(t, beds.Pair)
	equip(t, bed)
	hub, n1 := bed.Host("hub"), bed.Host("n1")
	apt := distribution{hub, []string{"apt-get", "-qy", "install"}, []string{"apt-get", "-qy", "remove"}, []string{"dpkg-query", "-W", "-f", "${db:Status-Status}"}, probeConfig}
	dnf := distribution{n1, []string{"dnf", "-qy", "install"}, []string{"rpm", "-e"}, []string{"rpm", "-q", "--qf", "installed"}, probeConfig + ".rpmsave"}
	debRepository(t, hub)
	rpmRepository(t, n1)
	both := []distribution{apt, dnf}
	command(t, hub, 0, founding(hub)...)
	token, err := beds.Token(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	command(t, n1, 0, "join", token, "--name", "n1")
	for module, names := range map[string][]string{"one": {"mesh-probe"}, "two": {"mesh-probe", "mesh-before"}, "three": {"no-such-package"}} {
		var resources []string
		for _, name := range names {
			resources = append(resources, fmt.Sprintf(`{"kind": "package", "name": %q, "names": {"apt": %[1]q, "dnf": %[1]q}}`, name))
		}
		text := fmt.Sprintf(`{"module": %q, "resources": [%s]}`, module, strings.Join(resources, ", "))
		if err := hub.Put(t.Context(), "/root/"+module+"/module.json", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		command(t, hub, 0, "module", "register", "/root/"+module)
	}
	change := func(verb, module string) {
		t.Helper()
		command(t, hub, 0, "module", verb, module, "hub", "--push", "--wait")
		command(t, hub, 0, "module", verb, module, "n1", "--push", "--wait")
	}
	want := func(d distribution, name string, there bool) {
		t.Helper()
		out, _, code, err := d.host.Run(t.Context(), append(d.has, name)...)
		if is := code == 0 && out == "installed"; err != nil || is != there {
			t.Errorf("%s on %s: installed %v, want %v (%q, %d, %v)", name, d.host.Name, is, there, out, code, err)
		}
	}

	run(t, n1, append(dnf.install, "mesh-before")...)
	run(t, hub, "dpkg", "-i", repository+"/mesh-before.deb")
	run(t, hub, "touch", "/var/lib/dpkg/updates/0001") // as a power cut in the midst of an installation leaves it
	begun := time.Now()
	change("assign", "one") // apt does not know of the repository yet
	t.Logf("installed on both in %s", time.Since(begun))
	change("assign", "two")
	for _, d := range both {
		if got := run(t, d.host, "mesh-probe"); got != "mesh-probe" {
			t.Errorf("mesh-probe on %s says %q", d.host.Name, got)
		}
		want(d, "mesh-probe-needed", true)
		run(t, d.host, "sh", "-c", "echo mine > "+probeConfig)
		// DEC-6: somebody removes it.
		run(t, d.host, append(d.remove, "mesh-probe")...)
		want(d, "mesh-probe", false)
		command(t, hub, 0, "check", d.host.Name)
		waitFor(t, "it is back on "+d.host.Name, 20*time.Second, func() string {
			if _, errs, code, err := d.host.Run(t.Context(), "mesh-probe"); code != 0 {
				return fmt.Sprintf("%v %s", err, errs)
			}
			return ""
		})
	}

	made := map[string]string{}
	for _, d := range both {
		made[d.host.Name] = run(t, d.host, "stat", "-c", "%i %z", "/usr/bin/mesh-probe")
	}
	change("unassign", "one")
	for _, d := range both { // the other instance has it
		if now := run(t, d.host, "stat", "-c", "%i %z", "/usr/bin/mesh-probe"); now != made[d.host.Name] {
			t.Errorf("mesh-probe on %s was %s, is %s", d.host.Name, made[d.host.Name], now)
		}
	}
	change("unassign", "two")
	for _, d := range both {
		want(d, "mesh-probe", false)
		want(d, "mesh-probe-needed", false)
		want(d, "mesh-before", true)
		if got := run(t, d.host, "cat", d.confAfter); got != "mine" {
			t.Errorf("configuration on %s after the removal: %q", d.host.Name, got)
		}
	}

	change("assign", "one")
	for _, d := range both {
		run(t, d.host, append(d.install, "mesh-user")...)
	}
	change("unassign", "one")
	for _, d := range both {
		want(d, "mesh-user", true)
		want(d, "mesh-probe", true)
	}

	for _, name := range []string{"hub", "n1"} {
		_, errs := command(t, hub, 1, "module", "assign", "three", name, "--push", "--wait")
		if !strings.Contains(errs, "install package no-such-package") || !strings.Contains(errs, "o-such-package") {
			t.Errorf("a package that is not to be had, on %s: %s", name, errs)
		}
	}
}

// debRepository makes a repository of packages for apt, and the only one of the host.
func debRepository(t *testing.T, host *netns.Host) {
	t.Helper()
	var index strings.Builder
	for _, p := range probePackages {
		control := fmt.Sprintf("Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: tests\nDescription: for tests\n", p.name)
		if p.needs != "" {
			control += "Depends: " + p.needs + "\n"
		}
		files := map[string]string{"DEBIAN/control": control, "usr/bin/" + p.name: "#!/bin/sh\necho " + p.name + "\n"}
		if p.name == "mesh-probe" {
			files["DEBIAN/conffiles"], files[strings.TrimPrefix(probeConfig, "/")] = probeConfig+"\n", "default\n"
		}
		for path, content := range files {
			mode := fs.FileMode(0o644)
			if strings.HasPrefix(path, "usr/bin/") {
				mode = 0o755
			}
			write(t, host, "/opt/build/"+p.name+"/"+path, content, mode)
		}
		run(t, host, "mkdir", "-p", repository)
		run(t, host, "dpkg-deb", "--build", "--root-owner-group", "-Znone", "/opt/build/"+p.name, repository+"/"+p.name+".deb")
		content, err := host.Get(t.Context(), repository+"/"+p.name+".deb")
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&index, "%sFilename: ./%s.deb\nSize: %d\nSHA256: %x\n\n", control, p.name, len(content), sha256.Sum256(content))
	}
	write(t, host, repository+"/Packages", index.String(), 0o644)
	run(t, host, "sh", "-c", "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
	write(t, host, "/etc/apt/sources.list", "deb [trusted=yes] file:"+repository+" ./\n", 0o644)
}

// rpmRepository makes a repository of packages for dnf, and takes apt away from the host.
func rpmRepository(t *testing.T, host *netns.Host) {
	t.Helper()
	for _, p := range probePackages {
		spec := "Name: " + p.name + "\nVersion: 1\nRelease: 1\nSummary: for tests\nLicense: none\nBuildArch: noarch\n"
		if p.needs != "" {
			spec += "Requires: " + p.needs + "\n"
		}
		spec += "%description\nFor tests.\n%install\nmkdir -p %{buildroot}/usr/bin %{buildroot}/etc\nprintf '#!/bin/sh\\necho " + p.name + "\\n' > %{buildroot}/usr/bin/" + p.name + "\n"
		files := "%files\n%attr(0755, root, root) /usr/bin/" + p.name + "\n"
		if p.name == "mesh-probe" {
			spec += "echo default > %{buildroot}" + probeConfig + "\n"
			files += "%config(noreplace) " + probeConfig + "\n"
		}
		write(t, host, "/opt/build/"+p.name+".spec", spec+files, 0o644)
		run(t, host, "rpmbuild", "-bb", "--quiet", "--define", "_topdir /opt/build/"+p.name, "--define", "_rpmdir "+repository, "/opt/build/"+p.name+".spec")
	}
	run(t, host, "createrepo_c", "-q", repository)
	write(t, host, "/etc/yum.repos.d/probe.repo", "[probe]\nname=probe\nbaseurl=file://"+repository+"\ngpgcheck=0\n", 0o644)
	run(t, host, "rm", "/usr/bin/apt-get")
}

func write(t *testing.T, host *netns.Host, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := host.Put(t.Context(), path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
