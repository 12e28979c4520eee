package appliancetest_test

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/wire"
)

// victim is a node with something on it, its controller gone, and somebody who can say anything on the bus.
type victim struct {
	*appliancetest.Node
	mesh     *appliancetest.Mesh
	impostor *bus.Link
	old, now []byte // its declarations
	members  []byte
	earlier  []byte // membership
	machine  string
	folder   map[string]string
}

func newVictim(t *testing.T) *victim {
	t.Helper()
	m := appliancetest.New(t)
	earlier := must(m.Store.LatestMembership(t.Context()))(t).Envelope
	v := &victim{mesh: m, Node: m.AddNode("n1"), earlier: earlier}
	v.old = must(m.Store.Latest(t.Context()))(t)[v.ID].Envelope
	register(m, "one")
	assign(m, "n1")
	m.Push()
	m.Current()
	m.Wait("the hub knows the node", func() string { return count(len(m.Hub.Machine.Overlay().Peers), 1) })
	v.now = must(m.Store.Latest(t.Context()))(t)[v.ID].Envelope
	v.members = must(m.Store.LatestMembership(t.Context()))(t).Envelope
	m.Hub.Stop()
	m.StopController()
	v.impostor = m.Impostor()
	v.take(t)
	return v
}

// take notes how the node is, once it is still.
func (v *victim) take(t *testing.T) {
	v.machine = v.Machine.String()
	v.mesh.Wait("the account is on disk", func() string {
		now := folder(t, v.Node)
		same := maps.Equal(now, v.folder)
		v.folder = now
		if same {
			return ""
		}
		return "its files change"
	})
	v.Machine.Commands()
}

// play publishes and waits until the node has refused as many.
func (v *victim) play(t *testing.T, subject string, forged []forgery) {
	t.Helper()
	refused := func() int { return v.mesh.Log.Count("refused", "part=n1") }
	before, said := refused(), sequence(t, v.Node)
	for i, f := range forged { // one by one: a higher number may overtake a lower one unseen
		if err := v.impostor.Publish(subject, f.data); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		v.mesh.Wait(f.name+" on "+subject+" is refused", func() string { return count(refused()-before, i+1) })
	}
	v.unmoved(t)
	if now := sequence(t, v.Node); now-said > 5 {
		t.Errorf("%d reports because of %d forgeries", now-said, len(forged))
	}
}

func (v *victim) unmoved(t *testing.T) {
	t.Helper()
	if c := v.Machine.Commands(); len(c) > 0 {
		t.Errorf("on the machine: %q", c)
	}
	if d := cmp.Diff(v.machine, v.Machine.String()); d != "" {
		t.Errorf("the machine:\n%s", d)
	}
	if d := cmp.Diff(v.folder, folder(t, v.Node)); d != "" {
		t.Errorf("on disk:\n%s", d)
	}
}

// next is a good document with the number after the present one.
func next(t *testing.T, m *appliancetest.Mesh, envelope []byte, by uint64) message {
	good := takeApart(t, envelope, m.Keys.Signing)
	return good.with("counter", good.head["counter"].(uint64)+by)
}

// numbers are documents whose own signature holds and whose number is not one to take.
func numbers(good message) (all []forgery) {
	epoch, counter := good.head["epoch"].(uint64), good.head["counter"].(uint64)
	for _, n := range []appliance.Number{{}, {Epoch: epoch}, {Counter: counter}, {Epoch: epoch, Counter: counter - 1}, {Epoch: epoch - 1, Counter: counter + 5},
		{Epoch: epoch, Counter: counter + 1<<40 + 1}, {Epoch: epoch + 1<<40 + 1, Counter: counter + 1}, {Epoch: epoch, Counter: 1<<64 - 1}, {Epoch: 1<<64 - 1, Counter: 1<<64 - 1}} {
		all = append(all, forgery{"number " + n.String(), good.with("epoch", n.Epoch).with("counter", n.Counter).sealed()})
	}
	other := good.saying(append([]byte(" "), good.body...)) // DEC-3: an alarm
	return append(all, forgery{"the same number for other bytes", other.sealed()},
		forgery{"version -1", good.with("counter", counter+1).with("version", -1).sealed()},
		forgery{"version 99", good.with("counter", counter+1).with("version", 99).sealed()})
}

// DEC-3, NET-11, BUS-14, SAFE-1, SAFE-2: who has the controller's right on the bus, and not the mesh's key, moves nothing on a node; nor
// do old documents, whenever they are played, and whatever became of the node's files.
func TestForgedDeclarationsAndMemberships(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	m := v.mesh
	others := map[string]ed25519.PrivateKey{"the node itself": v.Keys.Identity, "the hub's node": m.Hub.Keys.Identity, "an operator": m.Admin.SigningKey()}

	declaration, members := wire.DeclarationSubject(v.ID), wire.SubjectMembership
	forged := forgeries(t, next(t, m, v.now, 1), others)
	forged = slices.DeleteFunc(forged, func(f forgery) bool { return strings.HasPrefix(f.name, "body: ") }) // the mesh's own word: below
	forged = append(forged, numbers(takeApart(t, v.now, m.Keys.Signing))...)
	forged = append(forged, forgery{"the one before", v.old}, forgery{"an earlier membership", v.earlier}, forgery{"the hub's", must(m.Store.Latest(t.Context()))(t)[m.Hub.ID].Envelope})
	v.play(t, declaration, forged)
	t.Logf("%d forged declarations", len(forged))

	forged = forgeries(t, next(t, m, v.members, 1), others)
	forged = append(forged, numbers(takeApart(t, v.members, m.Keys.Signing))...)
	forged = append(forged, forgery{"the one before", v.earlier}, forgery{"a declaration", v.now})
	for name, body := range absurdMembers(t, v) {
		forged = append(forged, forgery{name, next(t, m, v.members, 1).saying(body).sealed()})
	}
	v.play(t, members, forged)
	v.play(t, declaration, slices.DeleteFunc(forged, func(f forgery) bool { return f.name == "a declaration" })) // a membership is sent again there
	t.Logf("%d forged memberships, on two subjects", len(forged))

	t.Run("agent restarted", func(t *testing.T) {
		v.Restart()
		connected(t, v)
		v.take(t)
		v.play(t, declaration, []forgery{{"the one before", v.old}, {"again", v.old}})
		v.play(t, members, []forgery{{"the one before", v.earlier}})
	})
	for name, damage := range map[string]func(string) error{
		"declaration lost":    os.Remove,
		"declaration damaged": func(path string) error { return os.WriteFile(path, v.now[:len(v.now)/2], 0o600) },
		"declaration of old":  func(path string) error { return os.WriteFile(path, v.old, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			v.Stop()
			if err := damage(filepath.Join(v.Dir, "declaration")); err != nil {
				t.Fatal(err)
			}
			v.Start()
			connected(t, v)
			v.take(t)
			v.play(t, declaration, []forgery{{"the one before", v.old}, {"the same number for other bytes", next(t, m, v.now, 0).saying([]byte("{}")).sealed()}})
			if err := v.impostor.Publish(declaration, v.now); err != nil { // the true one mends it
				t.Fatal(err)
			}
			m.Wait("the declaration is back", func() string {
				if have := folder(t, v.Node)["declaration"]; have != string(v.now) {
					return fmt.Sprintf("%d bytes", len(have))
				}
				return ""
			})
			v.take(t)
			if c := v.Machine.Commands(); len(c) > 0 {
				t.Errorf("it changed the machine: %q", c)
			}
		})
	}
	t.Run("reported", func(t *testing.T) {
		v.play(t, declaration, []forgery{{"not one", []byte("x")}})
		m.StartController()
		m.Wait("the node tells that documents were refused", func() string {
			for _, w := range m.Node("n1").Warnings {
				if w.Code == "declaration-refused" && w.Remedy != "" {
					return ""
				}
			}
			return fmt.Sprint(m.Node("n1").Warnings)
		})
		register(m, "two")
		m.Push("n1")
		m.Current("n1")
		m.Wait("a good declaration ends the warning", func() string {
			if w := m.Node("n1").Warnings; len(w) > 0 {
				return fmt.Sprint(w)
			}
			return ""
		})
	})
}

// connected waits until the agent that was just started hears its subjects, and has heard everything.
func connected(t *testing.T, v *victim) {
	t.Helper()
	refused := func() int { return v.mesh.Log.Count("refused", "part=n1") }
	before := refused()
	v.mesh.Wait("the agent hears", func() string {
		if err := v.impostor.Publish(wire.DeclarationSubject(v.ID), []byte("x")); err != nil {
			return err.Error()
		}
		if refused() == before {
			return "it refuses nothing"
		}
		return ""
	})
	last, since := refused(), time.Now()
	v.mesh.Wait("nothing is under way", func() string {
		if now := refused(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 200*time.Millisecond {
			return "it refused a moment ago"
		}
		return ""
	})
}

// absurdMembers are bodies that the mesh's key has signed and that are no mesh.
func absurdMembers(t *testing.T, v *victim) map[string][]byte {
	t.Helper()
	var good wire.Membership
	if err := wire.Decode(takeApart(t, v.members, v.mesh.Keys.Signing).body, &good); err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	add := func(name string, change func(*wire.Membership)) {
		m := good
		m.Members = slices.Clone(good.Members)
		change(&m)
		out["members: "+name] = must(wire.Encode(m))(t)
	}
	add("none", func(m *wire.Membership) { m.Members = nil })
	add("no hub", func(m *wire.Membership) { m.Members[0].Hub, m.Members[1].Hub = false, false })
	add("two hubs", func(m *wire.Membership) { m.Members[0].Hub, m.Members[1].Hub = true, true })
	add("an address twice", func(m *wire.Membership) { m.Members[0].Address = m.Members[1].Address })
	add("a key twice", func(m *wire.Membership) { m.Members[0].Key = m.Members[1].Key })
	add("a name twice", func(m *wire.Membership) { m.Members[0].Name = m.Members[1].Name })
	add("an id twice", func(m *wire.Membership) { m.Members[0].ID = m.Members[1].ID })
	add("a name that breaks a line", func(m *wire.Membership) { m.Members[0].Name = "a\n127.0.0.1 localhost" })
	add("an address outside the range", func(m *wire.Membership) { m.Members[0].Address = m.Range.Addr().Prev() })
	add("a key that is none", func(m *wire.Membership) { m.Members[0].Key = "key" })
	add("an endpoint that breaks a line", func(m *wire.Membership) { m.Members[0].Endpoint = "a\nprivate_key=0:1" })
	add("no broker", func(m *wire.Membership) { m.Broker = nil })
	add("no port", func(m *wire.Membership) { m.Port = 0 })
	add("everything is the range", func(m *wire.Membership) { m.Range = must(m.Range.Addr().Prefix(0))(t) })
	add("many", func(m *wire.Membership) { m.Members = slices.Repeat(m.Members[:1], 4001) })
	return out
}

// DEC-5, SAFE-2: what the mesh itself signed and is no declaration is refused whole, reported, and leaves the machine as it was.
func TestUnreadableDeclarations(t *testing.T) {
	t.Parallel()
	v := newVictim(t)
	m := v.mesh
	bodies := []string{"", "null", "[]", "17", "{", string(bytes.Repeat([]byte(`{"a":`), 20_000)), `{"version":1e999999}`, `{"version":1,"version":1,"resources":[]}`,
		`{"version":1,"resources":[],"more":1}`, `{"version":2,"resources":[]}`, `{"version":1,"resources":[{"id":"a/user/a","instance":"a","kind":"user","after":["b"],"spec":{}}]}`}
	for i, body := range bodies {
		d := next(t, m, v.now, uint64(i+1)).saying([]byte(body))
		if err := v.impostor.Publish(wire.DeclarationSubject(v.ID), d.sealed()); err != nil {
			t.Fatal(err)
		}
		number := fmt.Sprintf("number=%d.%d ", d.head["epoch"], d.head["counter"])
		m.Wait("it is refused, once or more often", func() string { return count(min(m.Log.Count("apply declaration", "part=n1", number), 1), 1) })
	}
	if c := v.Machine.Commands(); len(c) > 0 || v.Machine.String() != v.machine {
		t.Errorf("on the machine: %q", c)
	}
	m.StartController()
	m.Wait("it is reported as ahead of the records", func() string {
		for _, w := range m.Node("n1").Warnings {
			if w.Code == "store-older" {
				return ""
			}
		}
		return fmt.Sprint(m.Node("n1").Warnings)
	})
}
