package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case netns.InitCommand:
			os.Exit(netns.Init(os.Args[2:]))
		case copyCommand:
			os.Exit(copies(os.Args[2:]))
		case pushCommand:
			os.Exit(pushes(os.Args[2:]))
		}
	}
	code := m.Run()
	if _, err := netns.Sweep(context.Background(), netns.DefaultDir()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// binary builds the mesh as `make build` does.
func binary(b *testing.B) string {
	b.Helper()
	if os.Geteuid() != 0 {
		b.Skip("the lab needs root for its namespaces")
	}
	path := filepath.Join(b.TempDir(), "mesh")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../../cmd/mesh")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("build: %v: %s", err, out)
	}
	return path
}

func up(b *testing.B, bed netns.Bed) *netns.Running {
	b.Helper()
	running, err := netns.Up(b.Context(), bed, netns.DefaultDir())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := running.Down(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return running
}

// timed runs a program on a host and says how long it took.
func timed(b *testing.B, host *netns.Host, argv ...string) (time.Duration, string) {
	b.Helper()
	begun := time.Now()
	out, errs, code, err := host.Run(b.Context(), argv...)
	if err != nil || code != 0 {
		b.Fatalf("%q on %s: exit code %d: %v: %s", argv, host.Name, code, err, errs)
	}
	return time.Since(begun), out
}

// bare is what genesis cannot do without: initdb, its sync, start until it accepts, as the package's own tools do it.
func bare(b *testing.B, host *netns.Host, n int) time.Duration {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		b.Skip("no PostgreSQL in /usr/lib/postgresql: make packages installs it")
	}
	bin, dir := bins[len(bins)-1], fmt.Sprintf("/var/tmp/bare%d", n)
	timed(b, host, "install", "-d", "-o", "nobody", "-m", "0700", dir)
	as := []string{"setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"}
	initdb, _ := timed(b, host, append(as, bin+"/initdb", "-D", dir+"/data", "-A", "peer", "--data-checksums")...)
	start, _ := timed(b, host, append(as, bin+"/pg_ctl", "-D", dir+"/data", "-w", "-l", dir+"/log", "-o", "-c listen_addresses='' -c unix_socket_directories="+dir, "start")...)
	timed(b, host, append(as, bin+"/pg_ctl", "-D", dir+"/data", "-w", "-m", "fast", "stop")...)
	return initdb + start
}

// BenchmarkGenesis: target at most 1.5 times bare initdb and start, and under 2 s.
func BenchmarkGenesis(b *testing.B) {
	mesh := binary(b)
	var ours, reference []time.Duration
	for range b.N {
		for i := range 3 {
			bed := up(b, beds.One)
			if err := beds.Install(b.Context(), bed, mesh); err != nil {
				b.Fatal(err)
			}
			hub := bed.Host("hub")
			reference = append(reference, bare(b, hub, i))
			took, _ := timed(b, hub, beds.Line("genesis", "--name", "bench", "--endpoint", hub.Address.String(), "--yes")...)
			ours = append(ours, took)
			if err := bed.Down(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	g, r := median(ours), median(reference)
	b.ReportMetric(g.Seconds(), "s/genesis")
	b.ReportMetric(r.Seconds(), "s/initdb+start")
	b.ReportMetric(g.Seconds()/r.Seconds(), "ratio")
}

// BenchmarkJoin: target at most 1 s from the command to the first declaration applied.
func BenchmarkJoin(b *testing.B) {
	bed, hub := raised(b, beds.Three, 1)
	var took []time.Duration
	for _, host := range bed.Hosts()[1:] {
		token, err := beds.Token(b.Context(), hub)
		if err != nil {
			b.Fatal(err)
		}
		d, _ := timed(b, host, beds.Line("join", token, "--name", host.Name)...)
		took = append(took, d)
	}
	b.ReportMetric(slices.Max(took).Seconds(), "s/join-max")
	b.ReportMetric(slices.Min(took).Seconds(), "s/join-min")
}

// BenchmarkPush: from the request until the status says current, on one node, p99; target at most 10 ms for push to report.
func BenchmarkPush(b *testing.B) {
	_, hub := raised(b, beds.Pair, 2)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		b.Fatal(err)
	}
	if err := hub.Put(b.Context(), "/usr/local/bin/bench", self, 0o755); err != nil {
		b.Fatal(err)
	}
	_, out := timed(b, hub, "/usr/local/bin/bench", pushCommand, "n1", "200")
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		name, value, _ := strings.Cut(line, " ")
		ms, err := strconv.ParseFloat(value, 64)
		if err != nil {
			b.Fatalf("%q: %v", line, err)
		}
		b.ReportMetric(ms, name)
	}
}

// BenchmarkIdleMemory: proportional set size after a rest; targets 100 MB for the hub with PostgreSQL, 25 MB for an agent.
func BenchmarkIdleMemory(b *testing.B) {
	bed, hub := raised(b, beds.Pair, 2)
	rest := time.NewTimer(20 * time.Second) // memory settles with time, and nothing says when
	<-rest.C
	total := 0
	for name, kb := range pss(b, hub) {
		total += kb
		if strings.Contains(name, "mesh agent") {
			b.ReportMetric(float64(kb)/1024, "MB/hub-agent")
		}
	}
	b.ReportMetric(float64(total)/1024, "MB/hub-all")
	for name, kb := range pss(b, bed.Host("n1")) {
		if strings.Contains(name, "mesh agent") {
			b.ReportMetric(float64(kb)/1024, "MB/node-agent")
		}
	}
}

// pss gives the proportional set size of the mesh's and PostgreSQL's processes, in KiB, by pid and command.
func pss(b *testing.B, host *netns.Host) map[string]int {
	out := map[string]int{}
	pids := host.Pids(func(cmdline []string) bool {
		return len(cmdline) > 0 && (strings.Contains(cmdline[0], "/mesh") || strings.Contains(cmdline[0], "postgres"))
	})
	for _, pid := range pids {
		_, text := timed(b, host, "cat", fmt.Sprintf("/proc/%d/smaps_rollup", pid), fmt.Sprintf("/proc/%d/cmdline", pid))
		for _, line := range strings.Split(text, "\n") {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kb, _ := strconv.Atoi(f[1])
				_, command, _ := strings.Cut(text, "Locked:")
				out[fmt.Sprintf("%d %s", pid, strings.ReplaceAll(command, "\x00", " "))] = kb
			}
		}
	}
	return out
}

// raised gives a bed with the mesh on its first hosts.
func raised(b *testing.B, spec netns.Bed, hosts int) (*netns.Running, *netns.Host) {
	b.Helper()
	mesh := binary(b)
	bed := up(b, spec)
	if err := beds.Install(b.Context(), bed, mesh); err != nil {
		b.Fatal(err)
	}
	hub := bed.Hosts()[0]
	timed(b, hub, beds.Line("genesis", "--name", "bench", "--endpoint", hub.Address.String(), "--yes")...)
	for _, host := range bed.Hosts()[1:hosts] {
		token, err := beds.Token(b.Context(), hub)
		if err != nil {
			b.Fatal(err)
		}
		timed(b, host, beds.Line("join", token, "--name", host.Name)...)
	}
	return bed, hub
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
