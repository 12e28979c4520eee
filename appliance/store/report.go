package store

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/wire"
)

// sequences are the numbers of the reports from which each part of what is recorded came. Each part has its own, so that an account
// that arrives after a younger report of facts alone is not lost.
type sequences struct{ Account, Carried, Requests, Warnings uint64 }

// Speaker is a machine by the key that it signs with: a node's words count only while that is the node's key. Who was replaced has the
// id of its successor.
type Speaker struct {
	Node     appliance.NodeID
	Identity ed25519.PublicKey
}

// live refuses who is the node no more. The caller holds a lock that a replacement takes.
func (p Speaker) live(ctx context.Context, tx pgx.Tx) error {
	var is bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM node_key WHERE node = $1 AND kind = 'identity' AND retired IS NULL AND public = $2)`,
		p.Node, base64.StdEncoding.EncodeToString(p.Identity)).Scan(&is)
	if err == nil && !is {
		err = appliance.Errorf(appliance.Denied, "another machine is node %s by now", p.Node).WithHint("this one was replaced, and is told so")
	}
	return err
}

// RecordReport takes what is new in a report (BUS-13): an account of an apply unless superseded, facts and warnings always; nothing that a younger
// report has said already. An account, a set of facts and the warnings each replace the recorded ones whole. It says whether anything
// was recorded.
func (s *Store) RecordReport(ctx context.Context, by Speaker, sequence uint64, at time.Time, r wire.Report, superseded bool) (recorded bool, err error) {
	node := by.Node
	what := fmt.Sprintf("record report %d of node %s", sequence, node)
	if r.About == nil && r.Facts == nil {
		return false, appliance.Errorf(appliance.Invalid, "%s: neither an account nor a fact", what).WithHint("an alive says that a node is there")
	}
	if sequence == 0 || sequence > math.MaxInt64 {
		return false, appliance.Errorf(appliance.Invalid, "%s: sequence out of range", what).WithHint("a sequence lies between 1 and 2^63-1")
	}
	err = s.write(ctx, what, func(tx pgx.Tx) error {
		had, err := row[sequences](ctx, tx, `SELECT account, carried, requests, warnings FROM report WHERE node = $1 FOR NO KEY UPDATE`, node)
		if errors.Is(err, pgx.ErrNoRows) {
			return appliance.Errorf(appliance.NotFound, "%s: there is no such node", what).WithNext("mesh node list")
		}
		if err == nil {
			err = by.live(ctx, tx)
		}
		if err != nil {
			return err
		}
		var b pgx.Batch
		if r.About != nil && !superseded && sequence > had.Account {
			queueAccount(&b, node, sequence, at, r)
		}
		if r.Facts != nil && r.Facts.Carried != nil && sequence > had.Carried {
			queueCarried(&b, node, sequence, *r.Facts.Carried)
		}
		if r.Facts != nil && r.Facts.Requests != nil && sequence > had.Requests {
			queueRequests(&b, node, sequence, *r.Facts.Requests)
		}
		if sequence > had.Warnings {
			queueWarnings(&b, node, sequence, r.Warnings)
		}
		recorded = b.Len() > 0
		return tx.SendBatch(ctx, &b).Close()
	})
	return recorded && err == nil, err
}

func queueAccount(b *pgx.Batch, node appliance.NodeID, sequence uint64, at time.Time, r wire.Report) {
	b.Queue(`UPDATE report SET account = $2, epoch = $3, counter = $4, digest = $5, outcome = $6, made_at = $7 WHERE node = $1`,
		node, sequence, r.About.Number.Epoch, r.About.Number.Counter, r.About.Digest, Outcome(r.Outcomes), at)
	b.Queue(`DELETE FROM report_resource WHERE node = $1`, node)
	for i, o := range r.Outcomes {
		b.Queue(`
			INSERT INTO report_resource (node, position, id, instance, kind, status, step, error, drift, log) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			node, i, plain(o.ID), plain(string(o.Instance)), plain(string(o.Kind)), o.Status, plain(o.Step), plain(o.Error), plain(o.Drift), plainAll(o.Log))
	}
	b.Queue(`DELETE FROM instance_health WHERE node = $1`, node)
	for _, h := range r.Health {
		b.Queue(`
			INSERT INTO instance_health (node, instance, state, since, why, log) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (node, instance) DO UPDATE SET state = excluded.state, since = excluded.since, why = excluded.why, log = excluded.log`,
			node, plain(string(h.Instance)), h.State, h.Since, plain(h.Why), plainAll(h.Log))
	}
	b.Queue(`DELETE FROM kept_data WHERE node = $1`, node)
	for _, k := range r.Kept {
		b.Queue(`INSERT INTO kept_data (node, instance, path, bytes, since) VALUES ($1, $2, $3, $4, NULLIF($5, '0001-01-01 00:00:00+00'::timestamptz)) ON CONFLICT DO NOTHING`,
			node, plain(string(k.Instance)), plain(k.Path), max(k.Bytes, -1), k.Since)
	}
}

func queueCarried(b *pgx.Batch, node appliance.NodeID, sequence uint64, carried []wire.CarriedPort) {
	b.Queue(`UPDATE report SET carried = $2 WHERE node = $1`, node, sequence)
	b.Queue(`DELETE FROM carried_port WHERE node = $1`, node)
	for _, c := range carried {
		b.Queue(`INSERT INTO carried_port (node, protocol, number, part) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`, node, c.Protocol, c.Port, plain(c.Part))
	}
}

func queueWarnings(b *pgx.Batch, node appliance.NodeID, sequence uint64, warnings []wire.Warning) {
	b.Queue(`UPDATE report SET warnings = $2 WHERE node = $1`, node, sequence)
	b.Queue(`DELETE FROM warning WHERE node = $1`, node)
	for i, w := range warnings {
		b.Queue(`INSERT INTO warning (node, position, code, severity, text, remedy) VALUES ($1, $2, $3, $4, $5, $6)`,
			node, i, plain(w.Code), w.Severity, plain(w.Text), plain(w.Remedy))
	}
}

// Outcome sums up an account: clean, waiting, refused, failed; the worst counts.
func Outcome(outcomes []wire.Outcome) string {
	sum := "clean"
	for _, o := range outcomes {
		switch {
		case o.Status == wire.Failed:
			return "failed"
		case o.Status == wire.Refused:
			sum = "refused"
		case o.Status == wire.Waiting && sum == "clean":
			sum = "waiting"
		}
	}
	return sum
}

func plainAll(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = plain(l)
	}
	return out
}
