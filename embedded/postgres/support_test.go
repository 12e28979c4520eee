package postgres

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// helper names the folder in which a re-executed test binary runs a server
// until it is killed.
const helper = "MESH_TEST_POSTGRES_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helper); dir != "" {
		cfg, err := config(dir)
		if err == nil {
			cfg.Log = os.Stderr
			_, err = Start(context.Background(), cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("ready")
		for {
			time.Sleep(time.Hour) // an empty select could be a deadlock to the runtime
		}
	}
	code := m.Run()
	if template.dir != "" {
		os.RemoveAll(template.dir)
	}
	os.Exit(code)
}

// config is a server in dir, as nobody when the tests run as root.
func config(dir string) (Config, error) {
	bin, _, err := Find("")
	if err != nil {
		return Config{}, err
	}
	me, err := user.Current()
	if err != nil {
		return Config{}, err
	}
	cfg := Config{Bin: bin, Data: filepath.Join(dir, "data"), Socket: filepath.Join(dir, "run"),
		Map: map[string]string{me.Username: "mesh"}, Superuser: "mesh"}
	if os.Geteuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			return Config{}, err
		}
		uid, err := strconv.Atoi(nobody.Uid)
		if err != nil {
			return Config{}, err
		}
		gid, err := strconv.Atoi(nobody.Gid)
		if err != nil {
			return Config{}, err
		}
		cfg.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return cfg, nil
}

// place is an empty folder with a short path that the server's user can reach;
// what still runs in it at the end is killed.
func place(t *testing.T) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := config(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s := &Server{cfg: cfg}
		pids, err := s.running()
		if err != nil {
			t.Error(err)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := removeAll(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

// template is one cluster that tests copy, stopped.
var template struct {
	once sync.Once
	dir  string
	err  error
}

// cluster is a place with a stopped cluster in it.
func cluster(t *testing.T) Config {
	t.Helper()
	template.once.Do(func() {
		cfg := place(t) // lives as long as the first test that asks
		s := &Server{cfg: cfg}
		if template.err = s.ensure(context.Background()); template.err != nil {
			return
		}
		if template.dir, template.err = os.MkdirTemp("", "pgtemplate"); template.err == nil {
			template.err = copyTree(cfg.Data, template.dir)
		}
	})
	if template.err != nil {
		t.Fatal(template.err)
	}
	cfg := place(t)
	if err := copyTree(filepath.Join(template.dir, "data"), filepath.Dir(cfg.Data)); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func copyTree(from, to string) error {
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, s *Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, s *Server, sql string) {
	t.Helper()
	if _, err := connect(t, s).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, s *Server) int {
	t.Helper()
	var n int
	if err := connect(t, s).QueryRow(t.Context(), "select count(*) from kept").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const keep = "create table kept (n int); insert into kept values (1), (2)"

// run starts the helper process and gives it with its output.
func run(t *testing.T, cfg Config) (*exec.Cmd, *syncBuffer) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helper+"="+filepath.Dir(cfg.Data))
	out := &syncBuffer{}
	cmd.Stdout = out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, out
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func poll(t *testing.T, what string, try func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !try() {
		if pause(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
