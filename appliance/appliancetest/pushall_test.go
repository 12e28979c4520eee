package appliancetest_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/appliancetest"
	"github.com/novox/mesh/appliance/identity"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/overlay"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// service is a module of usual size: a port, a setting, a folder of data, two files and a process.
const service = `{
  "module": "NAME", "description": "for benchmarks",
  "ports": {"http": {"port": 8080, "from": "mesh", "assign": true}},
  "settings": {"title": {"default": "a title", "description": "Shown on the front page"}},
  "resources": [
    {"kind": "user", "name": "NAME"},
    {"kind": "directory", "path": "${dir}/data", "class": "data", "owner": "NAME", "mode": "0750"},
    {"kind": "file", "path": "${dir}/app.ini", "owner": "NAME", "mode": "0640", "content": "title = ${setting:title}\nlisten = ${node:address}:${port:http}\nFILLER"},
    {"kind": "file", "path": "${dir}/log.ini", "owner": "NAME", "mode": "0640", "content": "FILLER"},
    {"kind": "process", "name": "web", "user": "NAME", "command": ["serve", "${dir}/app.ini"],
     "ready": {"http": "http://${node:address}:${port:http}/healthz"}, "alive": {"http": "http://${node:address}:${port:http}/healthz"}}
  ]
}`

// populate records nodes that no agent speaks for, each with four services beside the network, and lets the controller start with them.
func populate(b *testing.B, m *appliancetest.Mesh, nodes int) {
	b.Helper()
	token := store.Token{ID: appliance.NewTokenID(), Uses: nodes, ExpiresAt: time.Now().Add(time.Hour)}
	keys := must(identity.GenerateNode())(b).Public()
	token.Bus, token.Claim = keys.Bus, must(identity.ParsePublic(keys))(b).Identity
	by := store.By{Who: "test", At: time.Now()}
	if err := m.Store.CreateToken(b.Context(), by, token); err != nil {
		b.Fatal(err)
	}
	for i := range nodes {
		_, err := m.Store.Enrol(b.Context(), by, store.Enrolment{Token: token.ID, Keys: must(identity.GenerateNode())(b).Public(), Name: appliance.NodeName(fmt.Sprintf("m%d", i)),
			State: "/var/lib/mesh", Capabilities: wire.Capabilities{Wire: wire.Version, OS: "linux", Architecture: "amd64", Kinds: wire.ResourceKinds},
			Allocate: func(used []netip.Addr) (netip.Addr, error) { return overlay.Allocate(appliancetest.Range, used) },
			Issue: func(appliance.NodeID, appliance.NodeName, netip.Addr) ([]byte, error) {
				return []byte("certificate"), nil
			}})
		if err != nil {
			b.Fatal(err)
		}
	}
	db := m.Database.SQL(b)
	run := func(sql string, args ...any) {
		if _, err := db.ExecContext(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	run(`INSERT INTO assignment (instance, node, module, assigned_at) SELECT 'mesh-network', id, 'mesh-network', now() FROM node WHERE NOT hub`)
	for i := range 4 {
		name := fmt.Sprintf("service%d", i)
		manifest := strings.NewReplacer("NAME", name, "FILLER", strings.Repeat("a line of configuration\\n", 40)).Replace(service)
		m.Must(operators.ModuleRegister, operators.RegisterModule{Manifest: json.RawMessage(manifest)}, nil)
		run(`INSERT INTO assignment (instance, node, module, assigned_at) SELECT $1::text, id, $1::text, now() FROM node WHERE NOT hub`, name)
		run(`INSERT INTO port (instance, node, name, protocol, number, origin) SELECT $1, id, 'http', 'tcp', $2, 'assigned' FROM node WHERE NOT hub`, name, 20000+i)
	}
	run(`ANALYZE`)
	m.StopController()
	m.StartController()
}

// BenchmarkPushNothing1000: a push to a thousand nodes of five instances each, for which nothing has changed. Target: at most 1 ms a node.
func BenchmarkPushNothing1000(b *testing.B) {
	const nodes = 1000
	m := appliancetest.New(b)
	populate(b, m, nodes-1)
	begun := time.Now()
	if p := m.Push(); len(p.Nodes) != nodes {
		b.Fatalf("pushed to %d nodes", len(p.Nodes))
	}
	changed := time.Since(begun)
	for b.Loop() {
		for _, n := range m.Push().Nodes {
			if n.Sent {
				b.Fatalf("%s was sent declaration %s", n.Node, n.Number)
			}
		}
	}
	b.ReportMetric(float64(changed.Microseconds())/1000/nodes, "ms/node-changed")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N)/nodes, "ms/node")
}
