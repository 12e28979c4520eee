package scenarios

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/lab/beds"
	"github.com/novox/mesh/lab/netns"
)

// founding is the genesis command of a host.
func founding(host *netns.Host, more ...string) []string {
	return append([]string{"genesis", "--name", "lab", "--endpoint", host.Address.String(), "--yes"}, more...)
}

// wipe makes a host as good as new: no process, no state, no user of ours.
func wipe(t *testing.T, host *netns.Host) {
	t.Helper()
	if err := host.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, host, "rm", "-rf", "/var/lib/mesh")
	run(t, host, "sh", "-c", "if getent passwd mesh; then userdel mesh; fi")
}

// made is what must be the same once it is there: the id of the mesh, and every key.
func made(t *testing.T, host *netns.Host) map[string]string {
	t.Helper()
	found := map[string]string{}
	sums := run(t, host, "sh", "-c", "cd /var/lib/mesh && find hub/keys node/keys -name '*.key' -exec sha256sum {} + 2>/dev/null; true")
	for line := range strings.Lines(sums) {
		if f := strings.Fields(line); len(f) == 2 {
			found[f[1]] = f[0]
		}
	}
	var settings struct{ Mesh, Founded string }
	if text, err := host.Get(t.Context(), "/var/lib/mesh/hub/hub.json"); err == nil {
		if err := json.Unmarshal(text, &settings); err != nil {
			t.Errorf("hub.json: %v", err)
		}
		found["mesh"] = settings.Mesh + " of " + settings.Founded
	}
	return found
}

// same wants everything that was there before to be what it was.
func same(t *testing.T, before, after map[string]string) {
	t.Helper()
	for what, value := range before {
		if after[what] != value {
			t.Errorf("%s was %s, is %q", what, value, after[what])
		}
	}
}

// wantHub: a whole hub, nothing of it twice, and nothing half made beside it.
func wantHub(t *testing.T, host *netns.Host) {
	t.Helper()
	if why := notCurrent(t.Context(), host, 1, time.Time{}); why != "" {
		t.Error(why)
	}
	for what, match := range map[string]func([]string) bool{"store": isPostmaster, "serve": isCommand("serve"), "agent": isCommand("agent"), "genesis": isCommand("genesis")} {
		want := 1
		if what == "genesis" {
			want = 0
		}
		if pids := host.Pids(match); len(pids) != want {
			t.Errorf("%s: processes %v, not %d", what, pids, want)
		}
	}
	if pids := host.Pids(isCommand("supervise")); len(pids) != 2 { // of serve and of the agent
		t.Errorf("supervisors: %v", pids)
	}
	halves := run(t, host, "find", "/var/lib/mesh", "(", "-name", "*.tmp", "-o", "-name", "*.new", "-o", "-name", "*.next", "-o", "-name", ".*", ")", "!", "-name", ".s.PGSQL.*")
	if halves != "" {
		t.Errorf("half made:\n%s", halves)
	}
	var modules []struct {
		Name      string
		Instances []struct{ Name, Node string }
	}
	if err := ask(t.Context(), host, &modules, "module", "list"); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, m := range modules {
		for _, i := range m.Instances {
			have = append(have, m.Name+" "+i.Name+"@"+i.Node)
		}
	}
	slices.Sort(have)
	want := []string{"artifact-store artifact-store@hub", "mesh-broker mesh-broker@hub", "mesh-controller mesh-controller@hub", "mesh-network mesh-network@hub", "mesh-store mesh-store@hub"}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
}

// cutShort runs genesis and kills it with kill -9 once it has told its n-th step; whole says that it came to its end before.
func cutShort(t *testing.T, host *netns.Host, n int) (step string, whole bool) {
	t.Helper()
	cmd := host.Command(t.Context(), beds.Line(founding(host)...)...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for lines := bufio.NewScanner(said); lines.Scan(); {
		all = append(all, lines.Text())
		if strings.HasPrefix(lines.Text(), "done ") || strings.HasPrefix(lines.Text(), "already ") {
			if n--; n == 0 {
				crash(cmd)
				gone(t, host)
				return lines.Text(), false
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("genesis: %v\n%s", err, strings.Join(all, "\n"))
	}
	return "", true
}

// gone waits until the killed genesis is gone: on a busy disk it stays, with its lock, until what it syncs is written.
func gone(t *testing.T, host *netns.Host) {
	t.Helper()
	waitFor(t, "genesis is gone", 20*time.Second, func() string {
		if pids := host.Pids(isCommand("genesis")); len(pids) > 0 {
			return fmt.Sprintf("processes %v", pids)
		}
		return ""
	})
}

// GEN-3: killed after every one of its steps in turn, the same command finishes the same mesh. The last one tells its steps as objects
// (GEN-7).
func TestGenesisKilledAfterEveryStep(t *testing.T) {
	bed := up(t, beds.One)
	equip(t, bed)
	hub := bed.Host("hub")
	before := map[string]string{}
	kills := 0
	for n := 1; ; n++ {
		step, whole := cutShort(t, hub, n)
		if whole {
			break
		}
		kills++
		after := made(t, hub)
		if same(t, before, after); t.Failed() {
			t.Fatalf("killed after %q", step)
		}
		before = after
	}
	t.Logf("killed %d times", kills)
	if kills < 12 {
		t.Errorf("killed %d times, genesis has more steps", kills)
	}
	same(t, before, made(t, hub))
	wantHub(t, hub)

	wipe(t, hub)
	out, errs := command(t, hub, 0, founding(hub, "-o", "json")...)
	steps := map[string]string{}
	for line := range strings.Lines(out) {
		var object struct {
			Step, State  string
			Milliseconds *int64
			Join, Curl   []string
		}
		if err := json.Unmarshal([]byte(line), &object); err != nil || object.Step == "" || object.State == "" {
			t.Errorf("%q is no step: %v", line, err)
		}
		if object.Step == "closing" && (len(object.Join) != 1 || len(object.Curl) != 1) || object.Step != "closing" && object.Milliseconds == nil {
			t.Errorf("step %s", line)
		}
		if object.State != "waiting" {
			steps[object.Step] += object.State
		}
	}
	for step, state := range steps {
		if state != "done" && state != "already" {
			t.Errorf("step %s is told as %s", step, state)
		}
	}
	if len(steps) < kills || steps["closing"] == "" || errs != "" {
		t.Errorf("%d steps: %v; on standard error: %q", len(steps), steps, errs)
	}
	wantHub(t, hub)

	t.Run("two at once", func(t *testing.T) { twoAtOnce(t, hub) })
	t.Run("at any time", func(t *testing.T) { killedAnytime(t, hub) })
}

// GEN-3: of two at once the second refuses with a sentence, and the first makes the mesh.
func twoAtOnce(t *testing.T, hub *netns.Host) {
	wipe(t, hub)
	first := hub.Command(t.Context(), beds.Line(founding(hub)...)...)
	said, err := first.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "done     prepare the state folder") { // then it has the lock
	}
	_, errs := command(t, hub, 3, founding(hub)...)
	if !strings.Contains(errs, "error: lock /var/lib/mesh/lock: process ") || !strings.Contains(errs, `"mesh genesis" holds it`) || !strings.Contains(errs, "hint: ") {
		t.Errorf("the second said:\n%s", errs)
	}
	for lines.Scan() {
		t.Log(lines.Text())
	}
	if err := first.Wait(); err != nil {
		t.Error(err)
	}
	wantHub(t, hub)
}

// anytimes is how often genesis is killed at a random time.
const anytimes = 8

// GEN-3, GEN-9: killed at any time, or with the whole machine, the same command finishes the same mesh.
func killedAnytime(t *testing.T, hub *netns.Host) {
	seed := uint64(time.Now().UnixNano())
	if given, err := strconv.ParseUint(os.Getenv("LAB_SEED"), 10, 64); err == nil {
		seed = given
	}
	t.Logf("LAB_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	wipe(t, hub)
	begun := time.Now()
	command(t, hub, 0, founding(hub)...)
	takes := time.Since(begun)
	t.Logf("genesis takes %s", takes)
	for i := range anytimes {
		wipe(t, hub)
		part := random.Float64()
		after := time.Duration(part * part * float64(takes)) // most steps are early ones
		cmd := hub.Command(t.Context(), beds.Line(founding(hub)...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(after)
		crash(cmd)
		gone(t, hub)
		what := "genesis"
		if i%2 == 1 {
			what = "the machine"
			if err := hub.Reboot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		before := made(t, hub)
		begun := time.Now()
		command(t, hub, 0, founding(hub)...)
		t.Logf("%s killed after %s with %d things made; finished in %s", what, after, len(before), time.Since(begun))
		same(t, before, made(t, hub))
		if wantHub(t, hub); t.Failed() {
			t.Fatalf("LAB_SEED=%d, round %d", seed, i)
		}
	}
}
