package appliancetest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/identity"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newKeys(t *testing.T) identity.NodeKeys { return must(identity.GenerateNode())(t) }

// records is everything in the store, table by table, but the tables named.
func records(t *testing.T, m *appliancetest.Mesh, but ...string) map[string]string {
	t.Helper()
	db := m.Database.SQL(t)
	defer db.Close()
	rows := must(db.QueryContext(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = 'public'`))(t)
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			t.Fatal(err)
		}
		out[table] = ""
	}
	for _, table := range slices.Collect(maps.Keys(out)) {
		if slices.Contains(but, table) {
			delete(out, table)
			continue
		}
		var text string
		if err := db.QueryRowContext(t.Context(), `SELECT COALESCE(string_agg(x::text, E'\n' ORDER BY x::text), '') FROM `+table+` AS x`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		out[table] = text
	}
	if len(out) < 10 {
		t.Fatalf("only %d tables", len(out))
	}
	return out
}

// still waits until what happened last has had all its consequences: longer without a change than a membership waits for others.
func still(t *testing.T, m *appliancetest.Mesh) {
	t.Helper()
	last, since := records(t, m), time.Now()
	m.Wait("the records are still", func() string {
		if now := records(t, m); !maps.Equal(last, now) {
			last, since = now, time.Now()
		}
		if time.Since(since) < 1500*time.Millisecond {
			return "they changed a moment ago"
		}
		return ""
	})
}

func sameRecords(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("%s changed the records:\n%s", what, d)
	}
}

// sequence is the last that a node's reports have used.
func sequence(t *testing.T, n *appliancetest.Node) uint64 {
	t.Helper()
	var box struct{ Sequence uint64 }
	if err := json.Unmarshal(must(os.ReadFile(filepath.Join(n.Dir, "outbox.json")))(t), &box); err != nil {
		t.Fatal(err)
	}
	return box.Sequence
}

// folder is what an agent has on disk, but for its outbox.
func folder(t *testing.T, n *appliancetest.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, e := range must(os.ReadDir(n.Dir))(t) {
		if e.Name() != "outbox.json" && !strings.HasSuffix(e.Name(), ".tmp") {
			out[e.Name()] = string(must(os.ReadFile(filepath.Join(n.Dir, e.Name())))(t))
		}
	}
	return out
}

func count(n int, want int) string {
	if n == want {
		return ""
	}
	return fmt.Sprintf("%d of %d", n, want)
}
