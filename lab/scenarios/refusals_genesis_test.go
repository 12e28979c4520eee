package scenarios

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// GEN-3, GEN-4, GEN-6, NET-2, SAFE-1, OP-1: whatever stands against genesis is named, with the way out, and nothing is changed.
func TestGenesisRefused(t *testing.T) {
	bed := up(t, beds.One)
	bare(t, bed)
	hub := bed.Host("hub")
	greeter(t, hub)
	run(t, hub, "mkdir", "/run/mount") // mount makes it
	pid := hub.Pids(isGreeter)[0]
	const later = "/usr/local/bin/mesh-of-2099"
	testBuild(t, hub, later, "github.com/novox/mesh/appliance/pki.built", "2099-01-02T03:04:05Z")
	for path, mode := range map[string]fs.FileMode{"/root/dsn-open": 0o644, "/root/dsn-two": 0o600, "/root/dsn-empty": 0o600, "/root/dsn-bad": 0o600, "/root/dsn-away": 0o600} {
		content := map[string]string{"/root/dsn-open": "postgres://u:" + secret + "@db/mesh\n", "/root/dsn-two": "postgres://a/b\npostgres://c/d\n", "/root/dsn-away": "postgres://u:" + secret + "@127.0.0.1:5999/mesh\n", "/root/dsn-bad": "postgres://u:" + secret + "@db:port/mesh\n"}[path]
		if err := hub.Put(t.Context(), path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	genesis := func(args ...string) []string {
		return line(append([]string{"genesis", "--name", "home", "--endpoint", hub.Address.String()}, args...)...)
	}
	taken := []string{"port 7000/tcp", fmt.Sprintf("process %d (probe) has it", pid), "stop that process"}
	for name, r := range map[string]refusal{
		"no root":              {unprivileged(genesis()), 3, []string{"genesis: it needs root, and runs as user 65534", "next:  sudo mesh genesis"}, 0},
		"rootless":             {genesis("--rootless"), 3, []string{"--rootless is not carried out by this version", "no TUN device"}, 0},
		"port of the broker":   {genesis("--broker-port", probePort), 3, append(taken, "for the broker", "--broker-port"), 0},
		"port of downloads":    {genesis("--downloads-port", probePort), 3, append(taken, "for the downloads", "--downloads-port"), 0},
		"port of artifacts":    {genesis("--artifacts-port", probePort), 3, append(taken, "for the artifacts", "--artifacts-port"), 0},
		"downloads twice":      {genesis("--artifacts-port", "4280"), 3, []string{"port 4280", "downloads and artifacts", "--artifacts-port"}, 0},
		"no port":              {genesis("--broker-port", "70000"), 2, []string{"--broker-port", "70000"}, 0},
		"one port twice":       {genesis("--broker-port", "4300", "--downloads-port", "4300"), 3, []string{"port 4300", "broker and downloads", "--downloads-port"}, 0},
		"range on a route":     {genesis("--range", "10.77.0.0/16"), 3, []string{"10.77.0.0/16 overlaps the route", " on eth0", "another --range"}, 0},
		"no range":             {genesis("--range", "banana"), 2, []string{`--range "banana" is no range such as 10.64.0.0/16`}, 0},
		"range too wide":       {genesis("--range", "10.0.0.0/7"), 3, []string{"too wide", "between /8 and /29"}, 0},
		"public range":         {genesis("--range", "8.8.0.0/16"), 3, []string{"not within a private network"}, 0},
		"range of IPv6":        {genesis("--range", "fd00::/64"), 3, []string{"not an IPv4 network"}, 0},
		"range with host bits": {genesis("--range", "10.64.0.1/16"), 3, []string{"the network is 10.64.0.0/16"}, 0},
		"clock before the build": {append([]string{later}, genesis()[1:]...), 3,
			[]string{"look at the clock: it says 20", "this binary was built 2099-01-02T03:04:05Z", "set the clock", "timedatectl"}, 0},
		"no store file":             {genesis("--store-file", "/root/nothing"), 3, []string{"read store file: stat /root/nothing", "one line"}, 0},
		"store file open to others": {genesis("--store-file", "/root/dsn-open"), 3, []string{"/root/dsn-open: others may read it (mode 0644)", "chmod 600 /root/dsn-open"}, 0},
		"store file of two lines":   {genesis("--store-file", "/root/dsn-two"), 3, []string{"/root/dsn-two: it holds no single DSN"}, 0},
		"empty store file":          {genesis("--store-file", "/root/dsn-empty"), 3, []string{"/root/dsn-empty: it holds no single DSN"}, 0},
		"malformed DSN":             {genesis("--store-file", "/root/dsn-bad"), 3, []string{"/root/dsn-bad", "a DSN is postgres://USER@HOST:PORT/DATABASE"}, 0},
		"store out of reach":        {genesis("--store-file", "/root/dsn-away"), 4, []string{"reach the store", "127.0.0.1:5999", "the server must run"}, 0},
		"no PostgreSQL":             {genesis("--postgres-bin", "/root"), 3, []string{"PostgreSQL in /root", "--postgres-bin names the folder"}, 0},
		"no endpoint":               {line("genesis", "--name", "home"), 3, []string{"no endpoint is given", "--endpoint HOST[:PORT]"}, 0},
		"bad endpoint":              {line("genesis", "--name", "home", "--endpoint", "a host"), 3, []string{`endpoint "a host" is not HOST or HOST:PORT`}, 0},
		"port of an endpoint":       {line("genesis", "--name", "home", "--endpoint", "host:0"), 3, []string{`endpoint "host:0" is not HOST or HOST:PORT`}, 0},
		"bad name":                  {line("genesis", "--name", "My Home", "--endpoint", "host"), 3, []string{`mesh name "My Home" does not fit the grammar`, "lower-case"}, 0},
		"bad name of the node":      {genesis("--node", "Hub!"), 3, []string{`node name "Hub!" does not fit the grammar`}, 0},
		"reserved name":             {genesis("--node", "broker"), 3, []string{`node name "broker" is reserved`}, 0},
		"unknown flag":              {genesis("--nope"), 2, []string{"unknown flag: --nope", "mesh genesis --help"}, 0},
		"an argument":               {genesis("home"), 2, []string{`mesh genesis wants no arguments, got "home"`}, 0},
		"unknown output":            {genesis("-o", "xml"), 2, []string{`no output "xml": table, json or yaml`}, 0},
		"state is relative":         {append([]string{"env", "MESH_STATE=state"}, genesis()...), 3, []string{`MESH_STATE="state" is not an absolute path`}, 0},
		"state is a file":           {genesis("--state", "/etc/passwd"), 3, []string{"/etc/passwd is not a folder"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			changesNothing(t, bed, hub, func() { refused(t, hub, r) })
		})
	}

	t.Run("port of the overlay", func(t *testing.T) {
		changesNothing(t, bed, hub, func() {
			port, end := bindUDP(t, hub)
			refused(t, hub, refusal{genesis("--overlay-port", port), 3, []string{"port " + port + "/udp for the overlay", "(bash) has it", "--overlay-port"}, 0})
			end()
		})
	})
	t.Run("little disk", func(t *testing.T) {
		changesNothing(t, bed, hub, func() {
			run(t, hub, "mount", "-t", "tmpfs", "-o", "size=64m", "small", "/srv")
			refused(t, hub, refusal{genesis("--state", "/srv/mesh"), 4, []string{"look at the disk: 64 MiB are free at /srv, 512 MiB are needed", "--state"}, 0})
			if left := run(t, hub, "ls", "-A", "/srv"); left != "" {
				t.Errorf("left in /srv: %s", left)
			}
			run(t, hub, "umount", "/srv")
		})
	})
	t.Run("no TUN", func(t *testing.T) {
		changesNothing(t, bed, hub, func() {
			run(t, hub, "mv", "/dev/net", "/dev/net.away")
			refused(t, hub, refusal{genesis(), 4, []string{"look for /dev/net/tun", "modprobe tun"}, 0})
			run(t, hub, "mv", "/dev/net.away", "/dev/net")
		})
	})
}

// bindUDP makes a shell hold a UDP port of the host until end is called.
func bindUDP(t *testing.T, host *netns.Host) (port string, end func()) {
	t.Helper()
	cmd := host.Command(t.Context(), "bash", "-c", "exec 3<>/dev/udp/127.0.0.1/9; read")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a shell binds a UDP port", 5*time.Second, func() string {
		for _, line := range strings.Split(run(t, host, "cat", "/proc/net/udp"), "\n") {
			var n int
			var from, to string
			if f := strings.Fields(line); len(f) > 2 {
				from, to = f[1], f[2]
			}
			if _, local, _ := strings.Cut(from, ":"); strings.HasSuffix(to, ":0009") {
				if _, err := fmt.Sscanf(local, "%X", &n); err == nil {
					port = fmt.Sprint(n)
					return ""
				}
			}
		}
		return "no such socket"
	})
	return port, func() {
		stdin.Close()
		cmd.Wait()
	}
}

// GEN-3: of two at once one founds the mesh and the other says who is at it; afterwards the same command finds it founded.
func TestSecondGenesis(t *testing.T) {
	bed := up(t, beds.One)
	bare(t, bed)
	hub := bed.Host("hub")
	genesis := line("genesis", "--name", "home", "--endpoint", hub.Address.String(), "--yes")
	first := hub.Command(t.Context(), genesis...)
	var said strings.Builder
	first.Stdout, first.Stderr = &said, &said
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first holds the lock", 10*time.Second, func() string {
		_, errs, code, err := hub.Run(t.Context(), "test", "-s", "/var/lib/mesh/lock")
		if code != 0 || err != nil {
			return fmt.Sprintf("%v %s", err, errs)
		}
		return ""
	})
	refused(t, hub, refusal{genesis, 3, []string{"mesh genesis", "process"}, 0})
	if err := first.Wait(); err != nil {
		t.Fatalf("the first: %v\n%s", err, said.String())
	}
	before := run(t, hub, "cat", "/var/lib/mesh/mesh.json")
	out, errs, code, err := hub.Run(t.Context(), genesis...)
	if err != nil || code != 0 || !strings.Contains(errs, "The hub of mesh home is founded and runs") || !strings.Contains(out, "NODE") {
		t.Errorf("once more: exit code %d: %v\n%s%s", code, err, out, errs)
	}
	_, errs, _, _ = hub.Run(t.Context(), line("genesis", "--name", "home", "--endpoint", "192.0.2.1")...)
	if !strings.Contains(errs, "Not among them: 192.0.2.1:4222.") || !strings.Contains(errs, "mesh token create") {
		t.Errorf("with another endpoint: %s", errs)
	}
	if after := run(t, hub, "cat", "/var/lib/mesh/mesh.json"); after != before {
		t.Errorf("the mesh went from %s to %s", before, after)
	}
	// What somebody did to the hub's files since, the same command mends.
	run(t, hub, "chown", "-R", "root:root", "/var/lib/mesh/hub")
	command(t, hub, 0, "stop")
	command(t, hub, 0, "start")
	if out, errs, code, err := hub.Run(t.Context(), genesis...); err != nil || code != 0 || !strings.Contains(out, "Mesh home stands") {
		t.Errorf("with the hub's files root's: exit code %d: %v\n%s%s", code, err, out, errs)
	}
	refused(t, hub, refusal{line("genesis", "--name", "other", "--endpoint", hub.Address.String()), 3, []string{"holds mesh home", "is asked for other", "--state"}, 0})
}
