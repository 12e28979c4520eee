package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/novox/mesh/appliance"
)

// Replayed is the reason of a request that was carried out before.
const Replayed appliance.Reason = "replayed"

// IsUnavailable tells "the store is away" from "this change fails": only the first may be tried again for ever.
func IsUnavailable(err error) bool {
	return err != nil && appliance.KindOf(err) == appliance.Unavailable
}

func badDSN(err error) error {
	return appliance.Errorf(appliance.Invalid, "read the store's DSN: %w", err). // pgx strikes out the password
											WithHint("a DSN is postgres://USER@HOST:PORT/DATABASE, or host=… user=… dbname=…")
}

// explain gives an error its kind: what a constraint refuses is a conflict, a lost connection is an absent store.
func explain(what string, err error) error {
	var known *appliance.Error
	var refused *pgconn.PgError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.As(err, &refused):
		return refusal(what, refused)
	case lost(err):
		return absent(what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// away are the classes in which the server says that it cannot work: connection, resources (a full disk too), shutdown, input and
// output, a standby. Whatever is fatal ends the session and is the same to us.
var away = []string{"08", "53", "57P", "58", "25006"}

func absent(what string, err error) error {
	return appliance.Errorf(appliance.Unavailable, "%s: the store is out of reach: %w", what, err).
		WithHint("nothing is lost; it is tried again when the store is back")
}

func lost(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	var call syscall.Errno
	for _, e := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded, puddle.ErrClosedPool, driver.ErrBadConn, sql.ErrConnDone} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, &network) || errors.As(err, &connect) || errors.As(err, &call) || pgconn.SafeToRetry(err)
}

// refusal turns the server's own error into ours, by its class.
func refusal(what string, e *pgconn.PgError) error {
	if e.SeverityUnlocalized == "FATAL" || slices.ContainsFunc(away, func(class string) bool { return strings.HasPrefix(e.Code, class) }) {
		return absent(what, e)
	}
	switch e.Code {
	case "23505":
		if text, ok := taken[e.ConstraintName]; ok {
			return appliance.Errorf(appliance.Conflict, "%s: %s: %s: %w", what, text.thing, e.Detail, e).WithHint(text.way)
		}
		return appliance.Errorf(appliance.Conflict, "%s: the %s exists: %s: %w", what, e.TableName, e.Detail, e).WithHint("look at what is recorded, then choose another")
	case "23503":
		return appliance.Errorf(appliance.Conflict, "%s: %s: %s: %w", what, e.TableName, e.Detail, e).WithHint("what it names must be recorded, and stays while something names it")
	case "57014", "55P03", "40001", "40P01":
		return appliance.Errorf(appliance.NotReady, "%s: the store took too long: %w", what, e).WithHint("try again")
	}
	if strings.HasPrefix(e.Code, "22") || e.Code == "23514" || e.Code == "23502" {
		return appliance.Errorf(appliance.Invalid, "%s: %s: %w", what, e.TableName, e).WithHint("the value breaks a rule of the records: " + e.ConstraintName)
	}
	return fmt.Errorf("%s: %w", what, e)
}

// taken says what a unique constraint protects, and the way out.
var taken = map[string]struct{ thing, way string }{
	"name_pkey":            {"the name is taken", "nodes, modules and instances share one namespace; choose another name"},
	"node_name_key":        {"a node has the name", "choose another name, or replace the node"},
	"node_hub":             {"the mesh has a hub", "a mesh has one hub"},
	"operator_pkey":        {"the operator exists", "add the operator under a fresh id"},
	"operator_name_key":    {"an operator has the name", "choose another name"},
	"operator_signing_key": {"an operator has the signing key", "every operator signs with a key of its own"},
	"operator_bus_key":     {"an operator has the bus key", "every operator has a bus key of its own"},
	"overlay_address_pkey": {"a node has the address", "choose a free address of the range"},
	"port_assigned":        {"an instance has the port", "give one of the two another number, or put it on another node"},
	"token_pkey":           {"the token exists", "make a fresh one"},
	"token_bus_key":        {"a token has the bus key", "make a fresh one"},
	"token_claim_key":      {"a token has the claim key", "make a fresh one"},
}
