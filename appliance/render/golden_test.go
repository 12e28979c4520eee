package render_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/manifest"
	"github.com/novox/mesh/appliance/ports"
	"github.com/novox/mesh/appliance/render"
	"github.com/novox/mesh/appliance/resolve"
	"github.com/novox/mesh/appliance/wire"
	"github.com/novox/mesh/bundles"
)

var update = flag.Bool("update", false, "write what is rendered into the golden files")

// A golden file holds the records as lines in "records", other manifests as "NAME.json", and what comes of them: "plan NODE" and
// "content NODE" for each node, or "error".
//
//	node NAME [ADDRESS]           module NAME (a bundle, or NAME.json)
//	assign INSTANCE NODE MODULE   port INSTANCE NODE NAME NUMBER given|assigned
//	carried NODE NUMBER PROTOCOL HOLDER
//	machine NODE PLATFORM [RUNTIME]   setting MODULE NODE|- NAME VALUE   store ADDRESS
//	stopped INSTANCE NODE   held NODE   drained NODE   adopted NODE   certified INSTANCE NODE NAME HOST…
func records(t *testing.T, a *txtar.Archive) (resolve.Intent, render.Facts) {
	t.Helper()
	in := resolve.Intent{Mesh: "maaaaaaaaaaaaaaa", MeshName: "home", Modules: map[appliance.ModuleName]*manifest.Manifest{}, Carried: map[appliance.NodeID][]ports.Bound{}}
	facts := render.Facts{Mesh: in.Mesh, Range: netip.MustParsePrefix("10.64.0.0/16"), Authority: []byte("authority"), Nodes: map[appliance.NodeID]render.NodeFacts{}}
	for line := range strings.Lines(section(a, "records")) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "node":
			n := render.NodeFacts{Name: appliance.NodeName(f[1]), State: "/var/lib/mesh"}
			if len(f) > 2 {
				n.Address = netip.MustParseAddr(f[2])
			}
			facts.Nodes[nodeID(f[1])] = n
			in.Nodes = append(in.Nodes, resolve.Node{ID: nodeID(f[1]), Name: n.Name, Hub: f[1] == "hub"})
		case f[0] == "module":
			data := []byte(section(a, f[1]+".json"))
			if b, ok := bundles.Find(f[1]); ok {
				data = b.Manifest
			}
			m, err := manifest.Parse(data)
			if err != nil {
				t.Fatalf("%s: %v", f[1], err)
			}
			in.Modules[m.Module] = m
		case f[0] == "assign":
			in.Assignments = append(in.Assignments, resolve.Assignment{Instance: appliance.InstanceName(f[1]), Node: nodeID(f[2]), Module: appliance.ModuleName(f[3])})
		case f[0] == "port":
			in.Ports = append(in.Ports, resolve.Port{Instance: appliance.InstanceName(f[1]), Node: nodeID(f[2]), Name: f[3], Number: number(t, f[4]), Given: f[5] == "given"})
		case f[0] == "carried":
			in.Carried[nodeID(f[1])] = append(in.Carried[nodeID(f[1])], ports.Bound{Number: number(t, f[2]), Protocol: f[3], Holder: strings.Join(f[4:], " ")})
		case f[0] == "machine":
			n := node(t, &in, f[1])
			n.Platform, n.Runtime = f[2], strings.Join(f[3:], "")
		case f[0] == "held":
			node(t, &in, f[1]).Held = true
		case f[0] == "adopted":
			n := facts.Nodes[nodeID(f[1])]
			n.Adopted = true
			facts.Nodes[nodeID(f[1])] = n
		case f[0] == "drained":
			node(t, &in, f[1]).Drained = true
		case f[0] == "stopped":
			for i, a := range in.Assignments {
				in.Assignments[i].Stopped = a.Stopped || string(a.Instance) == f[1] && a.Node == nodeID(f[2])
			}
		case f[0] == "setting":
			s := resolve.Setting{Module: appliance.ModuleName(f[1]), Name: f[3], Value: strings.Join(f[4:], " ")}
			if f[2] != "-" {
				s.Node = nodeID(f[2])
			}
			in.Settings = append(in.Settings, s)
		case f[0] == "store":
			facts.Artifacts = wire.ArtifactStore{Address: f[1], Name: "artifacts.maaaaaaaaaaaaaaa"}
		case f[0] == "certified":
			n := facts.Nodes[nodeID(f[2])]
			n.Certificates = map[render.CertificateKey]render.Certificate{{Instance: appliance.InstanceName(f[1]), Name: f[3]}: {Names: f[4:], DER: []byte("certificate")}}
			facts.Nodes[nodeID(f[2])] = n
		default:
			t.Fatalf("records: %q", line)
		}
	}
	return in, facts
}

func node(t *testing.T, in *resolve.Intent, name string) *resolve.Node {
	i := slices.IndexFunc(in.Nodes, func(n resolve.Node) bool { return string(n.Name) == name })
	if i < 0 {
		t.Fatalf("no node %s", name)
	}
	return &in.Nodes[i]
}

func number(t *testing.T, s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

func nodeID(name string) appliance.NodeID {
	return appliance.NodeID("n" + name + strings.Repeat("a", 15-len(name)))
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// outcome is everything that comes of the records, as sections of the golden file.
func outcome(t *testing.T, in resolve.Intent, facts render.Facts) []txtar.File {
	t.Helper()
	plans, err := resolve.Resolve(in)
	if err == nil { // as if everything was being assigned now
		err = in.Fits(func(resolve.Assignment) bool { return true })
	}
	if err != nil {
		return []txtar.File{refusal(err)}
	}
	var files []txtar.File
	for _, n := range in.Nodes {
		plan, ok := plans[n.ID]
		if !ok {
			t.Fatalf("no plan for node %s", n.Name)
		}
		again, err := resolve.ParsePlan(plan.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(plan.Bytes()), string(again.Bytes())); diff != "" {
			t.Errorf("a recorded plan reads differently:\n%s", diff)
		}
		content, err := render.Render(again, facts)
		if err != nil {
			return append(files, refusal(err))
		}
		data, digest := render.Bytes(content)
		if fresh, err := render.Render(plan, facts); err != nil {
			t.Error(err)
		} else if _, same := render.Bytes(fresh); same != digest {
			t.Error("a plan renders differently once it was recorded")
		}
		if digest != appliance.DigestOf(data) {
			t.Errorf("digest %s is not that of the bytes", digest)
		}
		earlier := map[string]bool{}
		for _, r := range content.Resources {
			for _, after := range r.After {
				if !earlier[after] {
					t.Errorf("%s comes before %s, on which it depends", r.ID, after)
				}
			}
			if earlier[r.ID] {
				t.Errorf("id %s is there twice", r.ID)
			}
			earlier[r.ID] = true
		}
		files = append(files, txtar.File{Name: "plan " + string(n.Name), Data: pretty(t, plan.Bytes())}, txtar.File{Name: "content " + string(n.Name), Data: pretty(t, data)})
	}
	return files
}

func refusal(err error) txtar.File {
	e := appliance.AsError(err)
	return txtar.File{Name: "error", Data: fmt.Appendf(nil, "%s: %s\n%s\n", e.Kind, e.Text, e.Hint)}
}

func pretty(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	if err := json.Indent(&b, data, "", " "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func isOutcome(f txtar.File) bool {
	return f.Name == "error" || strings.HasPrefix(f.Name, "plan ") || strings.HasPrefix(f.Name, "content ")
}

// DEC-1, DEC-10, PORT-4, MOD-10, MOD-12: records in, bytes out.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d golden files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, facts := records(t, a)
			got := outcome(t, in, facts)
			slices.Reverse(in.Nodes)
			slices.Reverse(in.Assignments)
			slices.Reverse(in.Ports)
			turned := outcome(t, in, facts)
			byName := func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) }
			slices.SortFunc(got, byName)
			slices.SortFunc(turned, byName)
			if diff := cmp.Diff(got, turned); diff != "" {
				t.Errorf("records in another order give something else:\n%s", diff)
			}
			var want []txtar.File
			for _, f := range a.Files {
				if isOutcome(f) {
					want = append(want, f)
				}
			}
			if *update {
				a.Files = append(slices.DeleteFunc(a.Files, isOutcome), got...)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func texts(files []txtar.File) map[string]string {
	m := map[string]string{}
	for _, f := range files {
		m[f.Name] = string(f.Data)
	}
	return m
}

// renderTo is set in the second process of TestTwoProcessesRenderTheSame.
const renderTo = "MESH_TEST_RENDER_TO"

// DEC-10: two processes, in which maps are walked differently, give the same bytes.
func TestTwoProcessesRenderTheSame(t *testing.T) {
	all := func() []byte {
		var b bytes.Buffer
		files, err := filepath.Glob("testdata/*.txtar")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(txtar.Format(&txtar.Archive{Files: outcome(t, first(records(t, a)), second(records(t, a)))}))
		}
		return b.Bytes()
	}
	if out := os.Getenv(renderTo); out != "" {
		if err := os.WriteFile(out, all(), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := all()
	for i := range 3 {
		out := filepath.Join(t.TempDir(), fmt.Sprint(i))
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTwoProcessesRenderTheSame$")
		child.Env = append(os.Environ(), renderTo+"="+out)
		if log, err := child.CombinedOutput(); err != nil {
			t.Fatalf("second process: %v\n%s", err, log)
		}
		got, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Fatalf("another process renders something else:\n%s", diff)
		}
	}
}

func first(in resolve.Intent, _ render.Facts) resolve.Intent   { return in }
func second(_ resolve.Intent, facts render.Facts) render.Facts { return facts }
