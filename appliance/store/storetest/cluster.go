package storetest

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cluster is a private PostgreSQL on a unix socket in a temporary folder. It dies with the process that started it.
type Cluster struct {
	folder  string
	command *exec.Cmd
	ended   chan error
	admin   *sql.DB
	log     *os.File
}

const (
	nobody = 65534
	prefix = "mesh-storetest-"
)

// Start makes a cluster and waits until it answers. Without durable nothing is synced to disk: fine for a cluster that ends with its test.
func Start(durable bool) (c *Cluster, err error) {
	sweep()
	c = &Cluster{ended: make(chan error, 1)}
	if c.folder, err = os.MkdirTemp("", prefix+strconv.Itoa(os.Getpid())+"-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			said, _ := os.ReadFile(filepath.Join(c.folder, "log"))
			err = errors.Join(fmt.Errorf("start a PostgreSQL for tests: %w\n%s", err, said), c.Stop())
		}
	}()
	if c.log, err = os.Create(filepath.Join(c.folder, "log")); err != nil {
		return c, err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(c.folder, nobody, nobody); err != nil {
			return c, err
		}
	}
	bin, err := binaries()
	if err != nil {
		return c, err
	}
	made := c.prepare(bin, "initdb", "--no-sync", "--data-checksums", "--auth=trust", "--username=mesh", "--encoding=UTF8", "--locale=C", "--pgdata="+c.data())
	if err := made.Run(); err != nil {
		return c, fmt.Errorf("initdb: %w", err)
	}
	settings := []string{"-D", c.data(), "-k", c.folder, "-c", "listen_addresses=", "-c", "max_connections=300", "-c", "shared_buffers=32MB",
		"-c", "autovacuum=off", "-c", "jit=off", "-c", "max_wal_size=256MB"}
	if !durable {
		settings = append(settings, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
	}
	c.command = c.prepare(bin, "postgres", settings...)
	if err := c.run(); err != nil {
		return c, err
	}
	if c.admin, err = sql.Open("pgx", c.DSN("postgres")); err != nil {
		return c, err
	}
	return c, c.wait()
}

func (c *Cluster) data() string { return filepath.Join(c.folder, "data") }

// DSN names a database of the cluster.
func (c *Cluster) DSN(database string) string {
	return fmt.Sprintf("host=%s user=mesh dbname=%s sslmode=disable", c.folder, database)
}

// Create makes an empty database and gives its DSN.
func (c *Cluster) Create(database string) (string, error) {
	_, err := c.admin.Exec("CREATE DATABASE " + database)
	return c.DSN(database), err
}

func (c *Cluster) prepare(bin, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.folder, c.log, c.log
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd
}

// run starts the server from a thread that lives as long as it does: the death signal is sent when the starting thread ends.
func (c *Cluster) run() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.command.Start()
		started <- err
		if err == nil {
			c.ended <- c.command.Wait()
		}
	}()
	return <-started
}

// wait asks the server until it answers, says that it has ended, or takes too long.
func (c *Cluster) wait() error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := c.admin.Ping()
		if err == nil {
			return nil
		}
		select {
		case end := <-c.ended:
			c.ended <- end
			return fmt.Errorf("postgres ended: %w", end)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer within 30 s: %w", err)
		}
	}
}

// Stop ends the server and removes everything of it.
func (c *Cluster) Stop() error {
	if c.admin != nil {
		c.admin.Close()
	}
	if c.log != nil {
		c.log.Close()
	}
	if c.command != nil && c.command.Process != nil {
		_ = c.command.Process.Signal(syscall.SIGINT) // fails only when it has ended
		select {
		case <-c.ended:
		case <-time.After(10 * time.Second):
			_ = c.command.Process.Kill()
			<-c.ended
		}
	}
	return os.RemoveAll(c.folder)
}

// binaries finds the folder of initdb and postgres.
func binaries() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", errors.New("no initdb in /usr/lib/postgresql/*/bin or PATH: apt-get install postgresql")
	}
	return filepath.Dir(path), nil
}

// sweep removes the folders of test binaries that were killed before they could.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range left {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), prefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			_ = os.RemoveAll(folder) // somebody else's folder stays
		}
	}
}
