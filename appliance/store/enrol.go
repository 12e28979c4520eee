package store

import (
	"context"
	"errors"
	"maps"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
)

// Enrolment is a proven claim and the two pure decisions it needs inside the transaction.
type Enrolment struct {
	Token        appliance.TokenID
	Keys         wire.PublicKeys
	Name         appliance.NodeName // asked for; the token's own name goes before it
	Labels       map[string]string  // the token's go before them
	Adopted      bool               // what is on the machine is left as it is (NODE-7)
	State        string             // the machine's installation folder
	Capabilities wire.Capabilities
	Modules      []appliance.ModuleName // assigned to the node in the same transaction

	Allocate func(used []netip.Addr) (netip.Addr, error)
	Issue    func(appliance.NodeID, appliance.NodeName, netip.Addr) (certificate []byte, err error)
}

// Enrolled is what the claimant becomes. Repeated: it was enrolled before, and this is the same answer.
type Enrolled struct {
	Node        appliance.NodeID
	Name        appliance.NodeName
	Address     netip.Addr
	Certificate []byte
	Repeated    bool
}

// Enrol spends a token on a claimant (NODE-2, NODE-4). The same token and identity key get the same answer until the node's first own
// connection. A refusal carries a reason of package enrol and changes nothing.
func (s *Store) Enrol(ctx context.Context, by By, e Enrolment) (done Enrolled, err error) {
	err = s.change(ctx, "enrol", by, func(tx pgx.Tx) error {
		if err := lockMesh(ctx, tx); err != nil {
			return err
		}
		if done, err = enrolled(ctx, tx, e); err != nil || done.Repeated {
			return err
		}
		done, err = spend(ctx, tx, by, e)
		return err
	})
	if err != nil {
		return Enrolled{}, err
	}
	return done, nil
}

// enrolled gives the answer that the claimant had before, Repeated false when it had none.
func enrolled(ctx context.Context, tx pgx.Tx, e Enrolment) (Enrolled, error) {
	n, err := row[Node](ctx, tx, selectNode+` JOIN enrolment AS e ON e.node = n.id WHERE e.token = $1 AND e.identity = $2`, e.Token, e.Keys.Identity)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Enrolled{}, nil
	case err != nil:
		return Enrolled{}, err
	case !n.ConnectedAt.IsZero():
		return Enrolled{}, enrol.Refuse(enrol.AlreadyEnrolled, "this machine is node "+string(n.Name)+" and has connected since")
	case n.Keys != e.Keys:
		return Enrolled{}, enrol.Refuse(enrol.AlreadyEnrolled, "this machine is node "+string(n.Name)+" under other keys than it claims now").
			WithHint("claim with the keys of the first time, or remove the state folder and join with a new token")
	}
	return Enrolled{Node: n.ID, Name: n.Name, Address: n.Address, Certificate: n.Certificate, Repeated: true}, nil
}

// spend takes one use of the token and makes the node; what is refused after the spending is rolled back with it.
func spend(ctx context.Context, tx pgx.Tx, by By, e Enrolment) (Enrolled, error) {
	t, err := spendToken(ctx, tx, by, e.Token)
	if err != nil {
		return Enrolled{}, err
	}
	if err := freeKeys(ctx, tx, e.Keys); err != nil {
		return Enrolled{}, err
	}
	if t.Replaces != "" {
		return replace(ctx, tx, by, e, t)
	}
	n := newNode{ID: appliance.NewNodeID(), Name: e.Name, Mode: mode(e.Adopted), State: e.State, Keys: e.Keys, Capabilities: e.Capabilities, Labels: merged(e.Labels, t.Labels)}
	if t.Name != "" {
		n.Name = t.Name
	}
	if _, err := appliance.ParseName[appliance.NodeName]("node", string(n.Name)); err != nil {
		return Enrolled{}, enrol.Refuse(enrol.NameInvalid, err.Error())
	}
	if err := freeForNode(ctx, tx, n.Name); err != nil {
		return Enrolled{}, err
	}
	if n.Address, err = freeAddress(ctx, tx, e.Allocate); err != nil {
		return Enrolled{}, err
	}
	if n.Certificate, err = e.Issue(n.ID, n.Name, n.Address); err != nil {
		return Enrolled{}, err
	}
	if err := addNode(ctx, tx, by, n); err != nil {
		return Enrolled{}, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO enrolment (token, identity, node, at) VALUES ($1, $2, $3, $4)`, e.Token, e.Keys.Identity, n.ID, by.At); err != nil {
		return Enrolled{}, err
	}
	if err := assignAll(ctx, tx, by, n.ID, e.Modules); err != nil {
		return Enrolled{}, err
	}
	return Enrolled{Node: n.ID, Name: n.Name, Address: n.Address, Certificate: n.Certificate}, nil
}

// spendToken is the one statement that decides who wins; only a loser looks why.
func spendToken(ctx context.Context, tx pgx.Tx, by By, id appliance.TokenID) (Token, error) {
	spent, err := tx.Exec(ctx, `UPDATE token SET used = used + 1 WHERE id = $1 AND used < uses AND revoked_at IS NULL AND expires_at > $2`, id, by.At)
	if err != nil {
		return Token{}, err
	}
	t, err := token(ctx, tx, id)
	switch {
	case err != nil || spent.RowsAffected() == 1:
		return t, err
	case !t.RevokedAt.IsZero():
		return Token{}, enrol.Refuse(enrol.TokenRevoked, "the token was revoked at "+t.RevokedAt.Format("2006-01-02 15:04:05 MST"))
	case t.Used >= t.Uses:
		return Token{}, enrol.Refuse(enrol.TokenUsed, "the token was spent by another machine")
	}
	return Token{}, enrol.Refuse(enrol.TokenExpired, "the token expired at "+t.ExpiresAt.Format("2006-01-02 15:04:05 MST"))
}

// merged are labels of which later ones go before earlier ones.
func merged(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, labels := range all {
		maps.Copy(out, labels)
	}
	return out
}

// freeKeys refuses keys that a live node has (NET-8), or a machine that is a node no more: those may be in other hands.
func freeKeys(ctx context.Context, tx pgx.Tx, k wire.PublicKeys) error {
	type live struct {
		Kind string
		Name appliance.NodeName
		Gone bool
	}
	found, err := rows[live](ctx, tx, `
		SELECT kind, name, gone FROM (
			SELECT k.kind, n.name, false AS gone FROM node_key AS k JOIN node AS n ON n.id = k.node
			WHERE k.retired IS NULL AND (k.kind, k.public) IN (('identity', $1), ('overlay', $2), ('sealing', $3), ('tls', $4), ('bus', $5))
			UNION ALL SELECT 'identity', name, true FROM departed WHERE identity = $1 OR bus = $5
		) AS found
		ORDER BY gone, kind = 'identity' DESC, kind = 'overlay' DESC, kind`, k.Identity, k.Overlay, k.Sealing, k.TLS, k.Bus)
	if err != nil || len(found) == 0 {
		return err
	}
	if found[0].Gone {
		return enrol.Refuse(enrol.KeyTaken, "this machine's keys are those of node "+string(found[0].Name)+", which was removed or replaced").
			WithHint("a machine joins again with new keys: have it leave first").WithNext("mesh leave")
	}
	if found[0].Kind == "identity" {
		return enrol.Refuse(enrol.AlreadyEnrolled, "this machine's identity key is that of node "+string(found[0].Name)).
			WithHint("a node joins once: join with the token of the first time; where this machine is a copy of that node, remove its state folder and join anew")
	}
	return enrol.Refuse(enrol.KeyTaken, "node "+string(found[0].Name)+" has the same "+found[0].Kind+" key")
}

// freeAddress asks for an address that no node has, and holds the answer to the range.
func freeAddress(ctx context.Context, tx pgx.Tx, allocate func([]netip.Addr) (netip.Addr, error)) (netip.Addr, error) {
	r, err := tx.Query(ctx, `SELECT address FROM overlay_address ORDER BY address`)
	if err != nil {
		return netip.Addr{}, err
	}
	used, err := pgx.CollectRows(r, pgx.RowTo[netip.Addr])
	if err != nil {
		return netip.Addr{}, err
	}
	address, err := allocate(used)
	if err != nil {
		return netip.Addr{}, err
	}
	var inside bool
	if err := tx.QueryRow(ctx, `SELECT $1::inet << range FROM mesh`, address).Scan(&inside); err != nil {
		return netip.Addr{}, err
	}
	if !inside {
		return netip.Addr{}, appliance.Errorf(appliance.Internal, "enrol: address %s lies outside the overlay's range", address)
	}
	return address, nil
}

// assignAll gives a new node what every node runs.
func assignAll(ctx context.Context, tx pgx.Tx, by By, node appliance.NodeID, modules []appliance.ModuleName) error {
	if len(modules) == 0 {
		return nil
	}
	for _, module := range modules {
		if err := assign(ctx, tx, by, resolve.Assignment{Node: node, Module: module}); err != nil {
			return err
		}
	}
	return judge(ctx, tx)
}
