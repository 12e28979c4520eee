package bus_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/bus/bustest"
	"github.com/novox/mesh/appliance/wire"
)

// SAFE-2, NODE-6: one node that says more than anybody needs to delays nobody else's alives, whatever it says.
func TestFloodDelaysNobody(t *testing.T) {
	c := bustest.NewCast(t)
	evil, victim := c.AddNode(t), c.AddNode(t)
	s := bustest.Start(t, c.Records)
	controller := s.Controller(t, c)
	arrived := make(chan time.Time, 1024)
	if _, err := controller.Subscribe(wire.SubjectAlives, func(m bus.Message) {
		if m.Subject == wire.AliveSubject(victim) {
			arrived <- time.Now()
		}
	}); err != nil {
		t.Fatal(err)
	}
	attacker, honest := s.Raw(t, c, wire.NodeUser(evil)), s.Raw(t, c, wire.NodeUser(victim))
	body := make([]byte, 100<<10)
	rand.Read(body)
	for name, data := range map[string][]byte{"garbage": []byte("garbage"), "envelopes": envelope(t, wire.KindAlive, string(evil), `{"run":"a"}`), "long ones": envelope(t, wire.KindAlive, string(evil), string(body))} {
		t.Run(name, func(t *testing.T) {
			stop, stopped := make(chan struct{}), make(chan int)
			go func() {
				n := 0
				defer func() { stopped <- n }()
				for {
					select {
					case <-stop:
						return
					default:
						if attacker.Publish(wire.AliveSubject(evil), data) != nil {
							return
						}
						n++
					}
				}
			}()
			worst := time.Duration(0)
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
				begun := time.Now()
				for heard := false; !heard; { // one may get lost, as any; the next comes soon
					if err := honest.Publish(wire.AliveSubject(victim), envelope(t, wire.KindAlive, string(victim), `{"run":"b"}`)); err != nil {
						t.Fatal(err)
					}
					select {
					case at := <-arrived:
						worst, heard = max(worst, at.Sub(begun)), true
					case <-time.After(time.Second):
					}
					if time.Since(begun) > 20*time.Second {
						t.Fatal("no honest alive arrives")
					}
				}
			}
			close(stop)
			t.Logf("%d messages flooded, the slowest honest one took %s, %d left unread", <-stopped, worst, controller.Status().Floods)
			if worst > 5*time.Second {
				t.Errorf("an honest alive took %s", worst)
			}
		})
	}
}
