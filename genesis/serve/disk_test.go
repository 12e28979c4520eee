package serve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/disk"
	"github.com/novox/mesh/appliance/disk/disktest"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/wire"
)

const mib = disk.Size(1 << 20)

// step looks until the keeper says what is wanted: the code of its warning, empty for none.
func (k *keeper) step(t *testing.T, want string) {
	t.Helper()
	got := "nothing yet"
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		next := k.look(t.Context())
		got = k.warning.Code
		if got == want && (next == probeEvery) == (want != "hub-disk-full") {
			return
		}
	}
	t.Fatalf("the keeper warns of %q, want %q", got, want)
}

// GEN-9, SAFE-5: a full disk is said, the ballast let go, the broker restarted; with that used up too it waits for space; then all is as
// before, the ballast held again, and nothing that was acknowledged lost.
func TestFullDisk(t *testing.T) {
	c := bustest.NewCast(t)
	small := disktest.Small(t, 24*mib)
	s := bustest.StartOn(t, c.Records, small)
	controller := s.Controller(t, c)
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	k := newKeeper(small, disk.Ballast{Path: filepath.Join(small, "ballast"), Size: 4 * mib}, bustest.Logger(t))
	k.broker, k.probe = s.Server, func(ctx context.Context) error { return bus.Probe(ctx, controller) }

	var acknowledged []string
	publish := func(body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := node.PublishStored(ctx, wire.ReportSubject(c.Hub), report(t, c.Hub, body))
		if err == nil {
			acknowledged = append(acknowledged, body)
		}
		return err
	}
	until := func(what string, try func() error) {
		t.Helper()
		var err error
		for range 40 {
			if err = try(); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Fatalf("%s: %v", what, err)
	}

	k.step(t, "")
	if !k.ballast.Held() {
		t.Fatal("no ballast is held")
	}
	if err := publish("before"); err != nil {
		t.Fatal(err)
	}

	free := disktest.Fill(t, small)
	if err := publish(strings.Repeat("full ", 2000)); err == nil {
		t.Fatal("a full disk took a report")
	}
	k.step(t, "hub-disk-low")
	if k.ballast.Held() {
		t.Error("the ballast is held on a full disk")
	}
	until("a report after the restart", func() error { return publish("on the ballast") })

	disktest.Fill(t, small)
	if err := publish(strings.Repeat("full again ", 2000)); err == nil {
		t.Fatal("a full disk took a report")
	}
	k.step(t, "hub-disk-full")
	if w := k.warnings(); len(w) != 1 || !strings.Contains(w[0].Text, "of 24 MiB are free (0 %)") || !strings.Contains(w[0].Remedy, "free 2 MiB or more") {
		t.Errorf("warnings %+v", w)
	}

	free()
	k.step(t, "")
	if !k.ballast.Held() || len(k.warnings()) > 0 {
		t.Errorf("held %v, warnings %+v", k.ballast.Held(), k.warnings())
	}
	until("a report with space", func() error { return publish("after") })

	heard := make(chan string, 100)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go controller.Follow(ctx, "reports", func(_ context.Context, m bus.Message) bus.Verdict {
		_, body, _ := strings.Cut(string(m.Data), "body:")
		heard <- body
		return bus.Done()
	})
	for len(acknowledged) > 0 {
		select {
		case body := <-heard:
			acknowledged = slices.DeleteFunc(acknowledged, func(a string) bool { return a == body })
		case <-time.After(10 * time.Second):
			t.Fatalf("acknowledged and lost: %q", acknowledged)
		}
	}
}

func report(t *testing.T, node appliance.NodeID, body string) []byte {
	t.Helper()
	keys, err := identity.GenerateNode()
	if err != nil {
		t.Fatal(err)
	}
	data, err := wire.Seal(wire.Header{Kind: wire.KindReport, Version: wire.Version, Mesh: appliance.NewMeshID(), From: string(node), To: "x", Time: time.Now()},
		fmt.Append(nil, "body:", body), keys.Identity)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fakeBroker is broken for another reason than space.
type fakeBroker struct {
	err      error
	restarts int
}

func (f *fakeBroker) StoreErr() error { return f.err }
func (f *fakeBroker) Restart() error  { f.restarts++; return nil }

// GEN-9: a broker that cannot write although there is space is not restarted without end, and that is said.
func TestBrokerThatStaysBroken(t *testing.T) {
	f := &fakeBroker{err: fmt.Errorf("stream CONTROL: read-only file system")}
	k := newKeeper(t.TempDir(), disk.Ballast{}, bustest.Logger(t))
	k.broker, k.probe = f, func(context.Context) error { return nil }
	for range 100 {
		k.look(t.Context())
	}
	if f.restarts != 1 {
		t.Errorf("%d restarts at once", f.restarts)
	}
	for range 4 {
		k.next = time.Time{}
		k.look(t.Context())
	}
	if w := k.warnings(); f.restarts != 5 || k.pause != 16*time.Second || len(w) != 1 || w[0].Code != "hub-cannot-write" || !strings.Contains(w[0].Text, "read-only") {
		t.Errorf("%d restarts, the next in %s, warnings %+v", f.restarts, k.pause, w)
	}
	f.err = nil
	k.look(t.Context())
	if w := k.warnings(); len(w) > 0 || k.pause != 0 {
		t.Errorf("mended, and warns %+v", w)
	}
}

// GEN-9: what the store says is bounded, and its last words are kept.
func TestLogFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for run := range 3 {
		l, err := openLog(path, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if _, err := fmt.Fprintf(l, "run %d line %d\n", run, i); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var text string
	for _, name := range []string{path + ".1", path} {
		data, err := os.ReadFile(name)
		if err != nil || len(data) > 1000 {
			t.Errorf("%s has %d bytes: %v", name, len(data), err)
		}
		text += string(data)
	}
	if !strings.HasSuffix(text, "run 2 line 198\nrun 2 line 199\n") || len(text) < 1000 {
		t.Errorf("it ends with %q", text[max(0, len(text)-100):])
	}
}
