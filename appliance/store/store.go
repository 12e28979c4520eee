// Package store keeps the records of the mesh in PostgreSQL: what operators recorded, what is so, and what happened. Open comes first.
// An exported method is one transaction. Nothing here decides what should be true, and no other package speaks SQL.
package store

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/novox/mesh/appliance"
)

// Limits that keep one store small and no question endless; the server allows 20 connections.
const (
	maxConnections   = 8
	connectTimeout   = 5 * time.Second
	statementTimeout = "15s"
	lockTimeout      = "10s"
	idleTimeout      = "30s" // of a transaction in which nothing happens
)

// Config says where the records are.
type Config struct {
	DSN string // required: connection string or URL; may hold a password, so it is never shown
}

// Store is the records. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool
}

// CheckDSN says whether a DSN can be read; it connects to nothing.
func CheckDSN(dsn string) error {
	if _, err := pgxpool.ParseConfig(dsn); err != nil {
		return badDSN(err)
	}
	return nil
}

// Reach tries a DSN once, where it leads over the network: there it means the same for whoever has it, while a socket of this machine
// asks who is calling.
func Reach(ctx context.Context, dsn string) error {
	parsed, err := pgx.ParseConfig(dsn)
	if err != nil {
		return badDSN(err)
	}
	if strings.HasPrefix(parsed.Host, "/") {
		return nil
	}
	parsed.ConnectTimeout = connectTimeout
	c, err := pgx.ConnectConfig(ctx, parsed)
	if err != nil {
		return appliance.Errorf(appliance.Unavailable, "reach the store: %w", err). // pgx strikes out the password
												WithHint("the server must run, let this machine in, and have user and database")
	}
	return c.Close(ctx)
}

// Open connects and brings the schema up to this binary's. An unreachable server is an error of kind Unavailable.
func Open(ctx context.Context, config Config) (*Store, error) {
	parsed, err := pgxpool.ParseConfig(config.DSN)
	if err != nil {
		return nil, badDSN(err)
	}
	parsed.MaxConns = maxConnections
	parsed.MaxConnIdleTime = 5 * time.Minute
	parsed.ConnConfig.ConnectTimeout = connectTimeout
	parsed.ConnConfig.RuntimeParams["application_name"] = "mesh"
	if err := migrate(ctx, parsed.ConnConfig.Copy()); err != nil {
		return nil, explain("migrate the store", err)
	}
	for name, value := range map[string]string{"statement_timeout": statementTimeout, "lock_timeout": lockTimeout, "idle_in_transaction_session_timeout": idleTimeout} {
		parsed.ConnConfig.RuntimeParams[name] = value
	}
	parsed.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		c.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, parsed)
	if err != nil {
		return nil, explain("open the store", err)
	}
	return &Store{pool: pool}, nil
}

// Close waits for what runs and gives the connections back.
func (s *Store) Close() { s.pool.Close() }

// Ping says whether the store answers.
func (s *Store) Ping(ctx context.Context) error { return explain("reach the store", s.pool.Ping(ctx)) }

// By is who changes something, and when. Every change is audited under it in its own transaction.
type By struct {
	Who   string    // required: an operator's id, a token's bus user, "genesis", "controller"
	Nonce string    // of a signed request; refused the second time. Empty: the mesh itself
	At    time.Time // required: the controller's clock
}

// change runs f in one transaction in which by's nonce is spent.
func (s *Store) change(ctx context.Context, what string, by By, f func(tx pgx.Tx) error) error {
	return s.write(ctx, what, func(tx pgx.Tx) error {
		if err := spendNonce(ctx, tx, by); err != nil {
			return err
		}
		return f(tx)
	})
}

// write runs f in one transaction.
func (s *Store) write(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	return explain(what, pgx.BeginFunc(ctx, s.pool, f))
}

// read runs f on one snapshot of the records.
func (s *Store) read(ctx context.Context, what string, f func(tx pgx.Tx) error) error {
	return explain(what, pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f))
}

// rows collects what a question gives into values of T, by column name.
func rows[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	r, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(r, pgx.RowToStructByName[T])
}

// row is rows for exactly one; pgx.ErrNoRows when there is none.
func row[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (T, error) {
	r, err := tx.Query(ctx, sql, args...)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(r, pgx.RowToStructByName[T])
}
