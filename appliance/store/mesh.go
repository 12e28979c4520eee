package store

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
)

// Mesh is the one mesh of these records. Keys are public halves.
type Mesh struct {
	ID          appliance.MeshID  `json:"id"`
	Name        string            `json:"name"`
	Range       netip.Prefix      `json:"range"` // the overlay's; the only record of it
	OverlayPort uint16            `json:"overlayPort"`
	Epoch       uint64            `json:"epoch"`     // raised by a restore; 1 at first
	Endpoints   []string          `json:"endpoints"` // of the broker from outside, host:port
	Signing     ed25519.PublicKey `json:"signing"`
	Sealing     string            `json:"sealing"`
	Bus         string            `json:"bus"`        // the controller's user in account CONTROL
	BusModules  string            `json:"busModules"` // the controller's user in account MODULES
	Authority   []byte            `json:"authority"`  // DER
	FoundedAt   time.Time         `json:"foundedAt"`
}

// Mesh gives the mesh's row; NotFound before Found has committed.
func (s *Store) Mesh(ctx context.Context) (m Mesh, err error) {
	err = s.read(ctx, "read the mesh", func(tx pgx.Tx) error {
		m, err = mesh(ctx, tx)
		return err
	})
	return m, err
}

func mesh(ctx context.Context, tx pgx.Tx) (Mesh, error) {
	m, err := row[Mesh](ctx, tx, `
		SELECT id, name, range, overlay_port, epoch, endpoints, signing, sealing, bus, bus_modules, a.certificate AS authority, founded_at
		FROM mesh, authority AS a`)
	if errors.Is(err, pgx.ErrNoRows) {
		return Mesh{}, appliance.Errorf(appliance.NotFound, "read the mesh: the records hold none yet").WithNext("mesh genesis")
	}
	return m, err
}

// lockMesh makes the changes of nodes, names, addresses, ports and assignments one after the other. It is always the first lock taken.
func lockMesh(ctx context.Context, tx pgx.Tx) error {
	var id string
	err := tx.QueryRow(ctx, `SELECT id FROM mesh FOR NO KEY UPDATE`).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return appliance.Errorf(appliance.NotFound, "read the mesh: the records hold none yet").WithNext("mesh genesis")
	}
	return err
}

// EnsureAuthority records der as the mesh's authority unless there is one, and gives the one that holds (PKI-2).
func (s *Store) EnsureAuthority(ctx context.Context, by By, der []byte) (winner []byte, err error) {
	err = s.change(ctx, "record the authority", by, func(tx pgx.Tx) error {
		winner, err = ensureAuthority(ctx, tx, by, der)
		return err
	})
	return winner, err
}

func ensureAuthority(ctx context.Context, tx pgx.Tx, by By, der []byte) (winner []byte, err error) {
	made, err := tx.Exec(ctx, `INSERT INTO authority (certificate, made_at) VALUES ($1, $2) ON CONFLICT DO NOTHING`, der, by.At)
	if err != nil {
		return nil, err
	}
	if made.RowsAffected() == 1 {
		return der, audit(ctx, tx, by, "authority make", "authority", nil, map[string]any{"certificate": appliance.DigestOf(der)})
	}
	err = tx.QueryRow(ctx, `SELECT certificate FROM authority`).Scan(&winner)
	return winner, err
}

// SetUsersDigest records which users file was composed last.
func (s *Store) SetUsersDigest(ctx context.Context, digest appliance.Digest) error {
	return s.write(ctx, "record the users file's digest", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO users_file (digest, set_at) VALUES ($1, now())
			ON CONFLICT (single) DO UPDATE SET digest = excluded.digest, set_at = excluded.set_at WHERE users_file.digest <> excluded.digest`, digest)
		return err
	})
}

// UsersDigest names the users file composed last; empty before the first.
func (s *Store) UsersDigest(ctx context.Context) (digest appliance.Digest, err error) {
	err = s.read(ctx, "read the users file's digest", func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `SELECT digest FROM users_file`).Scan(&digest)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return digest, err
}
