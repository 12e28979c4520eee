package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/hosttest"
	"github.com/novox/mesh/appliance/wire"
)

func resource(id string, spec any, after ...string) wire.Resource {
	data, err := wire.Encode(spec)
	if err != nil {
		panic(err)
	}
	part := strings.Split(id, "/")
	return wire.Resource{ID: id, Instance: appliance.InstanceName(part[0]), Kind: wire.ResourceKind(part[1]), After: after, Spec: data}
}

// web is an instance with one of each kind; its process reloads when conf changes.
func web(conf string) []wire.Resource {
	return []wire.Resource{
		resource("web/package/httpd", wire.PackageSpec{Names: map[string]string{"apt": "httpd"}}),
		resource("web/user/web", wire.UserSpec{Name: "web"}),
		resource("web/directory/etc", wire.DirectorySpec{Path: "/m/web/etc", Class: "config", Owner: "web", Group: "web", Mode: "0750"}, "web/user/web"),
		resource("web/directory/data", wire.DirectorySpec{Path: "/m/web/data", Class: "data", Owner: "web", Group: "web", Mode: "0750"}, "web/user/web"),
		resource("web/file/conf", wire.FileSpec{Path: "/m/web/etc/conf", Owner: "web", Group: "web", Mode: "0640", Content: conf}, "web/directory/etc", "web/user/web"),
		resource("web/process/main", wire.ProcessSpec{Name: "main", User: "web", Command: []string{"httpd"}, Run: wire.Run{Restart: "always",
			OnChange: map[string]string{"web/file/conf": "reload"}}}, "web/directory/data", "web/directory/etc", "web/file/conf", "web/package/httpd", "web/user/web"),
	}
}

// bench is an engine on a fake machine that can be killed and opened again.
type bench struct {
	*hosttest.Machine
	t   *testing.T
	dir string
}

func newBench(t *testing.T) *bench { return &bench{hosttest.New(), t, t.TempDir()} }

// apply opens the state from disk as a fresh agent does, applies, and keeps the account as the agent's loop does.
func (b *bench) apply(desired []wire.Resource, carried bool) ([]wire.Outcome, error) {
	b.t.Helper()
	s, err := openState(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	outcomes, err := (&Engine{machine: b.Host(), state: s}).apply(b.t.Context(), desired, carried)
	if err != nil {
		return nil, err
	}
	s.applied.Outcomes = outcomes
	return outcomes, s.saveApplied()
}

// want applies and compares the account and what was typed.
func (b *bench) want(desired []wire.Resource, account, commands string) {
	b.t.Helper()
	outcomes, err := b.apply(desired, false)
	if err != nil {
		b.t.Fatal(err)
	}
	if d := cmp.Diff(text(account), lines(outcomes)); d != "" {
		b.t.Error("account (-want +got):\n" + d)
	}
	if d := cmp.Diff(text(commands), b.Commands()); d != "" {
		b.t.Error("commands (-want +got):\n" + d)
	}
}

func text(s string) (out []string) {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

func lines(outcomes []wire.Outcome) (out []string) {
	for _, o := range outcomes {
		out = append(out, strings.TrimSpace(strings.Join([]string{string(o.Status), o.ID, o.Step, o.Error}, " ")))
	}
	return out
}

const webMade = `
	apt-get install httpd
	useradd --system --home-dir /nonexistent web
	install -d -o web -g web -m 0750 /m/web/etc
	install -d -o web -g web -m 0750 /m/web/data
	install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 7692c3ad3540
	systemctl start web-main # web: ["httpd"]`

// DEC-4: in order; the second time nothing; what left is removed in reverse, but for data with its user, which a later assignment
// takes up again (MOD-10).
func TestOrderAndRemoval(t *testing.T) {
	b := newBench(t)
	b.want(web("one"), `
		applied web/package/httpd
		applied web/user/web
		applied web/directory/etc
		applied web/directory/data
		applied web/file/conf
		applied web/process/main`, webMade)
	unchanged := `
		unchanged web/package/httpd
		unchanged web/user/web
		unchanged web/directory/etc
		unchanged web/directory/data
		unchanged web/file/conf
		unchanged web/process/main`
	b.want(web("one"), unchanged, "")
	b.want(nil, `
		removed web/process/main
		removed web/file/conf
		kept web/directory/data
		removed web/directory/etc
		kept web/user/web
		removed web/package/httpd`, `
		systemctl stop web-main
		rm /m/web/etc/conf
		rm -r /m/web/etc
		apt-get remove httpd`)
	s, err := openState(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]wire.Kept{{Instance: "web", Path: "/m/web/data"}}, withoutTimes(keptData(s.applied.Records))); d != "" {
		t.Error(d)
	}
	b.want(nil, "", "")
	b.want(web("one"), `
		applied web/package/httpd
		unchanged web/user/web
		applied web/directory/etc
		unchanged web/directory/data
		applied web/file/conf
		applied web/process/main`, `
		apt-get install httpd
		install -d -o web -g web -m 0750 /m/web/etc
		install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 7692c3ad3540
		systemctl start web-main # web: ["httpd"]`)
	b.want(web("one"), unchanged, "")
}

func withoutTimes(kept []wire.Kept) []wire.Kept {
	for i := range kept {
		kept[i].Since = time.Time{}
	}
	return kept
}

// DEC-4: what is carried is never removed by a declaration, and what is declared never by raising.
func TestCarriedAndDeclared(t *testing.T) {
	b := newBench(t)
	own := []wire.Resource{resource("base/user/base", wire.UserSpec{Name: "base"})}
	other := []wire.Resource{resource("hello/user/hello", wire.UserSpec{Name: "hello"})}
	if _, err := b.apply(own, true); err != nil {
		t.Fatal(err)
	}
	b.want(other, "applied hello/user/hello", "useradd --system --home-dir /nonexistent base\nuseradd --system --home-dir /nonexistent hello")
	b.want(slices.Concat(own, other), "unchanged base/user/base\nunchanged hello/user/hello", "")
	b.want(other, "unchanged hello/user/hello", "")
	if _, err := b.apply(own, true); err != nil {
		t.Fatal(err)
	}
	b.want(nil, "removed hello/user/hello", "userdel hello")
	if _, err := b.apply(nil, true); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("useradd --system --home-dir /nonexistent base\n", b.String()); d != "" {
		t.Error(d)
	}
}

// DEC-5: a failing resource fails what depends on it and nothing else; removal waits for what could not be removed.
func TestFailureStaysWhereItIs(t *testing.T) {
	b := newBench(t)
	list := append(web("one"), resource("other/user/other", wire.UserSpec{Name: "other"}))
	b.Fail("web/directory/etc", "do", errors.New("read-only"), 1)
	b.SetLog("web/process/main", "a", "b")
	b.want(list, `
		applied web/package/httpd
		applied web/user/web
		failed web/directory/etc do read-only
		applied web/directory/data
		failed web/file/conf wait depends on web/directory/etc, which did not come about
		failed web/process/main wait depends on web/directory/etc, which did not come about
		applied other/user/other`, `
		apt-get install httpd
		useradd --system --home-dir /nonexistent web
		install -d -o web -g web -m 0750 /m/web/data
		useradd --system --home-dir /nonexistent other`)
	if _, err := b.apply(list, false); err != nil {
		t.Fatal(err)
	}
	b.Commands()
	b.Fail("web/process/main", "undo", errors.New("it does not stop"), 1)
	b.want(nil, `
		failed web/process/main undo it does not stop
		failed web/file/conf wait web/process/main depends on it, and is not removed yet
		removed other/user/other
		failed web/directory/data wait web/process/main depends on it, and is not removed yet
		failed web/directory/etc wait web/process/main depends on it, and is not removed yet
		failed web/user/web wait web/process/main depends on it, and is not removed yet
		failed web/package/httpd wait web/process/main depends on it, and is not removed yet`, "userdel other")
	b.want(nil, `
		removed web/process/main
		removed web/file/conf
		kept web/directory/data
		removed web/directory/etc
		kept web/user/web
		removed web/package/httpd`, `
		systemctl stop web-main
		rm /m/web/etc/conf
		rm -r /m/web/etc
		apt-get remove httpd`)
}

// DEC-5: a failed process shows the end of its log.
func TestFailedProcessShowsItsLog(t *testing.T) {
	b := newBench(t)
	var wrote []string
	for i := range 30 {
		wrote = append(wrote, fmt.Sprint("line ", i))
	}
	b.SetLog("web/process/main", wrote...)
	b.Fail("web/process/main", "do", errors.New("exit status 1"), 1)
	outcomes, err := b.apply(web("one"), false)
	if err != nil {
		t.Fatal(err)
	}
	if got := outcomes[5].Log; !slices.Equal(got, wrote[20:]) {
		t.Errorf("log %q, want the last ten lines", got)
	}
}

// DEC-11: a process takes up what changed beneath it; a failure of that is retried, and a kill in between does not lose it.
func TestOnChange(t *testing.T) {
	b := newBench(t)
	if _, err := b.apply(web("one"), false); err != nil {
		t.Fatal(err)
	}
	b.Commands()
	step := "applied web/file/conf"
	account := func(process string) string {
		return "unchanged web/package/httpd\nunchanged web/user/web\nunchanged web/directory/etc\nunchanged web/directory/data\n" + step + "\n" + process
	}
	b.want(web("two"), account("applied web/process/main reload"), `
		install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 3fc4ccfe7458
		systemctl reload web-main`)
	b.Fail("web/process/main", "act", errors.New("no answer"), 1)
	b.want(web("one"), account("failed web/process/main reload no answer"), "install -o web -g web -m 0640 /m/web/etc/conf # 3 bytes, 7692c3ad3540")
	step = "unchanged web/file/conf"
	b.want(web("one"), account("applied web/process/main reload"), "systemctl reload web-main")
	b.want(web("one"), account("unchanged web/process/main"), "")

	killed := errors.New("killed")
	b.Hook = func(_ context.Context, step, id string) error {
		if step == "act" {
			panic(killed)
		}
		return nil
	}
	dies(t, killed, func() { b.apply(web("two"), false) })
	b.Hook = nil
	b.Commands()
	b.want(web("two"), account("applied web/process/main reload"), "systemctl reload web-main")
}

// errKilled is how a kill looks in a test.
var errKilled = errors.New("killed")

// dieAt kills whoever uses the machine at the step after n others: before it, or after it has had its effect.
func (b *bench) dieAt(n int, after bool) {
	b.Hook = func(_ context.Context, step, id string) error {
		if n--; n == -1 {
			if !after {
				panic(errKilled)
			}
			b.FailAfter(id, step, errKilled, 1)
		}
		return nil
	}
}

// survive applies like apply; a kill ends it.
func (b *bench) survive(desired []wire.Resource) {
	b.t.Helper()
	defer func() {
		if r := recover(); r != nil && r != errKilled {
			panic(r)
		}
	}()
	s, err := openState(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	outcomes, err := (&Engine{machine: b.Host(), state: s, told: func(o wire.Outcome) {
		if o.Error == errKilled.Error() { // the effect is there and nothing after it happened
			panic(errKilled)
		}
	}}).apply(b.t.Context(), desired, false)
	if err != nil {
		b.t.Fatal(err)
	}
	s.applied.Outcomes = outcomes
	if err := s.saveApplied(); err != nil {
		b.t.Fatal(err)
	}
}

func dies(t *testing.T, of error, f func()) {
	t.Helper()
	defer func() {
		if r := recover(); r != of {
			t.Errorf("ended with %v, want a kill", r)
		}
	}()
	f()
}

// SAFE-5, DEC-13: killed before or after any step, the next agent comes to the same end, and what was on the machine before the mesh
// comes back when the mesh goes.
func TestKilledAtEveryStep(t *testing.T) {
	old := hosttest.Entry{Owner: "root", Group: "root", Mode: "0600", Content: "mine"}
	before := func(b *bench) {
		b.Put("/m/web/etc", hosttest.Entry{Folder: true, Owner: "root", Group: "root", Mode: "0755"})
		b.Put("/m/web/etc/conf", old)
		b.AddPackage("httpd")
	}
	plain := newBench(t)
	before(plain)
	if _, err := plain.apply(web("one"), false); err != nil {
		t.Fatal(err)
	}
	whole := plain.String()
	steps := len(plain.Steps())
	if _, err := plain.apply(nil, false); err != nil {
		t.Fatal(err)
	}
	steps += len(plain.Steps())
	end := plain.String()
	if !strings.Contains(end, "httpd") || !strings.Contains(end, old.Mode) {
		t.Fatalf("what was there before is not back:\n%s", end)
	}
	for n := range steps {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("step %d after %v", n, after), func(t *testing.T) {
				b := newBench(t)
				before(b)
				b.dieAt(n, after)
				run := b.survive
				run(web("one"))
				run(web("one"))
				if d := cmp.Diff(whole, b.String()); d != "" {
					t.Errorf("applied (-want +got):\n%s", d)
				}
				run(nil)
				run(nil)
				if d := cmp.Diff(end, b.String()); d != "" {
					t.Errorf("removed (-want +got):\n%s", d)
				}
			})
		}
	}
}

// DEC-14, SAFE-5: what could not be stored is not begun, and nothing of it is remembered: the next try asks anew what was there before.
func TestNothingAppliedThatCouldNotBeStored(t *testing.T) {
	b := newBench(t)
	s, err := openState(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{machine: b.Host(), state: s}
	way := filepath.Join(b.dir, "applied.json.tmp") // where the file is first written
	if err := errors.Join(os.Mkdir(way, 0o700), os.WriteFile(filepath.Join(way, "in the way"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	outcomes, err := e.apply(t.Context(), web("one")[:2], false)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range outcomes {
		if o.Status != wire.Failed || o.Step != "record" || !strings.Contains(o.Error, "applied.json") {
			t.Errorf("%+v", o)
		}
	}
	if c := b.Commands(); len(c) > 0 || len(s.applied.Records) > 0 {
		t.Errorf("done without a record: %q; remembered %v", c, s.applied.Records)
	}
	if err := os.RemoveAll(way); err != nil {
		t.Fatal(err)
	}
	b.Hook = func(_ context.Context, step, id string) error {
		if onDisk, _, _, err := Records(b.dir); step == "do" && !slices.ContainsFunc(onDisk, func(r Record) bool { return r.Resource.ID == id }) {
			t.Errorf("%s is begun and not on disk: %v, %v", id, onDisk, err)
		}
		return nil
	}
	if outcomes, err = e.apply(t.Context(), web("one")[:2], false); err != nil || !clean(outcomes) {
		t.Errorf("%v, %v", outcomes, err)
	}
}

// SAFE-1, UPG: a state of a newer version and a damaged one are refused, naming the file.
func TestStateRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"newer applied": {"applied.json", `{"version": 2}`, "written by a newer mesh (version 2, this one reads 1)"},
		"newer outbox":  {"outbox.json", `{"version": 9}`, "written by a newer mesh (version 9, this one reads 1)"},
		"half":          {"applied.json", `{"version": 1, "rec`, "applied.json: unexpected end of JSON input"},
		"empty":         {"outbox.json", ``, "outbox.json: unexpected end of JSON input"},
		"zeros":         {"applied.json", "\x00\x00\x00", "applied.json: invalid character"},
		"another type":  {"applied.json", `{"version": 1, "records": {}}`, "applied.json: json: cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, tc.file), []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := openState(dir)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if data, err := os.ReadFile(filepath.Join(dir, tc.file)); err != nil || string(data) != tc.text {
				t.Errorf("the file was changed: %q, %v", data, err)
			}
		})
	}
	if _, err := openState(t.TempDir()); err != nil {
		t.Error("a fresh folder:", err)
	}
}

// SAFE-2: a declaration's body that is not one is refused whole.
func TestContentRefused(t *testing.T) {
	good, err := wire.Encode(wire.Content{Version: wire.Version, Resources: web("one")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeContent(good); err != nil {
		t.Fatal(err)
	}
	twice := append(web("one"), web("one")[0])
	later := web("one")
	slices.Reverse(later)
	encode := func(version int, list []wire.Resource) string {
		data, err := json.Marshal(wire.Content{Version: version, Resources: list})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, body := range map[string]string{
		"nothing": "", "not json": "{", "trailing": string(good) + "{}", "unknown field": `{"version":1,"resources":[],"more":1}`,
		"newer": encode(wire.Version+1, nil), "older": encode(0, web("one")), "id twice": encode(wire.Version, twice), "after what follows": encode(wire.Version, later),
		"no id": `{"version":1,"resources":[{"id":"","instance":"a","kind":"user","spec":{}}]}`, "huge number": `{"version":1e99,"resources":[]}`,
	} {
		if c, err := decodeContent([]byte(body)); err == nil {
			t.Errorf("%s: read as %+v", name, c)
		}
	}
}
