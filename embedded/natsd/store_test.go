package natsd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance/disk/disktest"
)

// GEN-9, SAFE-5: a stream on a full disk says so, and goes on saying so with space back, until the broker is restarted in this process:
// on the same port, with the same users, everybody back by themselves, and everything that was acknowledged.
func TestFullDisk(t *testing.T) {
	small := disktest.Small(t, 8<<20)
	cfg := config(t.TempDir())
	cfg.StoreDir = small + "/streams"
	var wrong atomic.Int32
	cfg.Wrong = func() { wrong.Add(1) }
	s := start(t, cfg)
	ctl := newPerson(t, Control, []string{"$JS.API.>", "work.*"}, []string{"_INBOX.>", "a"})
	setUsers(t, s, ctl)
	c := connect(t, s, ctl)
	pipe, err := nats.Connect("", nats.InProcessServer(s.InProcess()), ctl.login(), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	js, err := jetstream.New(c.Conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.*"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]bool{} // what was acknowledged and not taken
	publish := func(body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := js.Publish(ctx, "work.x", append([]byte(body+" "), make([]byte, 1000)...))
		if err == nil {
			kept[body] = true
		}
		return err
	}
	for i := range 50 {
		if err := publish(fmt.Sprint("before ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.StoreErr(); err != nil {
		t.Fatalf("with space: %v", err)
	}

	free := disktest.Fill(t, small)
	var refusal error
	for i := 0; refusal == nil; i++ {
		refusal = publish(fmt.Sprint("full ", i))
	}
	if !errors.Is(refusal, context.DeadlineExceeded) {
		t.Errorf("on a full disk a publisher hears %v", refusal)
	}
	if err := s.StoreErr(); err == nil || wrong.Load() == 0 {
		t.Errorf("on a full disk the broker says %v, %d errors told", err, wrong.Load())
	}
	free()
	if err := publish("space is back"); err == nil || s.StoreErr() == nil {
		t.Errorf("the error is not kept any more (%v, %v): is the restart still needed?", err, s.StoreErr())
	}

	addr := s.Addr().String()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if s.Addr().String() != addr {
		t.Errorf("listens on %s, before on %s", s.Addr(), addr)
	}
	waitReconnected(t, c)
	exchangeBack := func() error {
		if !pipe.IsConnected() || pipe.Stats().Reconnects == 0 {
			return fmt.Errorf("the pipe is %s", pipe.Status())
		}
		return nil
	}
	if err := poll(t.Context(), exchangeBack); err != nil {
		t.Error(err)
	}
	if err := publish("after"); err != nil || s.StoreErr() != nil {
		t.Errorf("after the restart: %v, %v", err, s.StoreErr())
	}
	consumer, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := consumer.FetchNoWait(2 * len(kept))
	if err != nil {
		t.Fatal(err)
	}
	for m := range batch.Messages() {
		body := string(m.Data()[:len(m.Data())-1001])
		delete(kept, body)
	}
	if len(kept) > 0 {
		t.Errorf("acknowledged and lost: %v", kept)
	}
	pipe.Close()
	setUsers(t, s, newPerson(t, Control, []string{"x"}, []string{"x"})) // rights still change, and cut
	select {
	case <-c.closed:
	case <-time.After(5 * time.Second):
		t.Error("a user removed after the restart is still there")
	}
	s.Close()
	if err := s.Restart(); err == nil {
		t.Error("a closed broker was started again")
	}
}
