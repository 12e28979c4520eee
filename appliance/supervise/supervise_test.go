package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/novox/mesh/appliance"
)

// The test binary is also the supervisor, and the processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "supervise" {
		if err := Run(context.Background(), os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 2 && os.Args[1] == "child" {
		behave(os.Args[2])
	}
	os.Exit(m.Run())
}

// stay never returns. An empty select would be a deadlock to a runtime in which nothing else can happen.
func stay() {
	for {
		time.Sleep(time.Hour)
	}
}

// behave is a process that behaves as how says.
func behave(how string) {
	fmt.Println("began", how)
	switch how {
	case "stays":
		stay()
	case "hears":
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT, syscall.SIGTERM)
		fmt.Println("ready")
		for s := range heard {
			fmt.Println("heard", s)
		}
	case "deaf": // with a grandchild that left the session
		signal.Ignore(syscall.SIGTERM)
		for range 2 {
			c := exec.Command(os.Args[0], "child", "stays")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := c.Start(); err != nil {
				fmt.Println(err)
			}
			os.WriteFile(fmt.Sprintf("grandchild.%d", c.Process.Pid), nil, 0o644)
		}
		os.WriteFile("ready", nil, 0o644)
		stay()
	case "leaves": // a grandchild behind, and ends
		c := exec.Command(os.Args[0], "child", "stays")
		c.Start()
		os.WriteFile(fmt.Sprintf("grandchild.%d", c.Process.Pid), nil, 0o644)
		os.Exit(0)
	case "crashes":
		os.Exit(3)
	case "writes":
		line := []byte(strings.Repeat("x", 99) + "\n")
		for range 100_000 {
			os.Stdout.Write(line)
		}
		fmt.Println("the last line")
		stay()
	case "files":
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			at, _ := os.Readlink("/proc/self/fd/" + e.Name())
			fmt.Println(at)
		}
		fmt.Println("all")
		stay()
	case "says":
		data, _ := os.ReadFile("/proc/self/status")
		for l := range strings.Lines(string(data)) {
			if strings.HasPrefix(l, "NoNewPrivs") || strings.HasPrefix(l, "Uid") || strings.HasPrefix(l, "CapEff") {
				fmt.Print(l)
			}
		}
		f, err := os.OpenFile("/dev/stderr", os.O_WRONLY|os.O_APPEND, 0)
		fmt.Println("stderr:", err)
		if err == nil {
			f.Close()
		}
		fmt.Println(os.Environ())
		_, err = io.Copy(io.Discard, os.Stdin)
		fmt.Println("stdin:", err)
		stay()
	}
	os.Exit(0)
}

func command(t *testing.T) []string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{exe, "supervise"}
}

func specFor(t *testing.T, how string) Spec {
	return Spec{Command: []string{command(t)[0], "child", how}, Directory: t.TempDir(), Restart: Always, Stop: 300 * time.Millisecond,
		UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
}

// folder is one that nothing outlives.
func folder(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "process")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := Remove(ctx, dir); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	return dir
}

func start(t *testing.T, dir string, s Spec) Status {
	t.Helper()
	if err := Start(t.Context(), dir, s, command(t)); err != nil {
		t.Fatal(err)
	}
	return get(t, dir)
}

func get(t *testing.T, dir string) Status {
	t.Helper()
	s, err := Get(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// await polls until what gives the empty reason.
func await(t *testing.T, what func() (missing string)) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for {
		missing := what()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still: %s", missing)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
}

func awaitStatus(t *testing.T, dir string, is func(Status) bool) (s Status) {
	t.Helper()
	await(t, func() string {
		if s = get(t, dir); is(s) {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
	return s
}

func supervisorOf(t *testing.T, dir string) identity {
	t.Helper()
	var s state
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err != nil || json.Unmarshal(data, &s) != nil {
		t.Fatal("read state", err)
	}
	return s.Supervisor
}

func awaitLine(t *testing.T, dir, want string) {
	t.Helper()
	await(t, func() string {
		lines, err := Log(dir, 1)
		if err != nil || len(lines) == 0 || lines[0] != want {
			return fmt.Sprintf("no line %q but %q, %v", want, lines, err)
		}
		return ""
	})
}

func killSupervisor(t *testing.T, dir string) {
	t.Helper()
	i := supervisorOf(t, dir)
	i.signal(unix.SIGKILL)
	await(t, func() string {
		if i.alive() || supervised(dir) {
			return "supervisor lives"
		}
		return ""
	})
}

// DEC-8, SAFE-5: the process outlives its supervisor, is taken over, and its exit is seen.
func TestTakeOver(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	first := start(t, dir, spec)
	if first.State != "running" || !first.Supervised || first.PID == 0 {
		t.Fatalf("%+v", first)
	}
	killSupervisor(t, dir)
	if s := get(t, dir); s.State != "running" || s.Supervised || s.PID != first.PID {
		t.Fatalf("without supervisor: %+v", s)
	}
	if s := start(t, dir, spec); s.PID != first.PID || !s.Supervised || s.Restarts != 0 || !s.Since.Equal(first.Since) {
		t.Fatalf("taken over: %+v, was %+v", s, first)
	}
	if s := start(t, dir, spec); s.PID != first.PID {
		t.Fatalf("started twice: %+v", s)
	}
	syscall.Kill(first.PID, syscall.SIGKILL)
	s := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" && s.PID != first.PID })
	if s.Restarts != 1 || !strings.Contains(s.LastExit, "not seen") {
		t.Errorf("%+v", s)
	}
	pid := s.PID
	syscall.Kill(pid, syscall.SIGKILL)
	if s := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" && s.PID != pid }); s.LastExit != "signal: killed" {
		t.Errorf("%+v", s)
	}
}

// DEC-8: never a second: the child's end while no supervisor is there, and two supervisors.
func TestSecondSupervisor(t *testing.T) {
	dir := folder(t)
	first := start(t, dir, specFor(t, "stays"))
	out, err := exec.Command(command(t)[0], "supervise", dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a supervisor runs already") {
		t.Errorf("second supervisor: %v: %s", err, out)
	}
	if s := get(t, dir); s.PID != first.PID {
		t.Errorf("%+v", s)
	}
	killSupervisor(t, dir)
	syscall.Kill(first.PID, syscall.SIGKILL)
	await(t, func() string {
		if s := get(t, dir); s.State != "missing" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	start(t, dir, specFor(t, "stays"))
	awaitStatus(t, dir, func(s Status) bool { return s.State == "running" && s.PID != first.PID })
}

// DEC-8: a folder that somebody removes comes back around the same process, answers, and keeps it up; so no second one is started.
func TestFolderRemoved(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	first := start(t, dir, spec)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if s := awaitStatus(t, dir, func(s Status) bool { return s.Supervised && s.State == "running" }); s.PID != first.PID {
		t.Fatalf("%+v, was %+v", s, first)
	}
	awaitLine(t, dir, "supervisor: made the folder anew, which was removed")
	if s := start(t, dir, spec); s.PID != first.PID || s.Restarts != 0 {
		t.Fatalf("started again: %+v, was %+v", s, first)
	}
	syscall.Kill(first.PID, syscall.SIGKILL)
	awaitStatus(t, dir, func(s Status) bool { return s.State == "running" && s.PID != first.PID })
	awaitLine(t, dir, "began stays")
}

// DEC-8: where another supervisor was faster in a removed folder, the first one ends its process and goes.
func TestFolderTaken(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	first, supervisor := start(t, dir, spec), supervisorOf(t, dir)
	supervisor.signal(unix.SIGSTOP)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	start(t, dir, spec)
	supervisor.signal(unix.SIGCONT)
	await(t, func() string {
		if supervisor.alive() || pidAlive(first.PID) {
			return "the first supervisor or its process lives"
		}
		return ""
	})
	if s := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" }); s.PID == first.PID || supervisorOf(t, dir) == supervisor {
		t.Errorf("%+v", s)
	}
}

// SAFE-4: what whoever starts a supervisor has open, an installer's files or a shell's, is not handed to the process.
func TestNothingOpenIsHandedOn(t *testing.T) {
	dir, secret := folder(t), filepath.Join(t.TempDir(), "secret")
	fd, err := unix.Open(secret, unix.O_CREAT|unix.O_RDWR, 0o600) // as a shell opens it: for all it starts
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	start(t, dir, specFor(t, "files"))
	awaitLine(t, dir, "all")
	lines, err := Log(dir, 20)
	if err != nil || strings.Contains(strings.Join(lines, " "), secret) {
		t.Errorf("the process has open: %q, %v", lines, err)
	}
}

func TestBackoff(t *testing.T) {
	dir := folder(t)
	start(t, dir, specFor(t, "crashes"))
	s := awaitStatus(t, dir, func(s Status) bool { return s.Restarts >= 4 })
	if s.LastExit != "exit status 3" {
		t.Errorf("%+v", s)
	}
	st := readState(dir)
	for i, least := range []time.Duration{firstDelay, 2 * firstDelay, 4 * firstDelay} {
		if got := st.Restarts[i+1].Sub(st.Restarts[i]); got < least {
			t.Errorf("restart %d after %s, want at least %s", i+1, got, least)
		}
	}
	if delay(100) != longest || delay(0) != firstDelay {
		t.Error(delay(100), delay(0))
	}
	if s := start(t, dir, specFor(t, "stays")); s.State != "running" || s.Restarts != 0 {
		t.Errorf("mended, and yet it answers for what ran before: %+v", s)
	}
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		how, policy string
		restarts    bool
	}{{"crashes", Never, false}, {"leaves", OnFailure, false}, {"crashes", OnFailure, true}, {"leaves", Always, true}} {
		t.Run(c.how+" "+c.policy, func(t *testing.T) {
			dir := folder(t)
			spec := specFor(t, c.how)
			spec.Restart = c.policy
			start(t, dir, spec)
			if c.restarts {
				awaitStatus(t, dir, func(s Status) bool { return s.Restarts > 1 })
				return
			}
			awaitStatus(t, dir, func(s Status) bool { return s.State == "stopped" })
			killSupervisor(t, dir)
			if s := start(t, dir, spec); s.State != "stopped" || s.Restarts != 0 {
				t.Errorf("after it ended: %+v", s)
			}
		})
	}
}

func TestSpecChange(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	first := start(t, dir, spec)
	spec.Restart, spec.Stop = OnFailure, time.Second
	if s := start(t, dir, spec); s.PID != first.PID {
		t.Error("restarted though it is made of the same")
	}
	spec.Environment = map[string]string{"A": "b"}
	second := start(t, dir, spec)
	if second.PID == first.PID || second.Restarts != 0 {
		t.Errorf("%+v", second)
	}
	killSupervisor(t, dir)
	spec.Environment["A"] = "c"
	if s := start(t, dir, spec); s.PID == second.PID {
		t.Error("the next supervisor left what was made of something else")
	}
	if pidAlive(second.PID) {
		t.Error("two run")
	}
}

func pidAlive(pid int) bool { p, ok := look(pid); return ok && !p.dead }

func grandchildren(t *testing.T, dir string) (pids []int) {
	matches, _ := filepath.Glob(filepath.Join(dir, "grandchild.*"))
	for _, m := range matches {
		pid, _ := strconv.Atoi(strings.TrimPrefix(filepath.Ext(m), "."))
		pids = append(pids, pid)
	}
	return pids
}

// DEC-8: stop ends everything the process started, also what left its session and what ignores SIGTERM; with the supervisor or without.
func TestStopEndsAll(t *testing.T) {
	for _, with := range []string{"supervisor", "none"} {
		t.Run(with, func(t *testing.T) {
			dir := folder(t)
			spec := specFor(t, "deaf")
			s := start(t, dir, spec)
			await(t, func() string {
				if _, err := os.Stat(filepath.Join(spec.Directory, "ready")); err != nil {
					return err.Error()
				}
				return ""
			})
			pids := append(grandchildren(t, spec.Directory), s.PID)
			if len(pids) != 3 {
				t.Fatal(pids)
			}
			if with == "supervisor" {
				began := time.Now()
				if err := Stop(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took < spec.Stop {
					t.Errorf("killed after %s", took)
				}
				if s := get(t, dir); s.State != "stopped" || !s.Supervised {
					t.Errorf("%+v", s)
				}
			} else {
				killSupervisor(t, dir)
				if err := Terminate(t.Context(), dir); err != nil {
					t.Fatal(err)
				}
			}
			for _, pid := range pids {
				if pidAlive(pid) {
					t.Errorf("process %d lives", pid)
				}
			}
			if root := groupRoot(); root != "" {
				if _, err := os.Stat(filepath.Join(root, groupName(dir))); !os.IsNotExist(err) {
					t.Errorf("cgroup: %v", err)
				}
			}
			if s := start(t, dir, spec); s.State != "running" {
				t.Errorf("started again: %+v", s)
			}
		})
	}
}

// What a crashed process left behind is gone before the next one starts.
func TestOrphansOfACrash(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "leaves")
	spec.Restart = Never
	start(t, dir, spec)
	awaitStatus(t, dir, func(s Status) bool { return s.State == "stopped" })
	for _, pid := range grandchildren(t, spec.Directory) {
		if pidAlive(pid) {
			t.Errorf("process %d lives", pid)
		}
	}
}

// A supervisor killed while it stops its process: the next one finishes the stop.
func TestStopIsFinished(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "deaf")
	spec.Stop = time.Minute
	s := start(t, dir, spec)
	await(t, func() string {
		if _, err := os.Stat(filepath.Join(spec.Directory, "ready")); err != nil {
			return err.Error()
		}
		return ""
	})
	stopping := make(chan error, 1)
	go func() { stopping <- Stop(context.Background(), dir) }()
	awaitStatus(t, dir, func(s Status) bool { return s.Stopped })
	killSupervisor(t, dir)
	if err := <-stopping; appliance.KindOf(err) != appliance.NotReady {
		t.Errorf("stop: %v", err)
	}
	spec.Version, spec.Stop = Version, 100*time.Millisecond
	if err := writeSpec(dir, spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, dir) }()
	awaitStatus(t, dir, func(s Status) bool { return s.State == "stopped" })
	if pidAlive(s.PID) {
		t.Error("the process lives")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// DEC-11
func TestSignals(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "hears")
	spec.Stop = 10 * time.Millisecond
	start(t, dir, spec)
	awaitLine(t, dir, "ready")
	if err := Reload(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, dir, "heard hangup")
	for name, number := range Signals {
		if err := Signal(t.Context(), dir, name); err != nil {
			t.Error(err)
		}
		awaitLine(t, dir, "heard "+number.String())
	}
	for _, name := range []string{"KILL", "", "9", "HUP/"} {
		if err := Signal(t.Context(), dir, name); appliance.KindOf(err) != appliance.Invalid {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := Stop(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if err := Signal(t.Context(), dir, "HUP"); appliance.KindOf(err) != appliance.NotReady {
		t.Errorf("a process that is stopped: %v", err)
	}
}

// foreign is a process that has nothing to do with the mesh.
func foreign(t *testing.T) identity {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	p, _ := look(cmd.Process.Pid)
	return p.identity
}

// DEC-8: known by (boot id, pid, start time): nothing else is taken over, and nothing else is killed. SAFE-5: a half-written file.
func TestWrongState(t *testing.T) {
	for name, corrupt := range map[string]func(s *state, other identity) []byte{
		"other boot": func(s *state, other identity) []byte { s.Boot, s.Child = "before", other; return nil },
		"pid reused": func(s *state, other identity) []byte { s.Child = identity{other.PID, other.Start - 1}; return nil },
		"no pid":     func(s *state, other identity) []byte { s.Child = identity{-1, 0}; return nil },
		"truncated":  func(s *state, other identity) []byte { return []byte(`{"version": 1, "boot`) },
		"empty":      func(s *state, other identity) []byte { return []byte{} },
		"huge":       func(s *state, other identity) []byte { return make([]byte, maxFile+1) },
		"other form": func(s *state, other identity) []byte { return []byte(`{"version": 7, "child": 3}`) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, other := folder(t), foreign(t)
			spec := specFor(t, "stays")
			first := start(t, dir, spec)
			killSupervisor(t, dir)
			s := readState(dir)
			data := corrupt(s, other)
			if data == nil {
				data, _ = json.Marshal(s)
			}
			if err := os.WriteFile(filepath.Join(dir, "state.json"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			start(t, dir, spec)
			now := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" })
			if now.PID == other.PID || now.PID == first.PID || !other.alive() {
				t.Errorf("now %d, was %d, foreign %d alive %v", now.PID, first.PID, other.PID, other.alive())
			}
			if pidAlive(first.PID) {
				t.Error("two run")
			}
			if err := Stop(t.Context(), dir); err != nil || !other.alive() {
				t.Errorf("stop: %v, foreign alive %v", err, other.alive())
			}
		})
	}
}

// Without cgroups the members are found by marker and by session, and a stale leader's number proves nothing.
func TestMembersWithoutCgroup(t *testing.T) {
	dir, other := folder(t), foreign(t)
	spec := specFor(t, "deaf")
	s := start(t, dir, spec)
	await(t, func() string {
		if _, err := os.Stat(filepath.Join(spec.Directory, "ready")); err != nil {
			return err.Error()
		}
		return ""
	})
	leader, _ := look(s.PID)
	if found := members(dir, "", leader.identity); len(found) != 3 {
		t.Errorf("found %v, want 3", found)
	}
	if found := members("/elsewhere", "", other); len(found) != 1 || found[0] != other {
		t.Errorf("by session: %v", found)
	}
	if found := members("/elsewhere", "", identity{other.PID, other.Start + 1}); found != nil {
		t.Errorf("by a stale leader: %v", found)
	}
	if err := endGroup(dir, "", leader.identity, nil); err != nil {
		t.Error(err)
	}
	if !other.alive() {
		t.Error("a foreign process was killed")
	}
}

// SAFE-5: a supervisor killed at any point of a start or a restart leaves one process in the end, never two.
func TestKilledAnywhere(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	start(t, dir, spec)
	for i := range 30 {
		spec.Environment = map[string]string{"N": strconv.Itoa(i)} // so that each start restarts
		done := make(chan error, 1)
		go func() { done <- Start(t.Context(), dir, spec, command(t)) }()
		time.Sleep(time.Duration(i) * time.Millisecond) // the point of the kill
		if s := readState(dir).Supervisor; s.alive() {
			s.signal(unix.SIGKILL)
		}
		<-done // whatever came of it
		if err := Start(t.Context(), dir, spec, command(t)); err != nil {
			t.Fatal(err)
		}
		s := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" })
		if found := members(dir, "", identity{}); len(found) != 1 || found[0].PID != s.PID {
			lines, _ := Log(dir, 30)
			t.Fatalf("kill after %d ms: found %v, status %+v\n%s", i, found, s, strings.Join(lines, "\n"))
		}
	}
}

// Processes that fork faster than they can be killed one by one end too, and do not keep the next from starting.
func TestRunaway(t *testing.T) {
	if os.Getuid() != 0 || makeGroup(supervisorsGroup) == "" {
		t.Skip("needs a cgroup v2 hierarchy that may be written: run as root with one mounted")
	}
	dir := folder(t)
	spec := specFor(t, "stays")
	spec.Restart = Never
	stays := spec.Command
	spec.Command = []string{"/bin/sh", "-c", "f() { f & }; f"}
	start(t, dir, spec)
	awaitStatus(t, dir, func(s Status) bool { return s.State == "stopped" })
	if pids := groupPIDs(readState(dir).Group); len(pids) > 0 {
		t.Errorf("still there: %v", pids)
	}
	spec.Command = stays
	if s := start(t, dir, spec); s.State != "running" || !pidAlive(s.PID) {
		t.Errorf("%+v", s)
	}
	awaitLine(t, dir, "began stays")
	if s := get(t, dir); s.State != "running" {
		t.Errorf("%+v", s)
	}
}

// With mount namespaces one path is many folders, whose processes have nothing to do with each other.
func TestOnePathTwoFolders(t *testing.T) {
	dir := folder(t)
	s := start(t, dir, specFor(t, "stays"))
	aside := dir + ".aside"
	if err := os.Rename(dir, aside); err != nil {
		t.Fatal(err)
	}
	other := start(t, dir, specFor(t, "stays"))
	if err := Remove(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if !pidAlive(s.PID) || pidAlive(other.PID) {
		t.Errorf("first alive %v, second alive %v", pidAlive(s.PID), pidAlive(other.PID))
	}
	if err := os.Rename(aside, dir); err != nil {
		t.Fatal(err)
	}
}

func TestLogIsBounded(t *testing.T) {
	dir := folder(t)
	start(t, dir, specFor(t, "writes"))
	awaitLine(t, dir, "the last line")
	await(t, func() string {
		for name, most := range map[string]int64{"log": maxLog, "log.1": maxOld} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || info.Size() > most {
				return fmt.Sprintf("%s: %v %v", name, info, err)
			}
		}
		return ""
	})
}

func TestFirstStartFails(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	spec.Command[0] = "/no/such/program"
	if s := start(t, dir, spec); s.State != "backoff" || !strings.Contains(s.LastExit, "no such file") {
		t.Errorf("%+v", s)
	}
	spec.Command[0] = "relative"
	if err := Start(t.Context(), dir, spec, command(t)); appliance.KindOf(err) != appliance.Invalid {
		t.Error(err)
	}
}

// SAFE-4 and the least a process needs: no privileges, no input, an environment of its own.
func TestDropsPrivileges(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: run the tests as root")
	}
	dir := folder(t)
	spec := specFor(t, "says")
	spec.Directory, spec.UID, spec.GID = "/", 65534, 65534
	exe := filepath.Join(os.TempDir(), fmt.Sprintf("supervise-test-%d", os.Getpid())) // readable for everybody
	data, err := os.ReadFile(spec.Command[0])
	if err != nil || os.WriteFile(exe, data, 0o755) != nil {
		t.Fatal("copy", err)
	}
	t.Cleanup(func() { os.Remove(exe) })
	spec.Command[0] = exe
	t.Setenv(marker, "/of the caller") // who is supervised itself must not lend its mark
	start(t, dir, spec)
	if environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", supervisorOf(t, dir).PID)); err != nil || strings.Contains(string(environment), marker) {
		t.Errorf("supervisor has %q, %v", environment, err)
	}
	var text string
	await(t, func() string {
		lines, _ := Log(dir, 10)
		text = strings.Join(lines, "\n")
		if strings.Contains(text, "stdin") {
			return ""
		}
		return "output: " + text
	})
	for _, want := range []string{"Uid:\t65534\t65534", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "stderr: <nil>", "stdin: <nil>",
		"[" + marker + "=" + key(dir) + " PATH=" + defaultPath + "]"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The end of who started it is not the end of the supervisor, nor is the end of the supervisor's context the process's.
func TestRunLetsGo(t *testing.T) {
	dir := folder(t)
	spec := specFor(t, "stays")
	spec.Version = Version
	os.MkdirAll(dir, 0o700)
	if err := writeSpec(dir, spec); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- Run(ctx, dir) }()
	s := awaitStatus(t, dir, func(s Status) bool { return s.State == "running" && s.Supervised })
	if data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", s.PID)); groupRoot() != "" && !strings.Contains(string(data), groupName(dir)) {
		t.Errorf("cgroups of the process: %s", data)
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s := get(t, dir); s.State != "running" || s.Supervised {
		t.Errorf("%+v", s)
	}
}

// A supervisor that leaves is no answer: who waits for its end goes on waiting.
func TestLeaving(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &supervisor{dir: dir, state: &state{}, requests: make(chan request), over: make(chan struct{})}
	close(s.over)
	go s.serve(l)
	if _, err := ask(t.Context(), dir, verbTerminate); !noAnswer(err) || !strings.Contains(err.Error(), "the supervisor is leaving") {
		t.Errorf("it says %v", err)
	}
}
