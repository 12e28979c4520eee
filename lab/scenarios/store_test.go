package scenarios

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/embedded/postgres/postgrestest"
	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

const (
	storeFolder  = "/var/lib/mesh/modules/mesh-store/store"
	olderFolder  = "/opt/older" // with the PostgreSQL that genesis is told to take
	olderMoved   = "/opt/moved" // where it goes when its package goes
	olderCluster = storeFolder + "/cluster.14"
)

// GEN-5: a hub whose PostgreSQL went with an upgrade of the distribution says so by name, and `mesh store upgrade` moves its records to
// the one that came: killed at several steps, with nothing lost, while the node goes on. The old cluster is kept.
func TestStoreOfAnOlderMajor(t *testing.T) {
	older := postgrestest.Older(t)
	bed := up(t, beds.Pair)
	equip(t, bed)
	hub, n1 := bed.Host("hub"), bed.Host("n1")
	copyTo(t, hub, older, olderFolder)
	command(t, hub, 0, founding(hub, "--postgres-bin", olderFolder+"/bin")...)
	token, err := beds.Token(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	command(t, n1, 0, "join", token, "--name", "n1")
	command(t, hub, 0, "module", "register", "hello")
	command(t, hub, 0, "module", "assign", "hello", "n1", "--push", "--wait")
	before, keys := statusOf(t, hub), made(t, hub)
	hello := the(t, n1, "hello", isHello("hello"))
	if got := run(t, hub, "cat", storeFolder+"/cluster/PG_VERSION"); got != "14" {
		t.Fatalf("the cluster was made by PostgreSQL %s", got)
	}

	// The package goes, and the hub is started again.
	run(t, hub, "mv", olderFolder, olderMoved)
	command(t, hub, 0, "stop")
	command(t, hub, 0, "start")
	var said string
	waitFor(t, "the hub says which PostgreSQL is gone", 20*time.Second, func() string {
		_, errs, code, err := hub.Run(t.Context(), beds.Binary, "status")
		if said = errs; code != 3 || err != nil {
			return fmt.Sprintf("exit code %d, %v: %s", code, err, errs)
		}
		return ""
	})
	for _, want := range []string{"was made by PostgreSQL 14, and the binaries at hand are of 15", "next:  mesh store upgrade\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("status does not say %q:\n%s", want, said)
		}
	}
	_, errs := command(t, hub, 3, "store", "upgrade", "--yes")
	for _, want := range []string{"PostgreSQL 14, whose programs are not on this machine", "postgresql-14", "--from-bin DIR", "next:  apt-get install postgresql-14\n"} {
		if !strings.Contains(errs, want) {
			t.Errorf("upgrade does not say %q:\n%s", want, errs)
		}
	}
	_, errs = command(t, hub, 3, "store", "upgrade", "--yes", "--from-bin", "/usr/lib/postgresql/15/bin")
	if !strings.Contains(errs, "has PostgreSQL 15, and cluster "+storeFolder+"/cluster was made by 14") {
		t.Errorf("with the wrong programs: %s", errs)
	}
	_, errs = command(t, hub, 2, "store", "upgrade", "--from-bin", olderMoved+"/bin")
	if !strings.Contains(errs, "stays in "+olderCluster) || !strings.Contains(errs, "give --yes") {
		t.Errorf("unasked: %s", errs)
	}
	_, errs = command(t, n1, 3, "store", "upgrade", "--yes")
	if !strings.Contains(errs, "this machine is node n1") {
		t.Errorf("on a node: %s", errs)
	}

	upgrade := []string{"store", "upgrade", "--yes", "--from-bin", olderMoved + "/bin"}
	for n, step := range []string{"stop the hub", "dump the records", "load the records"} { // after the others: genesis/cluster
		cutUpgrade(t, hub, step, n != 1, upgrade...)
		if n == 1 { // with the package back, the old hub starts as before
			run(t, hub, "mv", olderMoved, olderFolder)
			started := time.Now()
			command(t, hub, 0, "start")
			waitFor(t, "the old hub is back", 30*time.Second, func() string { return notCurrent(t.Context(), hub, 2, started) })
			run(t, hub, "mv", olderFolder, olderMoved)
		}
	}
	begun := time.Now()
	out, _ := command(t, hub, 0, append(upgrade, "-o", "json")...)
	t.Logf("finished in %s", time.Since(begun))
	wantSteps(t, out)
	waitFor(t, "all are current", 30*time.Second, func() string { return notCurrent(t.Context(), hub, 2, begun) })
	sameNumbers(t, before, statusOf(t, hub))
	same(t, keys, made(t, hub))
	if now := the(t, n1, "hello", isHello("hello")); now != hello {
		t.Errorf("hello was process %d, is %d", hello, now)
	}
	if got := run(t, hub, "cat", storeFolder+"/cluster/PG_VERSION", olderCluster+"/PG_VERSION"); got != "15\n14" {
		t.Errorf("majors %q", got)
	}
	if diff := cmp.Diff([]string{"cluster", "cluster.14", "postgresql.log", "socket"}, sortedLines(run(t, hub, "ls", storeFolder))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	run(t, hub, "test", "!", "-L", "/var/lib/mesh/modules/mesh-store/postgresql")
	if text := run(t, hub, "cat", "/var/lib/mesh/hub/hub.json"); strings.Contains(text, "postgresBin") {
		t.Errorf("hub.json still names the old programs:\n%s", text)
	}
	out, errs = command(t, hub, 0, "store", "upgrade")
	if !strings.Contains(out, "there is nothing to upgrade") || !strings.Contains(out, "rm -r "+olderCluster) || strings.Contains(errs, "stop the hub") {
		t.Errorf("once more: %s%s", out, errs)
	}
	command(t, hub, 0, "module", "unassign", "hello", "n1", "--push", "--wait")
}

// copyTo copies a folder onto a host.
func copyTo(t *testing.T, host *netns.Host, from, to string) {
	t.Helper()
	run(t, host, "mkdir", "-p", to)
	pack := exec.CommandContext(t.Context(), "tar", "-C", from, "-cf", "-", ".")
	unpack := host.Command(t.Context(), "tar", "-C", to, "-xf", "-")
	var errs bytes.Buffer
	unpack.Stderr = &errs
	in, err := pack.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	unpack.Stdin = in
	if err := pack.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unpack.Run(); err != nil {
		t.Fatalf("unpack: %v: %s", err, errs.String())
	}
	if err := pack.Wait(); err != nil {
		t.Fatal(err)
	}
}

// cutUpgrade kills an upgrade once it has told a step: the command alone, or everything it started with it.
func cutUpgrade(t *testing.T, host *netns.Host, step string, all bool, args ...string) {
	t.Helper()
	cmd := host.Command(t.Context(), append([]string{beds.Binary}, args...)...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var told []string
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if told = append(told, lines.Text()); !strings.HasPrefix(lines.Text(), "done     "+step) {
			continue
		}
		if all {
			crash(cmd)
			return
		}
		upgrading := func(cmdline []string) bool {
			return len(cmdline) > 2 && filepath.Base(cmdline[0]) == "mesh" && slices.Equal(cmdline[1:3], []string{"store", "upgrade"})
		}
		if err := host.Kill(the(t, host, "the upgrade", upgrading), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		return
	}
	t.Fatalf("the upgrade did not tell %q: %v\n%s", step, cmd.Wait(), strings.Join(told, "\n"))
}

// wantSteps: every line is a step with its time, and the last says what is kept.
func wantSteps(t *testing.T, out string) {
	t.Helper()
	var last struct {
		Step, State, Kept string
		Milliseconds      *int64
	}
	for line := range strings.Lines(out) {
		last.Milliseconds = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil || last.State != "done" && last.State != "waiting" || last.Step != "closing" && last.Milliseconds == nil {
			t.Errorf("%q is no step: %v", line, err)
		}
	}
	if last.Step != "closing" || last.State != "done" || last.Kept != olderCluster {
		t.Errorf("the last step is %+v", last)
	}
}
