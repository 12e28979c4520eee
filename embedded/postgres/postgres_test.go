package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// GEN-5, GEN-9: a fresh cluster is durable, listens on the socket only, and
// keeps its data over a restart.
func TestFreshAndRestart(t *testing.T) {
	cfg := place(t)
	if err := os.Mkdir(cfg.Data, 0o700); err != nil { // prepared and empty
		t.Fatal(err)
	}
	begin := time.Now()
	s := start(t, cfg)
	t.Logf("initdb and start: %s", time.Since(begin))
	conn := connect(t, s)
	for setting, want := range map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on",
		"listen_addresses": "", "log_statement": "none", "server_encoding": "UTF8", "shared_buffers": "16MB", "unix_socket_directories": cfg.Socket} {
		var got string
		if err := conn.QueryRow(t.Context(), "select current_setting($1)", setting).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}
	for _, dir := range []string{cfg.Socket, cfg.Data} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	exec1(t, s, keep)
	begin = time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("stop: %s", time.Since(begin))
	select {
	case <-s.Done():
	default:
		t.Error("closed and not done")
	}
	if err := s.Ready(t.Context()); err == nil {
		t.Error("a closed server says it is ready")
	}

	begin = time.Now()
	s = start(t, cfg)
	t.Logf("start: %s", time.Since(begin))
	if n := count(t, s); n != 2 {
		t.Errorf("%d rows after the restart, want 2", n)
	}
}

// Only mapped system users get in.
func TestStrangerIsRefused(t *testing.T) {
	cfg := cluster(t)
	cfg.Map = map[string]string{"somebody-else": "mesh"}
	s := start(t, cfg)
	if conn, err := pgx.Connect(t.Context(), s.DSN()); err == nil {
		conn.Close(t.Context())
		t.Error("connected without an entry in the map")
	}
}

// SAFE-5: the parent is killed; the server stops by itself and cleanly.
func TestParentKilled(t *testing.T) {
	cfg := cluster(t)
	cmd, out := run(t, cfg)
	poll(t, "helper is ready", func() bool { return strings.Contains(out.String(), "ready") })
	conn, err := pgx.Connect(t.Context(), (&Server{cfg: cfg}).DSN())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), keep); err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	s := &Server{cfg: cfg}
	poll(t, "orphan ends", func() bool { pids, err := s.running(); return err == nil && len(pids) == 0 })
	if state, err := s.tool(t.Context(), "pg_controldata", "-D", cfg.Data); err != nil || !strings.Contains(state, "shut down\n") {
		t.Errorf("not shut down cleanly: %v\n%s", err, state)
	}
	if n := count(t, start(t, cfg)); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// SAFE-5: at once after the kill, the server is still there or just going.
func TestStartRightAfterParentKilled(t *testing.T) {
	cfg := cluster(t)
	cmd, out := run(t, cfg)
	poll(t, "helper is ready", func() bool { return strings.Contains(out.String(), "ready") })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	exec1(t, start(t, cfg), keep)
}

// SAFE-5: an orphan that nobody told to stop is stopped and waited for.
func TestOrphan(t *testing.T) {
	cfg := cluster(t)
	s := &Server{cfg: cfg, log: &tail{max: 1 << 10}}
	if err := s.folder(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	orphan := s.command(0, cfg.Bin, "postgres", "-D", cfg.Data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+cfg.Socket)
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- orphan.Wait() }()
	poll(t, "orphan is ready", func() bool { return s.isReady(orphan.Process.Pid) })

	next := start(t, cfg)
	select {
	case err := <-gone:
		if err != nil {
			t.Errorf("orphan ended with %v, want a clean stop", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("orphan still runs")
	}
	exec1(t, next, keep)
}

// SAFE-5: whenever initdb is killed, with its parent or alone, the next start
// makes the cluster.
func TestInitdbKilled(t *testing.T) {
	for _, after := range []time.Duration{30, 150, 350, 550} {
		after *= time.Millisecond
		t.Run(after.String(), func(t *testing.T) {
			cfg := place(t)
			cmd, _ := run(t, cfg)
			poll(t, "initdb begins", func() bool { _, err := os.Stat(cfg.Data + ".tmp"); return err == nil })
			if pause(t.Context(), after) != nil { // the moment under test, not a wait for something
				t.Fatal("no time")
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_, unfinished := os.Stat(cfg.Data + ".tmp")
			t.Logf("killed with the cluster unfinished: %t", unfinished == nil)
			exec1(t, start(t, cfg), keep)
		})
	}
	t.Run("alone", func(t *testing.T) {
		cfg := place(t)
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { _, err := Start(ctx, cfg); failed <- err }()
		poll(t, "initdb writes", func() bool { _, err := os.Stat(cfg.Data + ".tmp/PG_VERSION"); return err == nil })
		cancel() // kills it
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("start: %v", err)
		}
		if _, err := os.Stat(cfg.Data); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("data folder after the kill: %v", err)
		}
		exec1(t, start(t, cfg), keep)
	})
}

// GEN-5, GEN-9, SAFE-1: clusters that could lose data, or of another major, are
// refused with the way out.
func TestRefusedClusters(t *testing.T) {
	conf := func(file, line string) func(t *testing.T, cfg Config) {
		return func(t *testing.T, cfg Config) {
			f, err := os.OpenFile(filepath.Join(cfg.Data, file), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(line + "\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, cfg Config)
		want  string
	}{
		"no checksums": {func(t *testing.T, cfg Config) {
			if out, err := (&Server{cfg: cfg}).tool(t.Context(), "pg_checksums", "--disable", "-D", cfg.Data); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}, "no data checksums (GEN-9)"},
		"no fsync":              {conf("postgresql.conf", "fsync = off"), "fsync=off (GEN-9)"},
		"no full page writes":   {conf("postgresql.conf", "full_page_writes = false"), "full_page_writes=off"},
		"no synchronous commit": {conf("postgresql.auto.conf", "synchronous_commit = 'off'"), "synchronous_commit=off"},
		"another major": {func(t *testing.T, cfg Config) {
			if err := os.WriteFile(filepath.Join(cfg.Data, "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "mesh store upgrade"},
		"half": {func(t *testing.T, cfg Config) {
			if err := os.Remove(filepath.Join(cfg.Data, "PG_VERSION")); err != nil {
				t.Fatal(err)
			}
		}, "is not a cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cluster(t)
			c.spoil(t, cfg)
			s, err := Start(t.Context(), cfg)
			if err == nil {
				s.Close()
				t.Fatal("started")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("refused with %q, want it to say %q", err, c.want)
			}
			var wrong *WrongMajor
			if errors.As(err, &wrong) != (name == "another major") {
				t.Errorf("kind of error: %#v", err)
			}
			if wrong != nil && (wrong.Have != 9 || wrong.Want < 10) {
				t.Errorf("%+v", wrong)
			}
		})
	}
}

// A lock file with the number of a process that is somebody else by now.
func TestForeignPid(t *testing.T) {
	cfg := cluster(t)
	s := &Server{cfg: cfg}
	if err := s.folder(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	foreign := exec.Command("sleep", "60")
	foreign.SysProcAttr = &syscall.SysProcAttr{Credential: cfg.Credential, Pdeathsig: syscall.SIGKILL}
	foreign.Dir = cfg.Socket
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Process.Kill(); _ = foreign.Wait() }()
	for _, lock := range []string{filepath.Join(cfg.Data, "postmaster.pid"), filepath.Join(cfg.Socket, ".s.PGSQL.5432.lock")} {
		text := fmt.Sprintf("%d\n%s\n%d\n5432\n%s\n\n\nready\n", foreign.Process.Pid, cfg.Data, time.Now().Unix(), cfg.Socket)
		if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.own(lock); err != nil {
			t.Fatal(err)
		}
	}
	exec1(t, start(t, cfg), keep)
	if err := foreign.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the foreign process was touched: %v", err)
	}
}

// Two servers do not share a socket folder.
func TestSocketTaken(t *testing.T) {
	first := cluster(t)
	start(t, first)
	second := cluster(t)
	second.Socket = first.Socket
	if s, err := Start(t.Context(), second); err == nil {
		s.Close()
		t.Error("started on another server's socket")
	} else if !strings.Contains(err.Error(), "another server") {
		t.Error(err)
	}
}

// A server that dies is started again and has lost nothing.
func TestCrashIsRestarted(t *testing.T) {
	cfg := cluster(t)
	s := start(t, cfg)
	exec1(t, s, keep)
	for range 2 {
		pid := lockedBy(filepath.Join(cfg.Data, "postmaster.pid"))
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		poll(t, "another server", func() bool {
			now := lockedBy(filepath.Join(cfg.Data, "postmaster.pid"))
			return now != pid && now != 0
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := s.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("ready again after %s", time.Since(begin))
		if n := count(t, s); n != 2 {
			t.Errorf("%d rows, want 2", n)
		}
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("last error: %v", err)
	}
}

// Ready says what keeps the server, and Close ends the attempts.
func TestCannotRestart(t *testing.T) {
	cfg := cluster(t)
	s := start(t, cfg)
	control := filepath.Join(cfg.Data, "global", "pg_control")
	if err := os.Rename(control, control+".away"); err != nil {
		t.Fatal(err)
	}
	pid := lockedBy(filepath.Join(cfg.Data, "postmaster.pid"))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll(t, "a failed attempt", func() bool { err := s.Err(); return err != nil && strings.Contains(err.Error(), "pg_control") })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Ready(ctx); err == nil || !strings.Contains(err.Error(), "pg_control") {
		t.Errorf("ready: %v, want it to name pg_control", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// SAFE-4: passwords do not reach the log, not even those of failing statements.
func TestPasswordsAreNotLogged(t *testing.T) {
	cfg := cluster(t)
	log := &syncBuffer{}
	cfg.Log = log
	s := start(t, cfg)
	conn := connect(t, s)
	if _, err := conn.Exec(t.Context(), "create role r password 'hunter2'"); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"alter role nobody_there password 'hunter2'", "alter role r pasword 'hunter2'", "select 1/0 where 'hunter2' = 'hunter2'", "select 'hunter2'::int"} {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Fatalf("%q did not fail", sql)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "ready to accept connections") {
		t.Errorf("log:\n%s", text)
	}
}

// SAFE-1, SAFE-3: a configuration that cannot work is refused before anything
// is made.
func TestRefusedConfigs(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"relative data": func(c *Config) { c.Data = "data" },
		"no socket":     func(c *Config) { c.Socket = "" },
		"long socket":   func(c *Config) { c.Socket = "/tmp/" + strings.Repeat("x", 100) },
		"empty map":     func(c *Config) { c.Map = nil },
		"regular map":   func(c *Config) { c.Map = map[string]string{"/.*": "mesh"} },
		"role":          func(c *Config) { c.Map = map[string]string{"root": "me\"sh"} },
		"superuser":     func(c *Config) { c.Superuser = "" },
		"binaries":      func(c *Config) { c.Bin = "bin" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := place(t)
			dir := filepath.Dir(cfg.Data)
			spoil(&cfg)
			if s, err := Start(t.Context(), cfg); err == nil {
				s.Close()
				t.Error("started")
			}
			if made, err := os.ReadDir(dir); err != nil || len(made) > 0 {
				t.Errorf("made %v, %v", made, err)
			}
		})
	}
}
