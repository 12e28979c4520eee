package store_test

import (
	"fmt"
	"testing"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/store/storetest"
	"github.com/novox/mesh/appliance/wire"
)

// durableStore is on a server of its own that syncs what it acknowledges.
func durableStore(t testing.TB) *store.Store {
	t.Helper()
	c, err := storetest.Start(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	dsn, err := c.Create("mesh")
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), store.Config{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func BenchmarkEnrol(b *testing.B) {
	s := durableStore(b)
	if err := s.Found(b.Context(), by(), genesis(b)); err != nil {
		b.Fatal(err)
	}
	if err := s.RegisterModule(b.Context(), by(), parse(b, plain)); err != nil {
		b.Fatal(err)
	}
	token := newToken(b, s, 10000)
	node := 0
	for b.Loop() {
		b.StopTimer() // making keys is the joiner's work
		node++
		c := claim(b, token, fmt.Sprintf("n%d", node))
		c.Modules = []appliance.ModuleName{"plain"}
		b.StartTimer()
		if _, err := s.Enrol(b.Context(), by(), c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRecordReport(b *testing.B) {
	s := durableStore(b)
	g := genesis(b)
	if err := s.Found(b.Context(), by(), g); err != nil {
		b.Fatal(err)
	}
	report := wire.Report{About: about(1), Facts: binds(4222, 443), Health: []wire.Health{{Instance: "web", State: wire.Healthy, Since: start}}}
	for i := range 20 {
		report.Outcomes = append(report.Outcomes, wire.Outcome{ID: fmt.Sprintf("web/file/%d", i), Instance: "web", Kind: wire.File, Status: wire.Unchanged})
	}
	sequence, hub := uint64(0), speaker(b, s, g.Hub.ID)
	for b.Loop() {
		sequence++
		if _, err := s.RecordReport(b.Context(), hub, sequence, start, report, false); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSmallestWrite is the reference: one row in one transaction on the same server.
func BenchmarkSmallestWrite(b *testing.B) {
	s := durableStore(b)
	n := 0
	for b.Loop() {
		n++
		if err := s.SetUsersDigest(b.Context(), appliance.DigestOf(fmt.Append(nil, n))); err != nil {
			b.Fatal(err)
		}
	}
}
