package cluster

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/embedded/postgres"
	"github.com/novox/mesh/embedded/postgres/postgrestest"
	"github.com/novox/mesh/genesis"
	"github.com/novox/mesh/genesis/serve"
)

// The helper is this binary run again as the hub's user: it upgrades the installation in the folder, and kills itself with kill -9 once
// it has told so many events (0: never).
const (
	helperFolder = "MESH_TEST_CLUSTER"
	helperFrom   = "MESH_TEST_CLUSTER_FROM"
	helperKill   = "MESH_TEST_CLUSTER_KILL"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperFolder); dir != "" {
		if err := help(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func help(dir string) error {
	i, o := installation.Installation{Dir: dir}, Options{From: os.Getenv(helperFrom)}
	left, _ := strconv.Atoi(os.Getenv(helperKill))
	return Move(context.Background(), i, o, func(e genesis.Event) {
		fmt.Println(e.State, e.Step)
		if e.State == genesis.Started {
			if left--; left == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
		}
	})
}

// hub is an installation whose records are in a cluster of an older major.
type hub struct {
	installation.Installation
	older string // folder of its programs
	major int    // the newer one
	holds map[string]string
	user  *syscall.Credential // nil: this one
}

// found makes a hub with records in it, as the hub's own process would.
func found(t *testing.T) *hub {
	t.Helper()
	h := &hub{older: filepath.Join(postgrestest.Older(t), "bin")}
	var err error
	if _, h.major, err = postgres.Find(""); err != nil {
		t.Fatal(err)
	}
	if h.Dir, err = os.MkdirTemp("", "cluster"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(h.Dir) })
	for _, dir := range []string{h.Hub(), filepath.Dir(serve.Cluster(h.Installation))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := (serve.Settings{Name: "home", PostgresBin: h.older}).Write(h.Installation); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		h.user = &syscall.Credential{Uid: 65534, Gid: 65534}
		if err := os.Chmod(h.Dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(h.Dir, func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, 65534, 65534))
		}); err != nil {
			t.Fatal(err)
		}
	}
	s := h.start(t, h.older)
	records, err := store.Open(t.Context(), store.Config{DSN: s.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	if err := records.CheckDurable(t.Context()); err != nil { // GEN-9, under the older major
		t.Error(err)
	}
	by := store.By{Who: "test", At: time.Now()}
	if err := records.Found(t.Context(), by, genesisOf(t)); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		if err := records.CreateToken(t.Context(), by, store.Token{ID: appliance.NewTokenID(), Uses: 1, Bus: busKey(t), Claim: signingKey(t), ExpiresAt: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	records.Close()
	h.holds = h.contents(t, s)
	return h
}

// start starts the hub's cluster with the given programs; it ends with the test, or before.
func (h *hub) start(t *testing.T, bin string) *postgres.Server {
	t.Helper()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	cfg := serve.StoreConfig(bin, serve.Cluster(h.Installation), filepath.Join(filepath.Dir(serve.Cluster(h.Installation)), "socket"), nil)
	cfg.Map, cfg.Credential = map[string]string{me.Username: "mesh", "nobody": "mesh"}, h.user
	s, err := postgres.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// contents describes what a server holds, and stops it.
func (h *hub) contents(t *testing.T, s *postgres.Server) map[string]string {
	t.Helper()
	holds, err := store.Contents(t.Context(), s.DSN())
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return holds
}

// upgrade runs the helper, which kills itself when it begins its n-th step, or is killed after a while; killed says that it was.
func (h *hub) upgrade(t *testing.T, n int, after time.Duration) (out string, killed bool) {
	t.Helper()
	ctx := t.Context()
	if after > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, after)
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = []string{helperFolder + "=" + h.Dir, helperFrom + "=" + h.older, helperKill + "=" + strconv.Itoa(n)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.user}
	cmd.WaitDelay = 10 * time.Second // what it started ends by itself
	text, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
		return string(text), true
	}
	if err != nil {
		return string(text) + err.Error(), false
	}
	return string(text), false
}

func (h *hub) made(t *testing.T, path string) int {
	t.Helper()
	major, err := postgres.MadeBy(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return major
}

// wantUpgraded: the same records, in the newer major; the old cluster beside them, and nothing else.
func (h *hub) wantUpgraded(t *testing.T) {
	t.Helper()
	bin, err := serve.Programs(h.Installation, settings(t, h.Installation))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.holds, h.contents(t, h.start(t, bin))); diff != "" {
		t.Errorf("records (-before +after):\n%s", diff)
	}
	old := h.made(t, serve.Cluster(h.Installation)+".14")
	if now := h.made(t, serve.Cluster(h.Installation)); now != h.major || old != 14 {
		t.Errorf("clusters of %d and %d", now, old)
	}
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(serve.Cluster(h.Installation)), "*"))
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	if want := []string{"cluster", "cluster.14", "postgresql.log", "socket"}; !slices.Equal(names, want) {
		t.Errorf("left %v, want %v", names, want)
	}
	if s := settings(t, h.Installation); s.PostgresBin != "" {
		t.Errorf("hub.json names %s", s.PostgresBin)
	}
}

func settings(t *testing.T, i installation.Installation) serve.Settings {
	t.Helper()
	s, err := serve.ReadSettings(i)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// GEN-5, SAFE-5: killed before every step, and in the midst of them, the old records stand or the new ones are whole; the same command
// finishes.
func TestKilledAtEveryStep(t *testing.T) {
	h := found(t)
	for _, table := range []string{"table public.token", "table public.audit", "table public.goose_db_version"} {
		if rows, _, _ := strings.Cut(h.holds[table], " "); rows == "" || rows == "0" {
			t.Errorf("%s holds %q", table, h.holds[table])
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 4 {
		after := time.Duration(random.Int64N(int64(1200 * time.Millisecond)))
		if out, killed := h.upgrade(t, 0, after+time.Millisecond); !killed || h.made(t, serve.Cluster(h.Installation)) != 14 {
			t.Logf("killed %v after %s:\n%s", killed, after, out)
			break // it came to the switch
		}
		if diff := cmp.Diff(h.holds, h.contents(t, h.start(t, h.older))); diff != "" {
			t.Fatalf("killed after %s: the old records (-before +after):\n%s", after, diff)
		}
	}
	kills, between := 0, false
	for n := 1; ; n++ {
		out, killed := h.upgrade(t, n, 0)
		if !killed {
			if !strings.HasSuffix(out, "done remove what is not needed any more\n") {
				t.Fatalf("after %d kills:\n%s", kills, out)
			}
			break
		}
		kills++
		if h.made(t, serve.Cluster(h.Installation)) != 0 {
			continue
		}
		if h.made(t, serve.NewCluster(h.Installation)) != h.major {
			t.Fatalf("killed after\n%s\nthere is no cluster", out)
		}
		if !between {
			between, n = true, 0 // what is left to do has steps of its own
		}
	}
	t.Logf("killed %d times", kills)
	if kills < 10 || !between {
		t.Errorf("killed %d times, between the renames: %v", kills, between)
	}
	h.wantUpgraded(t)
}

// GEN-5: what the mesh did not make in the cluster would be lost: it is named, and the old cluster stays in its place.
func TestWhatIsNotCarriedOver(t *testing.T) {
	h := found(t)
	s := h.start(t, h.older)
	stray, err := store.Open(t.Context(), store.Config{DSN: s.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	stray.Close()
	bin, _, err := postgres.Find("")
	if err != nil {
		t.Fatal(err)
	}
	made := exec.Command(filepath.Join(bin, "createdb"), "--host", filepath.Join(filepath.Dir(serve.Cluster(h.Installation)), "socket"), "--username", "mesh", "stray")
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.contents(t, s)
	out, killed := h.upgrade(t, 0, 0)
	if killed || !strings.Contains(out, "failed compare both") || !strings.Contains(out, "the new one is not the same: database stray is missing") {
		t.Errorf("said\n%s", out)
	}
	if h.made(t, serve.Cluster(h.Installation)) != 14 {
		t.Error("the clusters were switched")
	}
}

// GEN-5, SAFE-1: what cannot be is refused with the way out, and nothing is changed.
func TestLook(t *testing.T) {
	newer, major, err := postgres.Find("")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		made     int
		settings serve.Settings
		options  Options
		also     string // a folder that is there, too
		says     []string
	}{
		"another server":        {settings: serve.Settings{StoreFile: "/etc/dsn"}, says: []string{"not the mesh's own", "--store-file"}},
		"no cluster":            {says: []string{"there is no cluster", "mounted"}},
		"programs gone":         {made: 12, says: []string{"PostgreSQL 12, whose programs are not on this machine", "postgresql-12", "postgresql12", "--from-bin DIR"}},
		"programs of another":   {made: 12, options: Options{From: newer}, says: []string{fmt.Sprintf("has PostgreSQL %d, and cluster", major), "was made by 12"}},
		"no programs there":     {made: 12, options: Options{From: "/nowhere"}, says: []string{"/nowhere", "--from-bin names"}},
		"no programs to go to":  {made: 12, options: Options{To: "/nowhere"}, says: []string{"/nowhere", "--to-bin names"}},
		"backwards":             {made: major + 1, says: []string{fmt.Sprintf("was made by PostgreSQL %d, and the newest here is %d", major+1, major), "--to-bin"}},
		"nothing to do":         {made: major},
		"nothing to do, twice":  {made: major, also: ".12"},
		"the newest named":      {made: major, settings: serve.Settings{PostgresBin: newer}},
		"only new, no old kept": {also: ".new", says: []string{"there is no cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := installation.Installation{Dir: t.TempDir()}
			put := func(dir string, major int) {
				if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "PG_VERSION"), fmt.Appendln(nil, major), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(i.Hub(), 0o700); err != nil {
				t.Fatal(err)
			}
			c.settings.Name = "home"
			if err := c.settings.Write(i); err != nil {
				t.Fatal(err)
			}
			if c.made > 0 {
				put(serve.Cluster(i), c.made)
			}
			if c.also != "" {
				put(serve.Cluster(i)+c.also, 12)
			}
			p, err := Look(i, c.options)
			if c.says == nil {
				if err != nil || p.Stage != Done || p.To.Major != major || (p.Kept != "") != (c.also != "") {
					t.Errorf("%+v, %v", p, err)
				}
				return
			}
			e := appliance.AsError(err)
			if err == nil || e.Hint == "" || e.Kind == appliance.Internal {
				t.Fatalf("%+v, %v", p, err)
			}
			for _, want := range c.says {
				if !strings.Contains(e.Text+" "+e.Hint, want) {
					t.Errorf("%s | %s: does not say %q", e.Text, e.Hint, want)
				}
			}
		})
	}
}

// The programs and the kept cluster are looked at before anything is stopped, too.
func TestLookAtBoth(t *testing.T) {
	h := found(t)
	for _, c := range []struct {
		options Options
		mkdir   string
		says    string // empty: it can be
	}{
		{says: ""},
		{options: Options{From: h.older}},
		{options: Options{To: h.older}, says: ""}, // it is of that major: nothing to do
		{mkdir: serve.Cluster(h.Installation) + ".14", says: "cluster.14 is there already"},
	} {
		if c.mkdir != "" {
			if err := os.Mkdir(c.mkdir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Look(h.Installation, c.options)
		switch {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%+v: %v", c, err)
			}
		case err != nil:
			t.Errorf("%+v: %v", c, err)
		case c.options.To != "":
			if p.Stage != Done {
				t.Errorf("%+v: %+v", c, p)
			}
		case p.Stage != Begin || p.From != Side{14, h.older} || p.To.Major != h.major || p.Size < 1<<20:
			t.Errorf("%+v: %+v", c, p)
		}
	}
}

func genesisOf(t *testing.T) store.Genesis {
	t.Helper()
	mesh, err := identity.GenerateMesh()
	if err != nil {
		t.Fatal(err)
	}
	node, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	modules, err := serve.Settings{}.BaseModules()
	if err != nil {
		t.Fatal(err)
	}
	return store.Genesis{
		Mesh: store.Mesh{ID: appliance.NewMeshID(), Name: "home", Range: netip.MustParsePrefix("10.64.0.0/16"), OverlayPort: 51820, Endpoints: []string{"203.0.113.1:4222"},
			Signing: mesh.Signing.Public().(ed25519.PublicKey), Sealing: mesh.Sealing.Recipient().String(), Bus: busKey(t), BusModules: busKey(t), Authority: []byte("authority")},
		Hub: store.Hub{ID: appliance.NewNodeID(), Name: "hub", State: "/var/lib/mesh", Endpoint: "203.0.113.1:51820", Address: netip.MustParseAddr("10.64.0.1"),
			Keys: node.Public(), Certificate: []byte("certificate"), Capabilities: wire.Capabilities{Wire: 1, Binary: "v1", OS: "linux", Architecture: "amd64", Init: "none", Kinds: wire.ResourceKinds}},
		Operator: store.Operator{ID: appliance.NewOperatorID(), Name: "first", Role: "admin", Signing: signingKey(t), Bus: busKey(t)},
		Modules:  modules,
	}
}

func busKey(t *testing.T) string {
	t.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func signingKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public
}
