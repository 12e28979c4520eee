package scenarios

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// ten are modules of as many shapes: together they touch whatever a module can touch without an engine.
var ten = map[string]string{
	"page": `"ports": {"http": {"port": 8080, "from": "mesh", "assign": true}}, "resources": [{"kind": "user", "name": "page"},
		{"kind": "directory", "path": "${dir}/data", "class": "data", "owner": "page", "mode": "0750"},
		{"kind": "process", "name": "web", "user": "page", "command": ["mesh", "hello", "--listen", "${node:address}:${port:http}", "--data", "${dir}/data"],
		"ready": {"http": "http://${node:address}:${port:http}/healthz", "within": "30s"}}]`,
	"outside": `"privileged": [{"path": "/etc/lab", "reason": "for tests of leaving"}, {"path": "/etc/lab-old", "reason": "for tests of leaving"}], "resources": [
		{"kind": "directory", "path": "/etc/lab", "class": "config"}, {"kind": "directory", "path": "/etc/lab/conf.d", "class": "config", "mode": "0700"},
		{"kind": "file", "path": "/etc/lab/conf.d/a.conf", "mode": "0600", "content": "a"}, {"kind": "file", "path": "/etc/lab-old", "content": "ours"}]`,
	"before": `"privileged": [{"path": "/srv/before", "reason": "for tests of leaving"}], "resources": [{"kind": "user", "name": "labold"},
		{"kind": "package", "name": "base", "names": {"apt": "coreutils"}}, {"kind": "directory", "path": "/srv/before", "class": "config", "owner": "labold", "mode": "0777"}]`,
	"shared-a": shared, "shared-b": shared,
	"archive": `"privileged": [{"path": "/srv/archive", "reason": "for tests of leaving"}], "resources": [{"kind": "user", "name": "archive"},
		{"kind": "directory", "path": "/srv/archive", "class": "data", "owner": "archive", "mode": "0700"}, {"kind": "directory", "path": "${dir}/more", "class": "data", "owner": "archive"}]`,
	"caching": `"resources": [{"kind": "user", "name": "caching"}, {"kind": "directory", "path": "${dir}/cache", "class": "cache", "owner": "caching"},
		{"kind": "process", "name": "fill", "user": "caching", "command": ["sleep", "9997"]}]`,
	"gadget": `"resources": [{"kind": "package", "name": "tool", "names": {"apt": "lab-tool"}}]`,
	"needed": `"resources": [{"kind": "package", "name": "needed", "names": {"apt": "lab-needed"}}]`,
	"rooted": `"privileged": [{"user": "root", "reason": "for tests of leaving"}], "resources": [{"kind": "process", "name": "a", "user": "root", "command": ["sleep", "9999"]},
		{"kind": "process", "name": "b", "user": "root", "command": ["sleep", "9998"]}]`,
	"secure": `"privileged": [{"trust": "system", "reason": "for tests of leaving"}], "certificates": {"web": {"names": ["secure.internal"], "authority": true, "owner": "secure"}},
		"resources": [{"kind": "user", "name": "secure"}, {"kind": "trust", "name": "mesh"}]`,
}

const shared = `"privileged": [{"path": "/srv/shared", "reason": "for tests of leaving"}], "resources": [{"kind": "user", "name": "labshared"},
	{"kind": "directory", "path": "/srv/shared", "class": "config", "owner": "labshared", "mode": "0750"}]`

// packages are in an archive on the host itself: lab-tool brings lab-library along and has a configuration, lab-other is the machine's own
// and comes to need lab-needed.
const packages = `set -e
mkdir -p /opt/archive && cd /opt/archive
make() { # NAME DEPENDS
	mkdir -p $1/DEBIAN $1/usr/share/$1 && echo $1 >$1/usr/share/$1/file
	printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: lab <lab@example.org>\nDescription: for tests\n' $1 >$1/DEBIAN/control
	if [ -n "$2" ]; then echo "Depends: $2" >>$1/DEBIAN/control; fi
	if [ $1 = lab-tool ]; then mkdir $1/etc && echo a >$1/etc/lab-tool.conf && echo /etc/lab-tool.conf >$1/DEBIAN/conffiles; fi
	dpkg-deb --build $1 $1.deb >/dev/null
	{ cat $1/DEBIAN/control; echo "Filename: ./$1.deb"; echo "Size: $(stat -c %s $1.deb)"; echo "SHA256: $(sha256sum $1.deb | cut -d' ' -f1)"; echo; } >>Packages
}
make lab-tool lab-library; make lab-library; make lab-needed; make lab-other lab-needed
rm -f /etc/apt/sources.list.d/* && echo 'deb [trusted=yes] file:/opt/archive ./' >/etc/apt/sources.list
apt-get update -qq 2>/dev/null
rm -f /etc/ca-certificates/update.d/* # what they do takes its time, and is nobody's here
{ dpkg --configure -a && update-ca-certificates; } >/dev/null 2>&1
rm -rf /tmp/*
echo theirs >/etc/lab-old && chmod 0640 /etc/lab-old && mkdir -m 0700 /srv/before && useradd --system --home-dir /nonexistent labold
printf '127.0.0.1 localhost\n10.9.9.9 printer' >/etc/hosts`

// put lays the ten on the hub and has a node run them.
func putTen(t *testing.T, hub *netns.Host, node string) {
	t.Helper()
	for name, rest := range ten {
		text := fmt.Sprintf(`{"module": %q, "description": "for tests", %s}`, name, rest)
		if err := hub.Put(t.Context(), "/root/"+name+"/module.json", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		command(t, hub, 0, "module", "register", "/root/"+name)
		command(t, hub, 0, "module", "assign", name, node)
	}
	command(t, hub, 0, "push", "--wait")
}

// GEN-10, NODE-4, NODE-8, MOD-10, PKI-6, SAFE-5: whatever was made on a machine is undone when it leaves, also with kill -9 in between; what
// stays is told. A removed and a replaced machine are told so when they come back; a node's place is taken by another machine.
func TestLeaving(t *testing.T) {
	bed := up(t, beds.Three)
	equip(t, bed)
	l := &leavers{hub: bed.Host("hub"), n1: bed.Host("n1"), n2: bed.Host("n2"), before: map[string]whole{}}
	for _, host := range bed.Hosts() {
		greeter(t, host)
		run(t, host, "sh", "-c", packages)
		l.before[host.Name] = snapshot(t, host)
	}
	command(t, l.hub, 0, "genesis", "--name", "lab", "--endpoint", l.hub.Address.String(), "--yes")
	for _, part := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"ten modules and away", l.tenAndAway},
		{"replaced", l.replaced},
		{"removed", l.removed},
		{"hub away and back", l.hubAway},
	} {
		begun := time.Now()
		if !t.Run(part.name, part.do) {
			t.FailNow()
		}
		t.Logf("%s: %.1f s", part.name, time.Since(begun).Seconds())
	}
}

type leavers struct {
	hub, n1, n2 *netns.Host
	before      map[string]whole
}

func (l *leavers) join(t *testing.T, host *netns.Host, name string) {
	t.Helper()
	_, token := joinToken(t, l.hub)
	command(t, host, 0, "join", token, "--name", name)
}

// cutLeave gives the command again and again, each time with kill -9 once it has told some more lines, until it comes to its end.
func cutLeave(t *testing.T, host *netns.Host, step int, args ...string) (out string, kills int) {
	t.Helper()
	for n := 1; ; n += step {
		cmd := host.Command(t.Context(), append([]string{beds.Binary}, args...)...)
		said, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		var answer strings.Builder
		cmd.Stdout = &answer
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var all []string
		left, killed := n, false
		for lines := bufio.NewScanner(said); lines.Scan(); {
			all = append(all, lines.Text())
			if strings.HasPrefix(lines.Text(), "begin") || left < n { // what comes before is only shown
				if left--; left == 0 {
					crash(cmd)
					killed = true
					break
				}
			}
		}
		if killed {
			kills++
			continue
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("mesh %s on %s: %v\n%s", strings.Join(args, " "), host.Name, err, strings.Join(all, "\n"))
		}
		return answer.String(), kills
	}
}

// NODE-8, GEN-10, DEC-4, DEC-13
func (l *leavers) tenAndAway(t *testing.T) {
	l.join(t, l.n1, "n1")
	putTen(t, l.hub, "n1")
	run(t, l.n1, "apt-get", "-qq", "install", "lab-other")
	run(t, l.n1, "touch", "/var/lib/mesh/modules/caching/cache/a", "/srv/shared/b", "/srv/archive/c", "/etc/lab/conf.d/d")
	run(t, l.n1, "sh", "-c", "echo mine >/srv/mine && chown caching /srv/mine")
	if _, errs := command(t, l.n1, 2, "leave"); !strings.Contains(errs, "give --yes") || !strings.Contains(errs, "the data of ") || !isNode(l.n1) {
		t.Errorf("without anybody to ask: %s", errs)
	}
	if _, errs := command(t, l.hub, 3, "leave", "--yes"); !strings.Contains(errs, "mesh uninstall") {
		t.Errorf("leave on the hub: %s", errs)
	}

	out, kills := cutLeave(t, l.n1, 3, "leave", "--yes")
	t.Logf("killed %d times; then:\n%s", kills, out)
	if kills < 5 {
		t.Errorf("killed %d times", kills)
	}
	for _, want := range []string{"kept: folder /srv/archive: data", "kept: folder /var/lib/mesh/modules/page/data: data", "kept: user page: it owns data that stay",
		"kept: user caching: /srv/mine belongs to it", "kept: package lab-needed: other packages need it: lab-other"} {
		if !strings.Contains(out, want+"\n") {
			t.Errorf("not told: %q", want)
		}
	}
	kept := []string{"/srv/archive", "/srv/mine", "getent passwd: page:", "getent group: page:", "getent passwd: archive:", "getent group: archive:", "getent passwd: caching:", "getent group: caching:",
		"/etc/passwd ", "/etc/group ", "/etc/shadow ", "/etc/gshadow ", "lab-needed", "lab-other", "lab-tool 1 config-files", "/etc/lab-tool.conf"}
	sameHost(t, "after leave", l.n1, l.before["n1"], kept...)
	waitFor(t, "the mesh has removed it", 5*time.Second, func() string {
		if nodes := statusOf(t, l.hub).Nodes; len(nodes) != 1 {
			return fmt.Sprint(nodes)
		}
		return ""
	})
	if got := run(t, l.n1, "find", "/var/lib/mesh", "-type", "f"); !slices.Equal(sortedLines(got), []string{"/var/lib/mesh/leaving.json", "/var/lib/mesh/node/applied.json", "/var/lib/mesh/node/data.json"}) {
		t.Errorf("in the state folder:\n%s", got)
	}
	again, _ := command(t, l.n1, 0, "leave", "--yes")
	if !strings.Contains(again, "kept: folder /srv/archive: data\n") {
		t.Errorf("once more: %s", again)
	}

	run(t, l.n1, "rm", "/srv/mine")
	run(t, l.n1, "apt-get", "-qq", "purge", "lab-other", "lab-tool")
	purged, _ := command(t, l.n1, 0, "leave", "--purge", "--yes")
	if strings.Contains(purged, "kept:") {
		t.Errorf("after the purge: %s", purged)
	}
	sameHost(t, "after the purge", l.n1, l.before["n1"])
	if got := run(t, l.n1, "sh", "-c", "ls -d /var/lib/mesh || true"); got != "" {
		t.Errorf("the state folder is there: %s", got)
	}
	if nothing, _ := command(t, l.n1, 0, "leave", "--yes"); !strings.Contains(nothing, "in no mesh") {
		t.Errorf("where nothing is left: %s", nothing)
	}
}

// NODE-4: another machine takes a node's place, with its modules; the one before, when it comes back, stops and keeps its data.
func (l *leavers) replaced(t *testing.T) {
	l.join(t, l.n1, "n1")
	command(t, l.hub, 0, "module", "register", "hello")
	command(t, l.hub, 0, "module", "assign", "hello", "n1", "--push", "--wait")
	before := statusOf(t, l.hub).node("n1")
	_, token := joinToken(t, l.hub)
	if _, errs := command(t, l.n2, 3, "join", token, "--name", "n1"); !strings.Contains(errs, "mesh node replace n1") {
		t.Errorf("a second n1: %s", errs)
	}
	command(t, l.n1, 0, "stop") // its modules go on
	var made struct{ Token string }
	if err := ask(t.Context(), l.hub, &made, "node", "replace", "n1"); err != nil {
		t.Fatal(err)
	}
	out, _ := command(t, l.n2, 0, "join", made.Token)
	if !strings.Contains(out, "This machine is node n1 of mesh lab") {
		t.Errorf("join in its place: %s", out)
	}
	since := time.Now()
	waitFor(t, "the new n1 is current", 20*time.Second, func() string { return notCurrent(t.Context(), l.hub, 2, since) })
	if after := statusOf(t, l.hub).node("n1"); after.Declared != before.Declared {
		t.Errorf("it was declared %s, is %s", before.Declared, after.Declared)
	}
	the(t, l.n2, "hello", isHello(""))
	the(t, l.n1, "hello", isHello("")) // it knows nothing
	command(t, l.n1, 0, "start")
	l.told(t, l.n1)
	the(t, l.n2, "hello", isHello(""))
	if n := statusOf(t, l.hub).node("n1"); !n.Current || n.Outcome != "clean" {
		t.Errorf("the new one is concerned: %+v", n)
	}
	command(t, l.n1, 0, "leave", "--purge", "--yes")
	sameHost(t, "replaced and left", l.n1, l.before["n1"])
}

// told waits until a machine has heard that it is a node no more, and looks that it has stopped and says so.
func (l *leavers) told(t *testing.T, host *netns.Host) {
	t.Helper()
	waitFor(t, host.Name+" hears that it is none", 60*time.Second, func() string {
		if _, err := host.Get(t.Context(), "/var/lib/mesh/node/removed.json"); err != nil {
			return err.Error()
		}
		if pids := host.Pids(isHello("")); len(pids) > 0 {
			return fmt.Sprintf("hello still runs: %v", pids)
		}
		if links := run(t, host, "ip", "-o", "link"); strings.Contains(links, "mesh-") {
			return links
		}
		if hosts := run(t, host, "cat", "/etc/hosts"); hosts != "127.0.0.1 localhost\n10.9.9.9 printer" {
			return fmt.Sprintf("hosts: %q", hosts)
		}
		return ""
	})
	run(t, host, "test", "-d", "/var/lib/mesh/modules/hello/data")
	for _, args := range [][]string{{"status"}, {"start"}, {"join", "mesh1.x"}} {
		_, errs, code, err := host.Run(t.Context(), append([]string{beds.Binary}, args...)...)
		if args[0] == "join" && strings.Contains(errs, "read token") {
			continue
		}
		if code != 3 || err != nil || !strings.Contains(errs, "mesh lab has removed node") || !strings.Contains(errs, "next:  mesh leave") {
			t.Errorf("mesh %s: exit code %d, %v, %s", args[0], code, err, errs)
		}
	}
}

// NODE-8, PKI-6: a removed node's certificate is refused, also after a restart of the hub; its machine hears of it when it is back.
func (l *leavers) removed(t *testing.T) {
	for _, part := range []string{"broker", "downloads", "artifacts"} {
		if why := l.shown(t, l.n2, part); why != "" {
			t.Errorf("before: %s: %s", part, why)
		}
	}
	command(t, l.n2, 0, "stop")
	if _, errs := command(t, l.hub, 2, "node", "remove", "n1"); !strings.Contains(errs, "It runs: hello") {
		t.Errorf("without anybody to ask: %s", errs)
	}
	if _, errs := command(t, l.hub, 3, "node", "remove", "hub", "--yes"); !strings.Contains(errs, "mesh uninstall") {
		t.Errorf("the hub: %s", errs)
	}
	out, _ := command(t, l.hub, 0, "node", "remove", "n1", "--yes")
	if !strings.Contains(out, "ran there: hello, mesh-network\n") {
		t.Errorf("node remove: %s", out)
	}
	kill(t, l.hub, "serve") // what is revoked is so from its first moment
	for _, part := range []string{"broker", "downloads", "artifacts"} {
		waitFor(t, part+" refuses its certificate", 20*time.Second, func() string {
			if why := l.shown(t, l.n2, part); !strings.Contains(why, "bad certificate") {
				return fmt.Sprintf("it says %q", why)
			}
			return ""
		})
	}
	waitFor(t, "the hub is up", 30*time.Second, func() string { // to hear the first that it says
		if _, errs, code, err := l.hub.Run(t.Context(), beds.Binary, "status"); code != 0 {
			return fmt.Sprint(errs, err)
		}
		return ""
	})
	command(t, l.n2, 0, "start")
	l.told(t, l.n2)
	if err := l.n2.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	listen(t, l.n2)
	if _, errs := command(t, l.n2, 3, "start"); !strings.Contains(errs, "has removed node n1") {
		t.Errorf("start: %s", errs)
	}
	out, _ = command(t, l.n2, 0, "leave", "--yes")
	if !strings.Contains(out, "kept: folder /var/lib/mesh/modules/hello/data: data\n") || strings.Contains(out, "could not be told") {
		t.Errorf("leave: %s", out)
	}
	// Data of the first time are taken up in the next mesh.
	l.join(t, l.n2, "n2")
	command(t, l.hub, 0, "module", "assign", "hello", "n2", "--push", "--wait")
	if err := l.hub.Unplug(); err != nil {
		t.Fatal(err)
	}
	out, _ = command(t, l.n2, 0, "leave", "--purge", "--yes")
	if !strings.Contains(out, "next: mesh node remove n2   (on the hub)\n") {
		t.Errorf("leave without a hub: %s", out)
	}
	sameHost(t, "removed, joined again and left", l.n2, l.before["n2"])
	if err := l.hub.Plug(); err != nil {
		t.Fatal(err)
	}
	command(t, l.hub, 0, "node", "remove", "n2", "--yes")
}

// shown says why a server of the hub refuses a host's node certificate.
func (l *leavers) shown(t *testing.T, host *netns.Host, part string) string {
	t.Helper()
	_, errs, code, err := host.Run(t.Context(), probePath, probeCommand, "shown", part, l.hub.Address.String(), "/var/lib/mesh/node")
	if err != nil {
		t.Fatal(err)
	}
	if code == 0 {
		return ""
	}
	return strings.TrimSpace(errs)
}

// shown shows a node's certificate to a server of the hub.
func shown(part, address, folder string) error {
	keys, err := identity.LoadNode(folder + "/keys")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(folder + "/tls.crt")
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	own := tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: keys.TLS}
	port := map[string]string{"broker": "4222", "downloads": "4280", "artifacts": "4281"}[part]
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, port), 2*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if part == "broker" { // it begins, and then waits for us
		for one := []byte{0}; one[0] != '\n'; {
			if _, err := conn.Read(one); err != nil {
				return err
			}
		}
	}
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}})
	if err := client.Handshake(); err != nil {
		return err
	}
	if part != "broker" {
		if _, err := io.WriteString(client, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
	} else if err := client.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return err
	}
	_, err = client.Read(make([]byte, 1))
	if part == "broker" && errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// GEN-10, GEN-3, SAFE-5: on the hub everything goes that genesis made, also with kill -9 in between; data and the keys of the mesh stay, and
// genesis makes the same mesh of them again. Purged, the machine is what it was.
func (l *leavers) hubAway(t *testing.T) {
	l.join(t, l.n1, "n1")
	before := l.made(t)
	if _, errs := command(t, l.hub, 2, "uninstall"); !strings.Contains(errs, "these nodes are on their own") || !strings.Contains(errs, "n1") {
		t.Errorf("without anybody to ask: %s", errs)
	}
	out, kills := cutLeave(t, l.hub, 2, "uninstall", "--yes")
	t.Logf("killed %d times; then:\n%s", kills, out)
	for _, want := range []string{"kept: folder /var/lib/mesh/modules/mesh-store/store: data", "kept: folder /var/lib/mesh/hub: the keys of the mesh", "kept: user mesh: it owns data that stay"} {
		if !strings.Contains(out, want) {
			t.Errorf("not told: %q", want)
		}
	}
	kept := []string{"getent passwd: mesh:", "getent group: mesh:", "/etc/passwd ", "/etc/group ", "/etc/shadow ", "/etc/gshadow "}
	sameHost(t, "after uninstall", l.hub, l.before["hub"], append(kept, "/root ", "/root/")...)

	command(t, l.hub, 0, "genesis", "--name", "lab", "--endpoint", l.hub.Address.String(), "--yes")
	same(t, before, l.made(t))
	waitFor(t, "hub and n1 are as they were", 60*time.Second, func() string { return notCurrent(t.Context(), l.hub, 2, time.Time{}) })

	out, _ = command(t, l.n1, 0, "uninstall", "--purge", "--yes") // on a node that is a leave
	if strings.Contains(out, "kept:") || strings.Contains(out, "could not") {
		t.Errorf("uninstall on a node: %s", out)
	}
	sameHost(t, "uninstalled", l.n1, l.before["n1"])
	command(t, l.hub, 0, "uninstall", "--yes")
	out, _ = cutLeave(t, l.hub, 3, "uninstall", "--purge", "--yes")
	if strings.Contains(out, "kept:") {
		t.Errorf("purged: %s", out)
	}
	sameHost(t, "after the purge", l.hub, l.before["hub"], "/root ", "/root/")
	if got := run(t, l.hub, "sh", "-c", "ls -d /var/lib/mesh || true"); got != "" {
		t.Errorf("the state folder is there: %s", got)
	}
}

func (l *leavers) made(t *testing.T) map[string]string { return made(t, l.hub) }
