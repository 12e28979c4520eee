package postgres

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// dumpers are the programs of Dump and Load.
var dumpers = []string{"pg_dump", "pg_restore"}

// Dumps says whether a folder of binaries has what Dump and Load need; some
// distributions package it apart from the server.
func Dumps(bin string) error {
	for _, name := range dumpers {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// Dump writes the database postgres into a file, synced, as one consistent
// state. The programs are those in bin: of the newer major where two are
// concerned, since pg_dump reads what is older than itself.
func (s *Server) Dump(ctx context.Context, bin, file string) error {
	out, err := s.run(ctx, bin, "pg_dump", s.connection("--format=custom", "--file="+file)...)
	if err != nil {
		return fmt.Errorf("dump cluster %s: %w: %s", s.cfg.Data, err, last(out))
	}
	return nil
}

// Load puts a dump into the database postgres: everything, or nothing.
func (s *Server) Load(ctx context.Context, file string) error {
	out, err := s.run(ctx, s.cfg.Bin, "pg_restore", s.connection("--single-transaction", "--exit-on-error", file)...)
	if err != nil {
		return fmt.Errorf("load cluster %s: %w: %s", s.cfg.Data, err, last(out))
	}
	return nil
}

// connection is DSN as arguments.
func (s *Server) connection(more ...string) []string {
	return append([]string{"--host=" + s.cfg.Socket, "--port=" + port, "--username=" + s.cfg.Superuser, "--dbname=postgres", "--no-password"}, more...)
}
