package bench

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/novox/mesh/appliance/durable"
	"github.com/novox/mesh/lab/beds"
)

// artifactSize is that of the artifact, in bytes; random, so that packing saves nothing.
const artifactSize = 100 << 20

// copyCommand makes this binary the two ends of a plain copy: "serve ADDRESS FILE" or "fetch ADDRESS FILE".
const copyCommand = "copy"

// BenchmarkArtifact: 100 MiB in one file, from the folder on the hub until the node has applied it, against a plain copy of the same file
// over the same overlay and to the same disk, synced at its end.
func BenchmarkArtifact(b *testing.B) {
	bed, hub := raised(b, beds.Pair, 2)
	n1 := bed.Host("n1")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		b.Fatal(err)
	}
	for _, host := range bed.Hosts() {
		if err := host.Put(b.Context(), "/usr/local/bin/bench", self, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for i := range b.N {
		name := fmt.Sprintf("big%d", i)
		dir := "/var/tmp/" + name
		data := make([]byte, artifactSize)
		rand.Read(data)
		if err := hub.Put(b.Context(), dir+"/file", data, 0o644); err != nil {
			b.Fatal(err)
		}
		manifest := `{"module": "` + name + `", "build": {"artifacts": {"tree": {"kind": "files", "files": ["file"]}}}}`
		if err := hub.Put(b.Context(), dir+"/module.json", []byte(manifest), 0o644); err != nil {
			b.Fatal(err)
		}
		serve := hub.Command(b.Context(), "/usr/local/bin/bench", copyCommand, "serve", "hub.internal:7000", dir+"/file")
		if err := serve.Start(); err != nil {
			b.Fatal(err)
		}
		plain, _ := timed(b, n1, "/usr/local/bin/bench", copyCommand, "fetch", "hub.internal:7000", "/var/tmp/"+name)
		if err := serve.Wait(); err != nil {
			b.Fatal(err)
		}
		register, _ := timed(b, hub, beds.Binary, "module", "register", dir)
		timed(b, hub, beds.Binary, "module", "assign", name, "n1")
		push, _ := timed(b, hub, beds.Binary, "push", "n1", "--wait", "--timeout", "2m")
		timed(b, n1, "sh", "-c", "cmp /var/tmp/"+name+" /var/lib/mesh/artifacts/*/file")
		timed(b, hub, beds.Binary, "module", "unassign", name, "n1", "--push", "--wait")
		b.ReportMetric(plain.Seconds(), "s/copy")
		b.ReportMetric(register.Seconds(), "s/register")
		b.ReportMetric(push.Seconds(), "s/push-to-applied")
		b.ReportMetric(push.Seconds()/plain.Seconds(), "ratio")
	}
}

// copies is one end of a plain copy.
func copies(args []string) int {
	end := map[string]func(address, file string) error{"serve": serveFile, "fetch": fetchFile}[args[0]]
	if err := end(args[1], args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveFile(address, file string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(c, f)
	return err
}

func fetchFile(address, file string) error {
	var c net.Conn
	var err error
	for end := time.Now().Add(10 * time.Second); ; { // until the other end listens
		if c, err = net.Dial("tcp", address); err == nil || time.Now().After(end) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, c); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return durable.SyncFolder("/var/tmp")
}
