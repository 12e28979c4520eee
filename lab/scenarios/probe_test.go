package scenarios

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/lab/netns"
)

const (
	probeCommand = "probe"
	probePath    = "/usr/local/bin/probe"
	probePort    = "7000"
)

// probe is the program that hosts are probed with: `greet` answers every connection with a line and every datagram with itself,
// `dial ADDRESS` wants that line, `get URL` prints a page, `fetch URL` and `ping ADDRESS` ask without a pause until their input ends,
// `impersonate MESH` is somebody else in the hub's place.
func probe(args []string) int {
	var err error
	switch args[0] {
	case "greet":
		err = greet()
	case "dial":
		err = dial(args[1])
	case "get":
		err = get(args[1])
	case "fetch":
		err = fetch(args[1])
	case "list":
		err = list(os.Stdout)
	case "shown":
		err = shown(args[1], args[2], args[3])
	case "ping":
		err = ping(args[1])
	case "impersonate":
		err = impersonated(appliance.MeshID(args[1]))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func greet() error {
	listener, err := net.Listen("tcp4", ":"+probePort)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp4", ":"+probePort)
	if err != nil {
		return err
	}
	go echo(packets)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		io.WriteString(conn, "hello")
		conn.Close()
	}
}

func dial(address string) error {
	conn, err := net.DialTimeout("tcp4", net.JoinHostPort(address, probePort), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	line, err := io.ReadAll(conn)
	if err == nil && string(line) != "hello" {
		err = fmt.Errorf("%s said %q", address, line)
	}
	return err
}

// greeter puts the probe on a host and leaves it listening there.
func greeter(t *testing.T, host *netns.Host) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Put(t.Context(), probePath, self, 0o755); err != nil {
		t.Fatal(err)
	}
	listen(t, host)
}

func listen(t *testing.T, host *netns.Host) {
	t.Helper()
	// A daemon: it outlives the command, and has none of our pipes.
	if err := host.Command(t.Context(), "setsid", "--fork", probePath, probeCommand, "greet").Run(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, host.Name+" listens", 5*time.Second, func() string { return reach(host, "127.0.0.1") })
}

// reach says why a host does not hear another's greeting.
func reach(from *netns.Host, to string) string {
	_, errs, code, err := from.Run(context.Background(), probePath, probeCommand, "dial", to)
	if err != nil || code != 0 {
		return fmt.Sprintf("%s does not reach %s: exit code %d: %v: %s", from.Name, to, code, err, errs)
	}
	return ""
}

func isGreeter(cmdline []string) bool {
	return cmdline[0] == probePath && cmdline[len(cmdline)-1] == "greet"
}
