package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// settings are forced on the command line, which overrides every file and
// ALTER SYSTEM. Nothing a statement says reaches the log: not the statement,
// not its parameters, not the error it got, which the client is told anyway.
var settings = []string{
	"listen_addresses=", "port=" + port, "unix_socket_permissions=0700", "ssl=off",
	"fsync=on", "full_page_writes=on", "synchronous_commit=on",
	"shared_buffers=16MB", "max_connections=20", "max_wal_size=64MB", "autovacuum_max_workers=1",
	"max_worker_processes=1", "max_parallel_workers=0", "jit=off",
	"timezone=UTC", "log_timezone=UTC",
	"logging_collector=off", "log_destination=stderr", "log_statement=none", "log_min_duration_statement=-1",
	"log_min_messages=log", "log_min_error_statement=panic", "log_error_verbosity=terse",
	"log_parameter_max_length=0", "log_parameter_max_length_on_error=0",
}

// durable are the settings without which a power cut loses acknowledged data.
var durable = []string{"fsync", "full_page_writes", "synchronous_commit"}

// ensure makes the cluster if there is none. The renamed folder is the only
// sign of success: what initdb leaves when it is killed may look like one.
func (s *Server) ensure(ctx context.Context) error {
	// An empty folder is as good as none: somebody prepared the place.
	if held, err := os.ReadDir(s.cfg.Data); err == nil && len(held) > 0 {
		return nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tmp := s.cfg.Data + ".tmp"
	if err := removeAll(ctx, tmp); err != nil {
		return fmt.Errorf("remove unfinished cluster: %w", err)
	}
	if err := s.folder(tmp); err != nil {
		return err
	}
	if out, err := s.tool(ctx, "initdb", "-D", tmp, "-U", s.cfg.Superuser, "--data-checksums", "--no-sync", "--encoding=UTF8",
		"--no-locale", "--auth-local=peer", "--auth-host=reject", "--no-instructions"); err != nil {
		return fmt.Errorf("make cluster %s: %w: %s", s.cfg.Data, err, last(out))
	}
	if out, err := s.tool(ctx, "initdb", "-D", tmp, "--sync-only"); err != nil {
		return fmt.Errorf("sync cluster %s: %w: %s", s.cfg.Data, err, last(out))
	}
	if err := os.Remove(s.cfg.Data); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp, s.cfg.Data); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.cfg.Data))
}

// removeAll tries again while a backend of a killed initdb still writes there.
func removeAll(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := os.RemoveAll(path)
		if err == nil || pause(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

// Remove removes a cluster that nobody needs and its socket folder, after what
// is left of a server in it has ended.
func Remove(ctx context.Context, data, socket string) error {
	if err := (&Server{cfg: Config{Data: data, Socket: socket}}).clear(ctx); err != nil {
		return err
	}
	for _, path := range []string{data, data + ".tmp", socket} {
		if err := removeAll(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// folder makes a private folder that belongs to whom the server runs as.
func (s *Server) folder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return err
	}
	return s.own(path)
}

func (s *Server) own(path string) error {
	if c := s.cfg.Credential; c != nil {
		return os.Lchown(path, int(c.Uid), int(c.Gid))
	}
	return nil
}

// checksums is the line of pg_controldata, with a version of 0 for none.
var checksums = regexp.MustCompile(`(?m)^Data page checksum version:\s+(\d+)$`)

// check refuses a cluster of another major version, and one that could lose or
// silently corrupt what it acknowledged, be it only by its own files: somebody
// has run it that way, or means to.
func (s *Server) check(ctx context.Context) error {
	made, err := MadeBy(s.cfg.Data)
	if err != nil {
		return fmt.Errorf("%s is not a cluster: move it away or restore it from a backup: %w", s.cfg.Data, err)
	}
	binaries, err := look(s.cfg.Bin)
	if err != nil {
		return fmt.Errorf("PostgreSQL in %s: %w", s.cfg.Bin, err)
	}
	if made != binaries.major {
		return &WrongMajor{Data: s.cfg.Data, Have: made, Want: binaries.major, Bin: s.cfg.Bin}
	}
	control, err := s.tool(ctx, "pg_controldata", "-D", s.cfg.Data)
	if err != nil {
		return fmt.Errorf("read control data of %s: %w: %s", s.cfg.Data, err, last(control))
	}
	if m := checksums.FindStringSubmatch(control); m == nil || m[1] == "0" {
		return fmt.Errorf("cluster %s has no data checksums (GEN-9): stop it and run pg_checksums --enable", s.cfg.Data)
	}
	for _, name := range durable {
		out, err := s.tool(ctx, "postgres", "-D", s.cfg.Data, "-C", name)
		if err != nil {
			return fmt.Errorf("read setting %s of %s: %w: %s", name, s.cfg.Data, err, last(out))
		}
		if strings.TrimSpace(out) == "off" {
			return fmt.Errorf("cluster %s has %s=off (GEN-9): remove that from its postgresql.conf and postgresql.auto.conf", s.cfg.Data, name)
		}
	}
	return nil
}

// access writes who may connect: the mapped system users over the socket.
func (s *Server) access() error {
	var ident strings.Builder
	for system, role := range sorted(s.cfg.Map) {
		fmt.Fprintf(&ident, "mesh %q %q\n", system, role)
	}
	if err := s.write("pg_hba.conf", "local all all peer map=mesh\n"); err != nil {
		return err
	}
	return s.write("pg_ident.conf", ident.String())
}

func (s *Server) write(name, content string) (err error) {
	path := filepath.Join(s.cfg.Data, name)
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := s.own(path + ".tmp"); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(s.cfg.Data)
}

func sorted(m map[string]string) func(yield func(string, string) bool) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return func(yield func(string, string) bool) {
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
