package store_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

func wantAway(t *testing.T, what string, err error) {
	t.Helper()
	if !store.IsUnavailable(err) {
		t.Errorf("%s while the store is away: %v", what, err)
	}
}

// BUS-12, SAFE-5: while the store is away everything says so, by kind, and the same store goes on when it is back.
func TestAway(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	c := claim(t, newToken(t, s, 1), "n2")
	d.Away(t)
	_, err := s.Enrol(t.Context(), by(), c)
	wantAway(t, "Enrol", err)
	_, err = s.RecordReport(t.Context(), store.Speaker{Node: g.Hub.ID}, 1, start, wire.Report{About: about(1)}, false)
	wantAway(t, "RecordReport", err)
	_, err = s.Nodes(t.Context())
	wantAway(t, "Nodes", err)
	_, _, err = s.IssueDeclaration(t.Context(), g.Hub.ID, about(1).Digest, 1, sealed)
	wantAway(t, "IssueDeclaration", err)
	wantAway(t, "Ping", s.Ping(t.Context()))
	wantAway(t, "Seen", s.Seen(t.Context(), []store.Seen{{Speaker: store.Speaker{Node: g.Hub.ID}, At: start}}))
	_, err = store.Open(t.Context(), store.Config{DSN: d.DSN})
	wantAway(t, "Open", err)
	_, err = store.Open(t.Context(), store.Config{DSN: "host=" + t.TempDir() + " user=mesh dbname=mesh"})
	wantAway(t, "Open where nothing listens", err)

	d.Back(t)
	if _, err := s.Enrol(t.Context(), by(), c); err != nil {
		t.Errorf("after it came back: %v", err)
	}
	// A refusal is no absence.
	_, err = s.Enrol(t.Context(), by(), claim(t, newToken(t, s, 1), "n2"))
	if store.IsUnavailable(err) || err == nil {
		t.Errorf("a refusal reads as an absence: %v", err)
	}
}

// SAFE-5, NODE-4: cut off in the middle of a transaction, nothing of it stays, and the same claim then succeeds.
func TestCutInTheMiddle(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	c := claim(t, newToken(t, s, 1), "n2")
	before := everything(t, s)
	whole := c.Issue
	c.Issue = func(id appliance.NodeID, name appliance.NodeName, a netip.Addr) ([]byte, error) {
		d.Cut(t)
		return whole(id, name, a)
	}
	_, err := s.Enrol(t.Context(), by(), c)
	wantAway(t, "Enrol", err)
	_, issued, err := s.IssueDeclaration(t.Context(), g.Hub.ID, about(1).Digest, 1, func(n appliance.Number) ([]byte, error) {
		d.Cut(t)
		return sealed(n)
	})
	wantAway(t, "IssueDeclaration", err)
	latest, err := s.Latest(t.Context())
	if issued || len(latest) != 0 || err != nil {
		t.Errorf("half a declaration: %+v %v", latest, err)
	}
	if diff := cmp.Diff(before, everything(t, s), addresses); diff != "" {
		t.Errorf("half an enrolment stayed: %s", diff)
	}
	c.Issue = whole
	if done, err := s.Enrol(t.Context(), by(), c); err != nil || done.Repeated {
		t.Errorf("the same claim again: %+v %v", done, err)
	}
}

// BUS-12: a caller that waits no longer is told that the store did not answer, not that its message is bad.
func TestGivingUp(t *testing.T) {
	d := storetest.NewDatabase(t)
	s, g := d.Open(t), genesis(t)
	if err := s.Found(t.Context(), by(), g); err != nil {
		t.Fatal(err)
	}
	holder, err := d.SQL(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback()
	if _, err := holder.Exec(`SELECT FROM mesh FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	_, err = s.Enrol(ctx, by(), claim(t, newToken(t, s, 1), "n2"))
	wantAway(t, "Enrol", err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the cause is lost: %v", err)
	}
}

// SAFE-4: a DSN's password is in no error.
func TestPasswordIsNotShown(t *testing.T) {
	for _, dsn := range []string{
		"postgres://mesh:hunter2@127.0.0.1:1/mesh?connect_timeout=1",
		"postgres://mesh:hunter2@[::1/mesh",
		"host=" + os.TempDir() + " user=mesh password=hunter2 dbname=mesh",
		"host=h password=hunter2 port=many",
		"host=h password='hunter2",
	} {
		_, err := store.Open(t.Context(), store.Config{DSN: dsn})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v", err)
		}
	}
}
