package bus_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/wire"
)

// almighty is a plain client that may do with streams what even the controller may not: to make what an older one, or an accident, left.
func almighty(t *testing.T, s *bustest.Server, c *bustest.Cast) jetstream.JetStream {
	t.Helper()
	file, _, err := busauth.Compose(c.Records)
	if err != nil {
		t.Fatal(err)
	}
	wide := bytes.Replace(file, []byte(`"$JS.ACK.CONTROL.enrolments.>"`), []byte(`"$JS.>", "mesh.>", "$JS.ACK.CONTROL.enrolments.>"`), 1)
	if err := s.SetUsers(wide); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(s.Raw(t, c, wire.ControllerUser, nats.CustomInboxPrefix(wire.InboxPrefix(wire.ControllerUser))))
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func filters(t *testing.T, js jetstream.JetStream) map[string]string {
	t.Helper()
	stream, err := js.Stream(t.Context(), wire.StreamControl)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	list := stream.ListConsumers(t.Context())
	for info := range list.Info() {
		got[info.Name] = info.Config.FilterSubject
	}
	if list.Err() != nil {
		t.Fatal(list.Err())
	}
	return got
}

func wantedFilters() map[string]string {
	want := map[string]string{}
	for _, f := range wire.FollowedSubjects {
		if f.Consumer != "" {
			want[f.Consumer] = f.Subject
		}
	}
	return want
}

// BUS-10, BUS-11: consumers with another filter and in no list go, missing ones come, and what lies on a subject nobody follows is set
// aside. Raising again changes nothing.
func TestRaiseReconciles(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	js := almighty(t, s, c)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: wire.StreamControl, Subjects: []string{"mesh.control.>"}, Retention: jetstream.WorkQueuePolicy})
	if err != nil {
		t.Fatal(err)
	}
	for name, filter := range map[string]string{"reports": "mesh.control.*.other", "stranger": wire.SubjectReports} {
		if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			Durable: name, FilterSubject: filter, AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
	}
	for i, subject := range []string{"mesh.control.x.strange", "mesh.control.x.strange", wire.ReportSubject(c.Hub)} {
		if _, err := js.Publish(t.Context(), subject, fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	// The one with another filter has gone past the report.
	if _, err := js.Publish(t.Context(), "mesh.control.x.other", nil); err != nil {
		t.Fatal(err)
	}
	past, err := stream.Consumer(t.Context(), "reports")
	if err != nil {
		t.Fatal(err)
	}
	m, err := past.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	controller := s.Controller(t, c)
	for range 2 {
		if diff := cmp.Diff(wantedFilters(), filters(t, js)); diff != "" {
			t.Errorf("consumers (-want +got):\n%s", diff)
		}
		dead, err := bus.DeadLetters(t.Context(), controller, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(dead) != 2 || dead[0].Subject != "mesh.control.x.strange" || string(dead[0].Data) != "1" || string(dead[1].Data) != "0" {
			t.Errorf("dead letters %+v", dead)
		}
		list, err := bus.Backlogs(t.Context(), controller)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]bus.Backlog{{Consumer: "reports", Waiting: 1}, {Consumer: "rekeys"}, {Consumer: "enrolments"}}, list); diff != "" {
			t.Errorf("backlogs (-want +got):\n%s", diff)
		}
		if err := bus.Raise(t.Context(), controller); err != nil {
			t.Fatal(err)
		}
	}
}

// BUS-10: a stream that is lost, or whose consumers are, is raised anew beneath whoever follows it; one that is emptied has its
// consumers asserted anew.
func TestFollowOutlivesTheStream(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	o := s.Options(t, c, wire.ControllerUser)
	controller := s.Open(t, o)
	if err := bus.Raise(t.Context(), controller); err != nil {
		t.Fatal(err)
	}
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	var h heard
	follow(t, controller, "reports", func(_ context.Context, m bus.Message) bus.Verdict {
		h.add(m)
		if strings.HasSuffix(string(m.Data), "stuck") {
			return bus.StoreAway(time.Hour)
		}
		return bus.Done()
	})
	report := func(body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return node.PublishStored(ctx, wire.ReportSubject(c.Hub), envelope(t, wire.KindReport, string(c.Hub), body))
	}
	last := func(body string) func() error {
		return func() error {
			for _, m := range h.list() {
				if strings.HasSuffix(string(m.Data), body) {
					return nil
				}
			}
			return fmt.Errorf("%q not heard", body)
		}
	}
	if err := report("stuck"); err != nil {
		t.Fatal(err)
	}
	eventually(t, last("stuck"))
	if err := bus.Empty(t.Context(), controller); err != nil {
		t.Fatal(err)
	}
	if err := settled(t, controller); err != nil {
		t.Error(err)
	}
	if err := report("after emptying"); err != nil {
		t.Fatal(err)
	}
	eventually(t, last("after emptying"))

	js := almighty(t, s, c)
	if err := js.DeleteConsumer(t.Context(), wire.StreamControl, "reports"); err != nil {
		t.Fatal(err)
	}
	if err := report("after losing the consumer"); err != nil {
		t.Fatal(err)
	}
	eventually(t, last("after losing the consumer"))

	s.Lose(t)
	eventually(t, func() error { return report("after losing all") })
	eventually(t, last("after losing all"))
}

// BUS-7, GEN-9: a sender fills its own share of the stream and nobody else's; it is told.
func TestShareOfTheStream(t *testing.T) {
	c := bustest.NewCast(t)
	flooder := c.AddNode(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	flood, node := s.Connect(t, c, wire.NodeUser(flooder)), s.Connect(t, c, wire.NodeUser(c.Hub))
	for range bus.MaxPerSubject {
		if err := flood.PublishStored(t.Context(), wire.ReportSubject(flooder), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	err := flood.PublishStored(t.Context(), wire.ReportSubject(flooder), []byte("x"))
	if appliance.KindOf(err) != appliance.Unavailable || !strings.Contains(err.Error(), "per subject") {
		t.Errorf("one more: %v", err)
	}
	if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), []byte("x")); err != nil {
		t.Errorf("another sender: %v", err)
	}
	eventually(t, func() error { // the consumer counts after the stream has acknowledged
		list, err := bus.Backlogs(t.Context(), controller)
		if err == nil && list[0].Waiting != bus.MaxPerSubject+1 {
			err = fmt.Errorf("backlogs %+v", list)
		}
		return err
	})
}

// BUS-11, SAFE-2: DEADLETTER holds no more than its bound, the newest; what is too large for it is cut, and the size is kept.
func TestDeadletterIsBounded(t *testing.T) {
	c := bustest.NewCast(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	follow(t, controller, "reports", func(context.Context, bus.Message) bus.Verdict { return bus.Done() })
	node := s.Connect(t, c, wire.NodeUser(c.Hub))
	junk := bytes.Repeat([]byte("x"), wire.MaxEnvelope)
	const n = bus.MaxDeadBytes/wire.MaxEnvelope + 6
	for i := range n {
		copy(junk, fmt.Sprintf("%d ", i))
		if err := node.PublishStored(t.Context(), wire.ReportSubject(c.Hub), junk); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error { return settled(t, controller) })
	dead, err := bus.DeadLetters(t.Context(), controller, n)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for i, d := range dead {
		size += len(d.Data)
		if want := fmt.Sprintf("%d ", n-1-i); !strings.HasPrefix(string(d.Data), want) || d.Size != len(junk) || len(d.Data) >= len(junk) {
			t.Errorf("dead letter %d begins %q: %d of %d bytes", i, d.Data[:5], len(d.Data), d.Size)
		}
	}
	if len(dead) >= n || len(dead) < n/2 || size > bus.MaxDeadBytes {
		t.Errorf("%d of %d dead letters with %d bytes are kept", len(dead), n, size)
	}
}

func FuzzRecognise(f *testing.F) {
	f.Add("mesh.control.nabc.report", []byte("MSH1"))
	f.Add("mesh.alive.nabc", envelope(f, wire.KindAlive, "nabc", "{}"))
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		m := bus.Message{Subject: subject, Data: data}
		if reason := bus.Recognise(&m); (reason == "") != (m.Header.Kind != "") || len(reason) > 1024 {
			t.Errorf("%q: reason %q, header %+v", subject, reason, m.Header)
		}
	})
}
