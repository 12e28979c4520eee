package scenarios

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/novox/mesh/lab/netns"
)

// tally is what an endless asker saw. Gap is the longest time without an answer.
type tally struct {
	Asked  int           `json:"asked"`
	Lost   int           `json:"lost"`
	Gap    time.Duration `json:"gap"`
	Errors []string      `json:"errors,omitempty"`

	last time.Time
}

func (c *tally) answered(now time.Time) {
	if !c.last.IsZero() {
		c.Gap = max(c.Gap, now.Sub(c.last))
	}
	c.last = now
}

// begun tells who started us that answers come.
const begun = "begun"

// ended is closed with our input.
func ended() <-chan struct{} {
	end := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	return end
}

// page reads a page over a connection of its own; no proxy, and time for a lost packet or two to be sent again.
func page(url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s: %s", url, res.Status, body)
	}
	return string(body), err
}

func get(url string) error {
	body, err := page(url)
	fmt.Print(body)
	return err
}

func fetch(url string) error {
	var seen tally
	for end := ended(); ; {
		seen.Asked++
		if _, err := page(url); err != nil {
			if seen.Lost++; seen.Lost <= 3 {
				seen.Errors = append(seen.Errors, err.Error())
			}
		} else {
			seen.answered(time.Now())
		}
		if seen.Asked == 1 {
			fmt.Println(begun)
		}
		select {
		case <-end:
			return json.NewEncoder(os.Stdout).Encode(seen)
		default:
		}
	}
}

// echo sends datagrams back.
func echo(packets net.PacketConn) {
	data := make([]byte, 64)
	for {
		n, from, err := packets.ReadFrom(data)
		if err != nil {
			return
		}
		packets.WriteTo(data[:n], from)
	}
}

const (
	pingEvery = 5 * time.Millisecond
	straggler = 500 * time.Millisecond // an answer that takes longer is lost
)

// ping sends numbered datagrams and counts those that come back.
func ping(address string) error {
	conn, err := net.Dial("udp4", net.JoinHostPort(address, probePort))
	if err != nil {
		return err
	}
	defer conn.Close()
	var seen tally
	got := map[uint64]bool{}
	var hearing sync.WaitGroup
	hearing.Go(func() {
		data := make([]byte, 64)
		for {
			n, err := conn.Read(data)
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				return
			}
			if err != nil || n != 8 { // "connection refused" while there is no route
				continue
			}
			got[binary.BigEndian.Uint64(data)] = true
			if seen.answered(time.Now()); len(got) == 1 {
				fmt.Println(begun)
			}
		}
	})
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for end, going := ended(), true; going; {
		conn.Write(binary.BigEndian.AppendUint64(nil, uint64(seen.Asked))) // what cannot be sent is lost, too
		seen.Asked++
		select {
		case <-tick.C:
		case <-end:
			going = false
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(straggler)); err != nil {
		return err
	}
	hearing.Wait()
	seen.Lost = seen.Asked - len(got)
	return json.NewEncoder(os.Stdout).Encode(seen)
}

// load is an asker at work on a host.
type load struct {
	cmd   *exec.Cmd
	input io.Closer
	lines *bufio.Reader
}

// begin starts an asker and returns when it has been answered.
func begin(t *testing.T, host *netns.Host, args ...string) *load {
	t.Helper()
	l := &load{cmd: host.Command(t.Context(), append([]string{probePath, probeCommand}, args...)...)}
	l.cmd.Stderr = t.Output()
	in, err := l.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.input, l.lines = in, bufio.NewReader(out)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := l.lines.ReadString('\n'); err != nil || line != begun+"\n" {
		t.Fatalf("%v on %s: %q, %v", args, host.Name, line, err)
	}
	return l
}

// end stops the asker and gives its tally.
func (l *load) end(t *testing.T) tally {
	t.Helper()
	l.input.Close()
	line, err := l.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("tally of %v: %v", l.cmd.Args, err)
	}
	var seen tally
	if err := json.Unmarshal([]byte(line), &seen); err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return seen
}
