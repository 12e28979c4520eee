package scenarios

import (
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// newToken asks the hub for a token.
func newToken(t *testing.T, hub *netns.Host, args ...string) (id, token string) {
	t.Helper()
	var made struct{ ID, Token string }
	if err := json.Unmarshal([]byte(run(t, hub, line(append([]string{"token", "create", "-o", "json"}, args...)...)...)), &made); err != nil {
		t.Fatal(err)
	}
	return made.ID, made.Token
}

// altered is a token that says something else than the one the hub made.
func altered(t *testing.T, token string, change func(*enrol.Token)) string {
	t.Helper()
	parsed, err := enrol.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	change(&parsed)
	text, err := parsed.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// leadsTo is a token whose only address is another.
func leadsTo(t *testing.T, token, address string) string {
	t.Helper()
	return altered(t, token, func(k *enrol.Token) { k.Addresses = []string{address} })
}

func randomKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// NODE-2, NODE-3, NODE-4, NET-2, NET-8, SAFE-1, OP-1: a join that cannot be says which of address, port, pin, token, clock, name,
// platform, range and key is wrong and the way out, in time, and leaves nothing behind; the machine joins afterwards as if nothing had been.
func TestJoinRefused(t *testing.T) {
	bed := up(t, beds.Three)
	bare(t, bed)
	hub, n1, n2 := bed.Host("hub"), bed.Host("n1"), bed.Host("n2")
	run(t, hub, line("genesis", "--name", "lab", "--endpoint", hub.Address.String(), "--range", "10.99.0.0/16", "--yes")...)
	_, used := newToken(t, hub)
	run(t, n2, line("join", used, "--name", "n2")...)
	_, good := newToken(t, hub)
	_, expired := newToken(t, hub, "--ttl", "1s")
	revokedID, revoked := newToken(t, hub)
	run(t, hub, line("token", "revoke", revokedID)...)
	at := hub.Address.String()
	greeter(t, hub)
	join := func(token string, args ...string) []string { return line(append([]string{"join", token}, args...)...) }
	short := func(d time.Duration) time.Duration { return d + 4*time.Second } // for a loaded machine
	foreign := altered(t, good, func(k *enrol.Token) {
		k.Mesh, k.ID, k.Authority, k.Signing = appliance.NewMeshID(), appliance.NewTokenID(), [32]byte(randomKey(t)), randomKey(t)
	})
	const early, late = "/usr/local/bin/mesh-early", "/usr/local/bin/mesh-late" // as if their clocks were so
	testBuild(t, n1, early, "main.clockOff", "-5m")
	testBuild(t, n1, late, "main.clockOff", "72h")
	const later = "/usr/local/bin/mesh-of-2099"
	testBuild(t, n1, later, "github.com/novox/mesh/appliance/pki.built", "2099-01-02T03:04:05Z")
	waitFor(t, "a token expires", 5*time.Second, func() string {
		if listed := run(t, hub, line("token", "list")...); !strings.Contains(listed, "expired") {
			return listed
		}
		return ""
	})

	for _, c := range []struct {
		name string
		refusal
	}{
		{"no root", refusal{unprivileged(join(good)), 3, []string{"join: it needs root, and runs as user 65534", "next:  sudo mesh join"}, 0}},
		{"no token", refusal{line("join"), 2, []string{"mesh join wants the token"}, 0}},
		{"empty token", refusal{join(""), 3, []string{"read token: it is empty"}, 0}},
		{"token cut short", refusal{join(good[:len(good)-9]), 3, []string{"read token: the token ends early: copy it whole"}, 0}},
		{"damaged token", refusal{join(swapped(good)), 3, []string{"read token: it is damaged", "copy the token whole"}, 0}},
		{"token of another version", refusal{join("mesh7." + good[6:]), 3, []string{"read token: it is of version 7, this binary reads version 1"}, 0}},
		{"not a token", refusal{join("hello"), 3, []string{"read token: it does not begin with mesh1."}, 0}},
		{"no token file", refusal{line("join", "--token-file", "/nothing"), 3, []string{"read token: open /nothing"}, 0}},
		{"bad name", refusal{join(good, "--name", "My PC"), 3, []string{`node name "My PC" does not fit the grammar`, "lower-case"}, 0}},
		{"bad label", refusal{join(good, "--label", "Rack=1"), 3, []string{`error: check claim: label "Rack=1" does not fit the grammar`}, 0}},
		{"no label", refusal{join(good, "--label", "rack"), 2, []string{`--label "rack" is not KEY=VALUE`, "mesh join --help"}, 0}},
		{"unknown flag", refusal{join(good, "--nope"), 2, []string{"unknown flag: --nope", "mesh join --help"}, 0}},

		{"expired token", refusal{join(expired), 3, []string{"expired", "mesh token create"}, 0}},
		{"used token", refusal{join(used), 3, []string{"the token was spent by another machine", "make another one on the hub", "mesh token create"}, 0}},
		{"revoked token", refusal{join(revoked), 3, []string{"revoked", "mesh token create"}, 0}},
		{"unknown token", refusal{join(altered(t, good, func(k *enrol.Token) { k.Secret[0]++ })), 3,
			[]string{"reach the hub at " + at, "it knows no such token", "mesh token create"}, short(2 * time.Second)}},
		{"token of another mesh", refusal{join(foreign), 3, []string{"it is not the hub that made this token", "another mesh", "mesh token create"}, short(2 * time.Second)}},
		{"wrong pin", refusal{join(altered(t, good, func(k *enrol.Token) { k.Authority[0]++ })), 3,
			[]string{"it is not the hub that made this token", "does not contain the pinned authority", "mesh token create"}, short(2 * time.Second)}},
		{"wrong signing key", refusal{join(altered(t, good, func(k *enrol.Token) { k.Signing = randomKey(t) })), 3,
			[]string{"the mesh key that the token pins has not signed it", "compare the address", "mesh token create"}, 0}},
		{"clock behind", refusal{append([]string{early}, join(good)[1:]...), 3, []string{"compare clocks: the mesh says 20", "here it is 20", "both clocks must agree within two minutes", "timedatectl"}, 0}},
		{"clock ahead", refusal{append([]string{late}, join(good)[1:]...), 3, []string{"compare clocks: the mesh says 20", "timedatectl"}, 0}},
		{"clock before the build", refusal{append([]string{later}, join(good)[1:]...), 3, []string{"look at the clock: it says 20", "this binary was built 2099-01-02T03:04:05Z", "timedatectl"}, 0}},
		{"name taken", refusal{join(good, "--name", "n2"), 3, []string{"a node named n2 exists", "--name OTHER"}, 0}},

		{"no route", refusal{join(leadsTo(t, good, "192.0.2.1:4222")), 4, []string{"reaching the hub at 192.0.2.1:4222", "network is unreachable", "is this its address"}, 0}},
		{"closed port", refusal{join(leadsTo(t, good, at+":4999")), 4, []string{"reach the hub at " + at + ":4999", "connection refused", "mesh status"}, 0}},
		{"another machine's name", refusal{join(leadsTo(t, good, "hub.invalid:4222")), 4, []string{"reach the hub at hub.invalid:4222: its name is not known here", "mesh token create"}, short(5 * time.Second)}},
		{"a port that greets", refusal{join(leadsTo(t, good, at+":"+probePort)), 4,
			[]string{"reach the hub at " + at + ":" + probePort + ": something answers there, but not as a broker: it says \"hello\"", "compare address and port"}, 0}},
		{"a port that waits", refusal{join(leadsTo(t, good, at+":4280")), 4,
			[]string{"reach the hub at " + at + ":4280: something answers there, but not as a broker: it ", "compare address and port"}, short(5 * time.Second)}},
		{"two addresses", refusal{join(altered(t, good, func(k *enrol.Token) { k.Addresses = []string{at + ":4999", "192.0.2.1:4222"} })), 4,
			[]string{at + ":4999", "connection refused", "192.0.2.1:4222", "network is unreachable", "none of the token's addresses"}, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changesNothing(t, bed, n1, func() { refused(t, n1, c.refusal) })
		})
	}

	t.Run("unplugged hub", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			if err := hub.Unplug(); err != nil {
				t.Fatal(err)
			}
			refused(t, n1, refusal{join(good), 4, []string{"reaching the hub at " + at, "reach the hub at " + at, "firewall"}, short(5 * time.Second)})
			if err := hub.Plug(); err != nil {
				t.Fatal(err)
			}
		})
	})
	t.Run("no TUN device", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			run(t, n1, "mv", "/dev/net/tun", "/dev/net/away")
			refused(t, n1, refusal{join(good), 4, []string{"look for /dev/net/tun", "give the container /dev/net/tun", "modprobe tun"}, 0})
			run(t, n1, "mv", "/dev/net/away", "/dev/net/tun")
		})
	})
	t.Run("interrupted", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			said := interrupt(t, n1, join(leadsTo(t, good, at+":4280")), "reaching the hub")
			if !strings.Contains(said, "error: interrupted\nhint:  the same command finishes") {
				t.Errorf("says %s", said)
			}
		})
	})
	t.Run("range on a route", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			run(t, n1, "ip", "route", "add", "10.99.7.0/24", "dev", "eth0")
			refused(t, n1, refusal{join(good), 3, []string{"10.99.0.0/16 overlaps the route 10.99.7.0/24 on eth0", "remove that route"}, 0})
			run(t, n1, "ip", "route", "del", "10.99.7.0/24")
		})
	})
	t.Run("somebody else's overlay key", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			key := run(t, n2, "cat", "/var/lib/mesh/node/keys/overlay.key")
			run(t, n1, "mkdir", "-p", "-m", "0700", "/var/lib/mesh/node/keys")
			if err := n1.Put(t.Context(), "/var/lib/mesh/node/keys/overlay.key", []byte(key+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, n1, refusal{join(good), 3, []string{"node n2 has the same overlay key", "copied from another", "remove its state folder"}, 0})
			run(t, n1, "rmdir", "/var/lib/mesh")
		})
	})
	t.Run("controller silent", func(t *testing.T) {
		changesNothing(t, bed, n1, func() {
			store := hub.Pids(func(cmdline []string) bool { return strings.Contains(cmdline[0], "postgres") })
			for _, pid := range store {
				if err := hub.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			refused(t, n1, refusal{join(good, "--timeout", "4s"), 4, []string{"saying hello", "no answer from the hub's controller within 4s", "mesh status"}, short(5 * time.Second)})
			for _, pid := range store {
				if err := hub.Kill(pid, syscall.SIGCONT); err != nil {
					t.Fatal(err)
				}
			}
		})
	})

	if err := n1.Put(t.Context(), "/root/token", []byte(good+"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	fromFile := line("join", "--token-file", "/root/token")
	refused(t, n1, refusal{fromFile, 3, []string{"others may read /root/token (mode 0640)", "chmod 600 /root/token"}, 0})
	run(t, n1, "chmod", "600", "/root/token")
	said := run(t, n1, fromFile...)
	if !strings.Contains(said, "is node n1 of mesh lab") {
		t.Errorf("joined: %s", said)
	}
	record := run(t, n1, "cat", "/var/lib/mesh/mesh.json")
	if said = run(t, n1, join(good)...); !strings.Contains(said, "node n1 of mesh lab already") {
		t.Errorf("once more: %s", said)
	}
	refused(t, n1, refusal{join(good, "--name", "other"), 3, []string{"is node n1 already, not other", "mesh start"}, 0})
	refused(t, n1, refusal{join(foreign), 3, []string{"is node n1 of mesh lab", "one mesh per state folder", "--state"}, 0})
	refused(t, n1, refusal{line("genesis", "--name", "home", "--endpoint", n1.Address.String()), 3, []string{"is node n1 of mesh lab", "one mesh per state folder", "--state"}, 0})
	refused(t, n1, refusal{line("status"), 3, []string{"no operator's credential on node n1", "on its hub"}, 0})
	if after := run(t, n1, "cat", "/var/lib/mesh/mesh.json"); after != record {
		t.Errorf("the node went from %s to %s", record, after)
	}
	if why := notCurrentYet(t, hub); why != "" {
		t.Error(why)
	}
}

// interrupt runs a command, gives it Ctrl-C once it has said something, and wants it to end soon with 255.
func interrupt(t *testing.T, host *netns.Host, argv []string, after string) string {
	t.Helper()
	said := filepath.Join(t.TempDir(), "said")
	out, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := host.Command(t.Context(), argv...)
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string { text, _ := os.ReadFile(said); return string(text) }
	waitFor(t, "it says "+after, 5*time.Second, func() string {
		if strings.Contains(read(), after) {
			return ""
		}
		return "it says " + read()
	})
	for _, pid := range host.Pids(func(cmdline []string) bool { return cmdline[0] == argv[0] }) {
		if err := host.Kill(pid, syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 255 || time.Since(begun) > 2*time.Second {
		t.Errorf("ends %s after Ctrl-C: %v", time.Since(begun), err)
	}
	return read()
}

// notCurrentYet waits for the mesh as a person would.
func notCurrentYet(t *testing.T, hub *netns.Host) string {
	t.Helper()
	out, errs, code, err := hub.Run(t.Context(), line("status", "--wait", "--timeout", "60s")...)
	if err != nil || code != 0 {
		return strings.TrimSpace(out + errs)
	}
	return ""
}

// swapped exchanges two different characters of a token.
func swapped(token string) string {
	b := []byte(token)
	for i := len(b) / 2; ; i++ {
		if b[i] != b[i+1] {
			b[i], b[i+1] = b[i+1], b[i]
			return string(b)
		}
	}
}
