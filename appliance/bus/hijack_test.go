package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/busauth"
	"github.com/novox/mesh/appliance/wire"
)

// stage is a mesh with an attacker who has a node's credentials, and everybody it could aim at.
type stage struct {
	*bustest.Server
	cast         *bustest.Cast
	controller   *bus.Link
	attacker     *nats.Conn
	denied       *denials
	evil, victim appliance.NodeID
	reports      heard // by the controller
	requests     heard // by the controller
	victimHeard  heard // declarations, notices, membership
	operator     appliance.OperatorID
	operatorLink *bus.Link
	victimLink   *bus.Link
}

func newStage(t *testing.T) *stage {
	c := bustest.NewCast(t)
	st := &stage{cast: c, evil: c.AddNode(t), victim: c.AddNode(t), operator: c.AddOperator(t), denied: newDenials()}
	st.Server = bustest.Start(t, c.Records)
	st.controller = st.Controller(t, c)
	st.victimLink = st.Connect(t, c, wire.NodeUser(st.victim))
	st.operatorLink = st.Connect(t, c, wire.OperatorUser(st.operator))
	follow(t, st.controller, "reports", func(_ context.Context, m bus.Message) bus.Verdict {
		st.reports.add(m)
		return bus.Done()
	})
	st.hear(t, st.controller, wire.SubjectRequests, &st.requests)
	st.hear(t, st.victimLink, wire.DeclarationSubject(st.victim), &st.victimHeard)
	st.hear(t, st.victimLink, wire.NoticeSubject(st.victim), &st.victimHeard)
	st.hear(t, st.victimLink, wire.SubjectMembership, &st.victimHeard)
	st.attacker = st.Raw(t, c, wire.NodeUser(st.evil), nats.ErrorHandler(st.denied.note))
	return st
}

func (st *stage) hear(t *testing.T, l *bus.Link, subject string, h *heard) {
	t.Helper()
	if _, err := l.Subscribe(subject, func(m bus.Message) { h.add(m) }); err != nil {
		t.Fatal(err)
	}
}

// report stores one of the attacker's own reports, naming reply to the broker.
func (st *stage) report(t *testing.T, reply string) {
	t.Helper()
	if err := st.attacker.PublishRequest(wire.ReportSubject(st.evil), reply, envelope(t, wire.KindReport, string(st.evil), "{}")); err != nil {
		t.Fatal(err)
	}
	st.denied.after(t, st.attacker)
}

func (st *stage) undisturbed(t *testing.T) {
	t.Helper()
	eventually(t, func() error { return settled(t, st.controller) })
	if n := len(st.requests.list()); n != 0 {
		t.Errorf("the controller took %d requests", n)
	}
	for _, m := range st.victimHeard.list() {
		if _, err := wire.Peek(m.Data); err == nil {
			t.Errorf("the victim was given an envelope on %s", m.Subject)
		}
	}
}

// BUS-14, by acknowledgement: nobody acknowledges another's message, neither by publishing nor by naming the subject as a reply.
func TestHijackByAcknowledgement(t *testing.T) {
	st := newStage(t)
	const ack = "$JS.ACK.CONTROL.reports.1.1.1.1796083864260953012.0"
	for _, body := range []string{"", "+ACK", "+TERM", "-NAK"} {
		if err := st.attacker.Publish(ack, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	st.report(t, ack)
	if !st.denied.has(busauth.Publish, ack) || !st.denied.hasReply(ack) {
		t.Error("the broker lets a node at an acknowledgement")
	}
	if n := len(st.reports.list()); n != 0 {
		t.Errorf("%d reports were stored with an acknowledgement for their reply", n)
	}
	st.undisturbed(t)
}

// BUS-14, by publish-ack: the broker sends its acknowledgement wherever the publisher says. The broker's own subjects are refused;
// elsewhere the receivers find no envelope, whose signature would be the proof.
func TestHijackByPublishAck(t *testing.T) {
	st := newStage(t)
	for _, call := range []string{"STREAM.PURGE.CONTROL", "CONSUMER.DELETE.CONTROL.reports", "CONSUMER.RESET.CONTROL.reports", "STREAM.MSG.DELETE.CONTROL"} {
		st.report(t, "$JS.API."+call)
		if !st.denied.hasReply("$JS.API." + call) {
			t.Errorf("the broker lets a node name $JS.API.%s as its reply", call)
		}
	}
	targets := []string{
		wire.RequestSubject(st.operator, "operator.add"), wire.DeclarationSubject(st.victim), wire.NoticeSubject(st.victim),
		wire.SubjectMembership, wire.ReportSubject(st.victim), wire.AliveSubject(st.victim),
	}
	for _, target := range targets {
		st.report(t, target)
	}
	// They do land: without signatures each of these would have been believed.
	eventually(t, st.victimHeard.want(3))
	eventually(t, st.reports.want(len(targets)))
	eventually(t, func() error {
		dead, err := bus.DeadLetters(t.Context(), st.controller, 100)
		if err != nil {
			return err
		}
		subjects := map[string]string{}
		for _, d := range dead {
			subjects[d.Subject] = d.Reason
		}
		for _, subject := range []string{targets[0], targets[4]} {
			if !strings.Contains(subjects[subject], "not an envelope") {
				return fmt.Errorf("no dead letter of %s: %v", subject, subjects)
			}
		}
		return nil
	})
	for _, m := range st.reports.list() {
		if m.Subject != wire.ReportSubject(st.evil) {
			t.Errorf("the controller took a report on %s", m.Subject)
		}
	}
	st.undisturbed(t)
}

// BUS-14, BUS-9, by transport reply: the controller never answers where the transport says, so that no answer of its can be led
// into somebody's subject.
func TestHijackByTransportReply(t *testing.T) {
	st := newStage(t)
	request := envelope(t, wire.KindRequest, string(st.operator), "{}")
	operator := st.Raw(t, st.cast, wire.OperatorUser(st.operator))
	if err := operator.PublishRequest(wire.RequestSubject(st.operator, "node.list"), wire.DeclarationSubject(st.victim), request); err != nil {
		t.Fatal(err)
	}
	eventually(t, st.requests.want(1))
	m := st.requests.list()[0]
	// What the handler has of the message is this; there is no reply to take it from but the signed one.
	if m.Header.Reply != "" || m.Subject != wire.RequestSubject(st.operator, "node.list") {
		t.Errorf("message %+v", m)
	}
	err := st.controller.Answer(wire.OperatorUser(st.operator), m.Header.Reply, []byte("secret"))
	if appliance.KindOf(err) != appliance.Denied {
		t.Errorf("answer: %v", err)
	}
	if n := len(st.victimHeard.list()); n != 0 {
		t.Errorf("%d messages went to the victim", n)
	}
}

// BUS-14, BUS-9, by payload reply: an answer goes beneath the asker's own inbox or nowhere, and is counted.
func TestHijackByPayloadReply(t *testing.T) {
	st := newStage(t)
	asker := wire.OperatorUser(st.operator)
	replies := []string{
		"", wire.DeclarationSubject(st.victim), wire.InboxPrefix(wire.NodeUser(st.victim)) + ".r.x", wire.InboxPrefix(asker),
		wire.InboxPrefix(asker) + ".", wire.InboxPrefix(asker) + ".*", wire.InboxPrefix(asker) + ".>", wire.InboxPrefix(asker) + "x.y",
		wire.InboxPrefix(asker) + ".a b", wire.InboxPrefix(asker) + ".a\r\nPUB mesh.membership 1\r\nx", "$JS.API.STREAM.PURGE.CONTROL",
		wire.InboxPrefix(asker) + "..", wire.InboxPrefix(asker) + "." + strings.Repeat("x", 65),
	}
	for _, reply := range replies {
		if err := st.controller.Answer(asker, reply, []byte("secret")); appliance.KindOf(err) != appliance.Denied {
			t.Errorf("answer to %q: %v", reply, err)
		}
	}
	if n := st.controller.Status().ForeignReplies; n != uint64(len(replies)) {
		t.Errorf("%d foreign replies counted, want %d", n, len(replies))
	}
	// Nor can anybody else answer: the attacker may not publish beneath an inbox, not even its own.
	for _, user := range []string{asker, wire.NodeUser(st.evil), wire.ControllerUser} {
		subject := wire.InboxPrefix(user) + ".r.x"
		if err := st.attacker.Publish(subject, nil); err != nil {
			t.Fatal(err)
		}
		st.denied.after(t, st.attacker)
		if !st.denied.has(busauth.Publish, subject) {
			t.Errorf("a node may publish to %s", subject)
		}
	}
	st.undisturbed(t)
}

// BUS-14, by a stream read: no node reads a stream or pulls from a consumer, whatever it names as the reply.
func TestHijackByStreamRead(t *testing.T) {
	st := newStage(t)
	victim := wire.InboxPrefix(wire.NodeUser(st.victim)) + ".r.x"
	for _, call := range []string{"STREAM.MSG.GET.CONTROL", "DIRECT.GET.CONTROL", "DIRECT.GET.CONTROL." + wire.ReportSubject(st.victim),
		"CONSUMER.MSG.NEXT.CONTROL.reports", "CONSUMER.CREATE.CONTROL.mine", "STREAM.INFO.CONTROL"} {
		for _, reply := range []string{wire.InboxPrefix(wire.NodeUser(st.evil)) + ".x", victim, wire.DeclarationSubject(st.victim)} {
			if err := st.attacker.PublishRequest("$JS.API."+call, reply, []byte(`{"seq":1}`)); err != nil {
				t.Fatal(err)
			}
		}
		st.denied.after(t, st.attacker)
		if !st.denied.has(busauth.Publish, "$JS.API."+call) {
			t.Errorf("a node may ask $JS.API.%s", call)
		}
	}
	if n := len(st.victimHeard.list()); n != 0 {
		t.Errorf("%d messages went to the victim", n)
	}
	st.undisturbed(t)
}

// BUS-9: on a request that crosses a stream the transport's reply gets the stream's acknowledgement; the answer goes where the payload says.
func TestTransportReplyIsTheStreams(t *testing.T) {
	c := bustest.NewCast(t)
	token := c.AddToken(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	user := wire.TokenUser(token)
	follow(t, controller, "enrolments", func(_ context.Context, m bus.Message) bus.Verdict {
		if err := controller.Answer(user, m.Header.Reply, []byte("the answer")); err != nil {
			return bus.Dead(err.Error())
		}
		return bus.Done()
	})
	raw := s.Raw(t, c, user)
	transport, err := raw.SubscribeSync(wire.InboxPrefix(user) + ".transport")
	if err != nil {
		t.Fatal(err)
	}
	payload, err := raw.SubscribeSync(wire.InboxPrefix(user) + ".payload")
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.PublishRequest(wire.EnrolSubject(token), transport.Subject, asking(t, wire.KindHello, string(token), payload.Subject)); err != nil {
		t.Fatal(err)
	}
	m, err := transport.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var ack struct{ Stream string }
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Stream != wire.StreamControl {
		t.Errorf("the transport's reply brought %q: %v", m.Data, err)
	}
	if m, err = payload.NextMsg(5 * time.Second); err != nil || string(m.Data) != "the answer" {
		t.Errorf("the payload's reply brought %v: %v", m, err)
	}
	if m, err = transport.NextMsg(50 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("the transport's reply brought a second message %v: %v", m, err)
	}
}
