package wg

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// bed is a set of hosts, each a network namespace, gone when the test is.
type bed struct {
	t     testing.TB
	dir   string // removed after the processes that write into it
	links int
	files int
}

var beds int

func newBed(t testing.TB) *bed {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs network namespaces: run the tests as root")
	}
	beds++
	return &bed{t: t, dir: t.TempDir()}
}

// options are for a device with a file of its own.
func (b *bed) options() Options {
	b.files++
	return Options{Interface: "wgt0", LearnedFile: filepath.Join(b.dir, fmt.Sprintf("learned%d.json", b.files))}
}

// sweep deletes namespaces of test runs that were killed.
func sweep() {
	left, _ := filepath.Glob("/run/netns/wgt*-*")
	for _, path := range left {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, "wgt"), "-")
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			exec.Command("ip", "netns", "del", name).Run()
		}
	}
}

func (b *bed) ip(args ...string) string {
	b.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

type host struct {
	*bed
	ns string
	*process
}

func (b *bed) host(name string) *host {
	b.t.Helper()
	h := &host{bed: b, ns: fmt.Sprintf("wgt%d-%d%s", os.Getpid(), beds, name)}
	b.ip("netns", "add", h.ns)
	b.t.Cleanup(func() {
		if h.process != nil {
			h.kill()
		}
		if out, err := exec.Command("ip", "netns", "del", h.ns).CombinedOutput(); err != nil {
			b.t.Errorf("delete namespace %s: %v: %s", h.ns, err, out)
		}
	})
	b.ip("-n", h.ns, "link", "set", "lo", "up")
	b.ip("netns", "exec", h.ns, "sysctl", "-qw", "net.ipv4.ip_forward=0") // a namespace takes over what this machine has
	h.process = h.spawn()
	return h
}

// connect lays a cable and returns both ends' addresses.
func (b *bed) connect(x, y *host) (atX, atY netip.Addr) {
	b.t.Helper()
	b.links++
	atX, atY = netip.AddrFrom4([4]byte{192, 0, byte(b.links), 1}), netip.AddrFrom4([4]byte{192, 0, byte(b.links), 2})
	nameX, nameY := fmt.Sprintf("cable%da", b.links), fmt.Sprintf("cable%db", b.links)
	b.ip("link", "add", nameX, "netns", x.ns, "type", "veth", "peer", "name", nameY, "netns", y.ns)
	b.ip("-n", x.ns, "addr", "add", atX.String()+"/24", "dev", nameX)
	b.ip("-n", y.ns, "addr", "add", atY.String()+"/24", "dev", nameY)
	b.ip("-n", x.ns, "link", "set", nameX, "up")
	b.ip("-n", y.ns, "link", "set", nameY, "up")
	return atX, atY
}

// process is this binary, run as a helper inside a host.
type process struct {
	cmd     *exec.Cmd
	answers *bufio.Reader
	in      *json.Encoder
	dead    bool
}

func (h *host) spawn() *process {
	h.t.Helper()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+h.ns, "/proc/self/exe")
	self, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Args[2] = self
	cmd.Env = append(os.Environ(), "WG_TEST_HELPER=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return &process{cmd: cmd, in: json.NewEncoder(in), answers: bufio.NewReader(out)}
}

// kill is kill -9.
func (p *process) kill() {
	if !p.dead {
		p.dead = true
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// renew replaces the process by a new one, which runs no device yet.
func (h *host) renew() {
	h.t.Helper()
	h.kill()
	h.process = h.spawn()
}

// try asks the helper; the answer may be an error.
func (h *host) try(r request) (answer, error) {
	h.t.Helper()
	if err := h.in.Encode(r); err != nil {
		h.t.Fatalf("%s: ask %s: %v", h.ns, r.Op, err)
	}
	line, err := h.answers.ReadBytes('\n')
	if err != nil {
		h.t.Fatalf("%s: answer to %s: %v", h.ns, r.Op, err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		h.t.Fatal(err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s: %s", h.ns, r.Op, a.Error)
	}
	return a, nil
}

func (h *host) ask(r request) answer {
	h.t.Helper()
	a, err := h.try(r)
	if err != nil {
		h.t.Fatal(err)
	}
	return a
}

// start runs the device and serves pings on its address.
func (h *host) start(o Options, c Config) {
	h.t.Helper()
	h.ask(request{Op: "start", Options: o})
	h.ask(request{Op: "set", Config: c})
	h.ask(request{Op: "serve", At: c.Address.Addr()})
}

func (h *host) set(c Config) { h.t.Helper(); h.ask(request{Op: "set", Config: c}) }

// ping has the patience for a busy machine.
func (h *host) ping(to string) {
	h.t.Helper()
	h.ask(request{Op: "ping", At: netip.MustParseAddr(to), Within: 10 * time.Second})
}

func (h *host) mute(to string, within time.Duration) {
	h.t.Helper()
	if a, err := h.try(request{Op: "ping", At: netip.MustParseAddr(to), Within: within}); err == nil {
		h.t.Fatalf("%s: %s answered after %s, and should not", h.ns, to, a.Took)
	}
}

func (h *host) peer(k Key) PeerState {
	h.t.Helper()
	for _, s := range h.ask(request{Op: "state"}).States {
		if s.Key == k {
			return s
		}
	}
	h.t.Fatalf("%s: no peer %s", h.ns, k)
	return PeerState{}
}

// sysctl reads a number from /proc/sys/net inside the host.
func (h *host) sysctl(path string) int {
	h.t.Helper()
	out, err := exec.Command("nsenter", "--net=/run/netns/"+h.ns, "cat", "/proc/sys/net/"+path).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}
