package downloads

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/identity"
)

// bare is a machine on which the line is given: its folder of programs, with a `uname` that says what machine it is.
type bare struct {
	t   *testing.T
	dir string
}

func newBare(t *testing.T, machine string) bare {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl here: .ci/packages installs it")
	}
	b := bare{t, t.TempDir()}
	b.write("uname", "#!/bin/sh\necho "+machine+"\n")
	return b
}

func (b bare) write(name, content string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o755); err != nil {
		b.t.Fatal(err)
	}
}

// run gives the line verbatim, but for the folder.
func (b bare) run(line string) (said string, err error) {
	line = strings.ReplaceAll(line, "/usr/local/bin", b.dir)
	cmd := exec.CommandContext(b.t.Context(), "sh", "-c", line)
	cmd.Env = []string{"PATH=" + b.dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	b.t.Logf("%s", out)
	return string(out), err
}

func (b bare) files() string {
	b.t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "uname" {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// program is a binary that tells its arguments, and whose it is.
func program(whose string) string { return "#!/bin/sh\necho " + whose + " runs \"$@\"\n" }

// NODE-3, PKI-6: the printed line brings a machine the binary made for it, whole, and runs it with the token; where the key is another,
// the machine is of another kind or the answer ends early, it runs nothing and leaves an older binary as it was.
func TestCurl(t *testing.T) {
	config, _ := identities(t)
	key := config.key
	dir := t.TempDir()
	files := map[string]string{"amd64": filepath.Join(dir, "mesh"), "arm64": filepath.Join(dir, "mesh-linux-arm64")}
	for architecture, path := range files {
		if err := os.WriteFile(path, []byte(program(architecture)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := func(t *testing.T, files map[string]string) *Server {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(uint16(l.Addr().(*net.TCPAddr).Port), &key.PublicKey, files)
		if err != nil {
			t.Fatal(err)
		}
		go s.Serve(t.Context(), l, config.server)
		return s
	}
	for machine, says := range map[string]string{"x86_64": "amd64 runs join mesh1.token", "aarch64": "arm64 runs join mesh1.token"} {
		t.Run(machine, func(t *testing.T) {
			b := newBare(t, machine)
			b.write("mesh", program("an older one"))
			said, err := b.run(at(t, files).Curl("127.0.0.1", "mesh1.token"))
			if err != nil || !strings.Contains(said, says) || b.files() != "mesh" {
				t.Errorf("%v; files: %s", err, b.files())
			}
		})
	}
	refuses := func(t *testing.T, b bare, line, says string) {
		t.Helper()
		b.write("mesh", program("an older one"))
		said, err := b.run(line)
		if err == nil || !strings.Contains(said, says) || strings.Contains(said, "runs") {
			t.Errorf("%v, want that it says %q and runs nothing", err, says)
		}
		if kept, err := os.ReadFile(filepath.Join(b.dir, "mesh")); err != nil || string(kept) != program("an older one") {
			t.Errorf("the older binary is %q, %v", kept, err)
		}
	}
	t.Run("impostor", func(t *testing.T) {
		other, err := identity.ServerKey(t.TempDir(), "downloads")
		if err != nil {
			t.Fatal(err)
		}
		s := at(t, files) // under the key of its certificate, which is not the one that the line was printed with
		hub, err := New(uint16(s.port), &other.PublicKey, files)
		if err != nil {
			t.Fatal(err)
		}
		b := newBare(t, "x86_64")
		refuses(t, b, hub.Curl("127.0.0.1", "mesh1.token"), "curl: (90) SSL: public key does not match pinned public key")
		if b.files() != "mesh" {
			t.Errorf("files: %s", b.files())
		}
	})
	t.Run("another machine", func(t *testing.T) {
		refuses(t, newBare(t, "armv7l"), at(t, files).Curl("127.0.0.1", "mesh1.token"), "curl: (22) The requested URL returned error: 404")
	})
	t.Run("not served", func(t *testing.T) {
		files := map[string]string{"amd64": files["amd64"], "arm64": filepath.Join(dir, "nothing")}
		refuses(t, newBare(t, "aarch64"), at(t, files).Curl("127.0.0.1", "mesh1.token"), "error: 404")
	})
	t.Run("cut short", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		half := &http.Server{TLSConfig: config.server, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, program("half a binary"))
			w.(http.Flusher).Flush()
		})}
		go half.ServeTLS(l, "", "")
		defer half.Close()
		s, err := New(uint16(l.Addr().(*net.TCPAddr).Port), &key.PublicKey, files)
		if err != nil {
			t.Fatal(err)
		}
		refuses(t, newBare(t, "x86_64"), s.Curl("127.0.0.1", "mesh1.token"), "curl: (")
	})
	t.Run("what the page says", func(t *testing.T) {
		s := at(t, files)
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 30 * time.Second}
		defer client.CloseIdleConnections()
		for path, want := range map[string]string{
			"/mesh/armv7l":        `404 there is no binary for a machine of kind "armv7l" here; the hub has those for linux amd64 and arm64`,
			"/mesh/..%2f..%2fetc": `404 there is no binary for a machine of kind "../../etc" here; the hub has those for linux amd64 and arm64`,
			"/binary/sha256:0":    "404 no such binary here",
			"/mesh/x86_64":        "200 " + strings.TrimSpace(program("amd64")),
		} {
			res, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path))
			if err != nil {
				t.Fatal(err)
			}
			body := make([]byte, 1000)
			n, _ := res.Body.Read(body)
			res.Body.Close()
			if got := fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSpace(string(body[:n]))); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
	})
}

// GEN-7: an address that a shell or curl would take for something else is quoted.
func TestCurlIPv6(t *testing.T) {
	config, _ := identities(t)
	s, err := New(4280, &config.key.PublicKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	if line := s.Curl("fd00::1", "mesh1.token"); !strings.Contains(line, ` "https://[fd00::1]:4280/mesh/$(uname -m)" && `) {
		t.Error(line)
	}
}
