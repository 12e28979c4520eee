package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/disk/disktest"
	"github.com/novox/mesh/appliance/wire"
)

// GEN-9: probes write, touch no message and no consumer, and take no more room the more there are.
func TestProbe(t *testing.T) {
	c := bustest.NewCast(t)
	dir := t.TempDir()
	s := bustest.StartOn(t, c.Records, dir)
	controller := s.Controller(t, c)
	follow(t, controller, "reports", func(_ context.Context, m bus.Message) bus.Verdict { return bus.StoreAway(time.Hour) })
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), envelope(t, wire.KindReport, string(c.Hub), "{}")); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(s.Raw(t, c, wire.ControllerUser, nats.CustomInboxPrefix(wire.InboxPrefix(wire.ControllerUser))))
	if err != nil {
		t.Fatal(err)
	}
	last := func(name string) uint64 {
		t.Helper()
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.LastSeq
	}
	const n = 300
	for range n {
		if err := bus.Probe(t.Context(), controller); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]uint64{wire.StreamControl: 1, wire.StreamDeadletter: 0, wire.StreamProbe: n} {
		if got := last(name); got != want {
			t.Errorf("%s has come to message %d, want %d", name, got, want)
		}
	}
	list, err := bus.Backlogs(t.Context(), controller)
	if err != nil || list[0].Open != 1 || list[0].Waiting != 0 {
		t.Errorf("backlogs %+v, %v", list, err)
	}
	if got := size(t, filepath.Join(dir, "data")); got > 3<<20 {
		t.Errorf("%d probes take %d bytes", n, got)
	}
}

func size(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir() {
			return nil
		}
		if info, e := e.Info(); err == nil && e == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// GEN-9: on a full disk a probe finds it out, and every stream that a write failed in, until the broker is restarted with space.
func TestProbeOnAFullDisk(t *testing.T) {
	c := bustest.NewCast(t)
	small := disktest.Small(t, 8<<20)
	s := bustest.StartOn(t, c.Records, small)
	controller := s.Controller(t, c)
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	if err := bus.Probe(t.Context(), controller); err != nil || s.StoreErr() != nil {
		t.Fatal(err, s.StoreErr())
	}
	free := disktest.Fill(t, small)
	if err := bus.Probe(t.Context(), controller); !appliance.IsReason(err, bus.Broken) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the first probe says %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := node.PublishStored(short, wire.ReportSubject(c.Hub), make([]byte, 64<<10)); err == nil {
		t.Error("a report was acknowledged on a full disk")
	}
	free()
	{ // nothing mends by itself
		err := bus.Probe(t.Context(), controller)
		for _, name := range []string{wire.StreamControl, wire.StreamProbe} {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("stream %s can be written no more", name)) {
				t.Errorf("%s: the probe says %v", name, err)
			}
		}
		if s.StoreErr() == nil {
			t.Error("the broker says nothing")
		}
	}
	if err := s.Server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return bus.Probe(t.Context(), controller) })
	if err := s.StoreErr(); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		return node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), envelope(t, wire.KindReport, string(c.Hub), "{}"))
	})
}
