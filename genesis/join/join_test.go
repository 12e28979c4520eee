package join

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/agent/host"
	"github.com/novox/mesh/appliance/enrol"
	"github.com/novox/mesh/appliance/installation"
	"github.com/novox/mesh/appliance/wire"
)

// NODE-3: what a connection came to becomes the one thing that is wrong.
func TestExplain(t *testing.T) {
	for said, want := range map[string]appliance.Reason{
		"nats: tls error: verify broker.m1: the presented chain does not contain the pinned authority; the server calls itself nothing": enrol.Pin,
		"verify broker.m1: the certificate is of another authority":                                                                     enrol.Pin,
		`verify broker.m1: the server calls itself "broker.m2"`:                                                                         enrol.Pin,
		"verify broker.m1: the certificate holds from 2026-01-01 to 2036-01-01, and here it is 1970":                                    enrol.Clock,
		"nats: Authorization Violation": enrol.TokenUnknown,
		"EOF":                           "port",
		"":                              "port",
	} {
		e := appliance.AsError(explain("h:1", said))
		if e.Reason != want || e.Hint == "" || e.Next == "" || !strings.HasPrefix(e.Text, "reach the hub at h:1: ") || strings.Contains(e.Text, "nats:") {
			t.Errorf("%q: %+v", said, e)
		}
	}
}

// NODE-3: of several addresses the one where somebody refused says more than those where nobody was.
func TestMostTelling(t *testing.T) {
	away, refused := notBroker("a:1", "it hangs up"), explain("b:1", "authorization violation")
	if got := mostTelling([]error{away, refused}); got != refused {
		t.Errorf("one refused: %v", got)
	}
	if got := mostTelling([]error{away}); got != away {
		t.Errorf("one address: %v", got)
	}
	all := appliance.AsError(mostTelling([]error{away, notBroker("c:1", "it hangs up")}))
	if all.Kind != appliance.Unavailable || all.Hint == "" || !strings.Contains(all.Text, "a:1") || !strings.Contains(all.Text, "c:1") {
		t.Errorf("two addresses: %+v", all)
	}
}

// NODE-3: something else at the address is told from a broker by what it says first, and silence ends.
func TestSpeaks(t *testing.T) {
	for name, c := range map[string]struct{ says, want string }{
		"broker":       {"INFO {}\r\n", ""},
		"ssh":          {"SSH-2.0-OpenSSH_9.2\r\n", `it says "SSH-2"`},
		"short":        {"hi", `it says "hi"`},
		"hangs up":     {"", "it hangs up"},
		"says nothing": {"-", "it says nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				if c.says == "-" {
					io.Copy(io.Discard, conn) // until the other side has had enough
				}
				io.WriteString(conn, c.says)
				conn.Close()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			err = dial(ctx, l.Addr().String())
			if (err == nil) != (c.want == "") || err != nil && (!strings.HasSuffix(err.Error(), c.want) || !appliance.IsReason(err, "port")) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// token is one of a mesh that nobody runs.
func token(t *testing.T) string {
	t.Helper()
	_, signing, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := enrol.NewToken(appliance.NewMeshID(), []string{"127.0.0.1:1"}, [32]byte{1}, signing.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// NODE-3: a machine that can be no node is told so before it asks anybody, and is left as it was.
func TestPlatform(t *testing.T) {
	o := Options{Install: installation.Installation{Dir: filepath.Join(t.TempDir(), "mesh")}, Token: token(t), Name: "n1"}
	for _, platform := range [][2]string{{"linux", "riscv64"}, {"linux", "386"}, {"freebsd", "amd64"}, {"", ""}} {
		machine := func(appliance.MeshID, appliance.NodeName) (host.Machine, error) {
			return host.Machine{Capabilities: func() wire.Capabilities { return wire.Capabilities{OS: platform[0], Architecture: platform[1]} }}, nil
		}
		_, err := Run(t.Context(), o, machine, nil, func(text string) { t.Errorf("says %q", text) })
		if e := appliance.AsError(err); err == nil || e.Reason != enrol.Platform || !strings.Contains(e.Text, platform[0]+"/"+platform[1]) || !strings.Contains(e.Hint, "amd64 or arm64") {
			t.Errorf("%v: %v", platform, err)
		}
		if _, err := os.Lstat(o.Install.Dir); !os.IsNotExist(err) {
			t.Errorf("%v: it left the state folder: %v", platform, err)
		}
	}
}

// NODE-8, GEN-10: where something was kept when a hub was taken off, or something is on its way out, no node comes to be.
func TestLeft(t *testing.T) {
	machine := func(appliance.MeshID, appliance.NodeName) (host.Machine, error) { return host.Machine{}, nil }
	for name, c := range map[string]struct {
		file, text, want string
	}{
		"a hub that was": {"leaving.json", `{"mesh":"maaaaaaaaaaaaaaa","meshName":"home","node":"naaaaaaaaaaaaaaa","name":"hub","hub":true}`, "holds the keys and the data of a hub, that of mesh home"},
		"half left":      {"mesh.json", `{"mesh":"maaaaaaaaaaaaaaa","meshName":"home","node":"naaaaaaaaaaaaaaa","name":"n1"}`, "node n1 is on its way out of mesh home"},
	} {
		i := installation.Installation{Dir: t.TempDir()}
		for _, file := range []string{c.file, "leaving.json"} {
			if err := os.WriteFile(filepath.Join(i.Dir, file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Run(t.Context(), Options{Install: i, Token: token(t), Name: "n1"}, machine, nil, func(text string) { t.Errorf("%s: says %q", name, text) })
		if appliance.KindOf(err) != appliance.Conflict || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := filepath.Glob(i.Dir + "/*"); slices.ContainsFunc(left, func(p string) bool { return !strings.HasSuffix(p, ".json") && !strings.HasSuffix(p, "/lock") }) {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// NODE-3: a failed join leaves nothing behind, but for keys that the mesh may have taken.
func TestCleanUp(t *testing.T) {
	for name, c := range map[string]struct {
		fresh, claimed bool
		why            error
		left           []string
	}{
		"before the claim":              {true, false, errors.New("x"), nil},
		"claimed, and never enrolled":   {true, true, enrol.Refuse(enrol.NameTaken, "x"), nil},
		"claimed, and unknown":          {true, true, errors.New("no answer"), []string{"lock", "node", "node/claimed", "node/keys", "run"}},
		"folder was there":              {false, false, errors.New("x"), []string{"theirs"}},
		"folder was there, and claimed": {false, true, errors.New("no answer"), []string{"lock", "node", "node/claimed", "node/keys", "run", "theirs"}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			i := installation.Installation{Dir: filepath.Join(parent, "mesh")}
			paths := []string{i.NodeKeys(), i.Run()}
			for _, dir := range paths {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			said := 0
			j := &joining{Options: Options{Install: i}, fresh: c.fresh, tell: func(string) { said++ }}
			files := []string{i.LockFile()}
			if c.claimed {
				files = append(files, j.claimedFile())
			}
			if !c.fresh {
				files = append(files, filepath.Join(i.Dir, "theirs"))
			}
			for _, file := range files {
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			j.cleanUp(c.why)
			var left []string
			filepath.WalkDir(i.Dir, func(path string, _ os.DirEntry, err error) error {
				if rel, _ := filepath.Rel(i.Dir, path); err == nil && rel != "." {
					left = append(left, rel)
				}
				return nil
			})
			if diff := cmp.Diff(c.left, left); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(i.Dir); os.IsNotExist(err) != (c.fresh && c.left == nil) {
				t.Errorf("the state folder: %v", err)
			}
			if (said > 0) != (len(c.left) > 1) {
				t.Errorf("said %d things", said)
			}
		})
	}
}
