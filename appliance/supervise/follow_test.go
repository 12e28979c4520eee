package supervise

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TOOL-2: nothing is lost or said twice of a log that is followed while it is cut, also of lines that are all the same.
func TestFollow(t *testing.T) {
	for name, text := range map[string]string{"numbered": "line %07d\n", "all the same": "tick\n"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log, err := openLog(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			written := 0
			write := func(n int) {
				var all strings.Builder
				for range n {
					if name == "numbered" {
						fmt.Fprintf(&all, text, written)
					} else {
						all.WriteString(text)
					}
					written++
				}
				if _, err := log.WriteString(all.String()); err != nil {
					t.Error(err)
				}
			}
			const before, after, batch = 100, 300_000, 30_000 // several MiB
			write(before)
			lines := make(chan string, after)
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- Follow(ctx, dir, 10, true, func(line []byte) error { lines <- string(line); return nil })
			}()
			next := func() string {
				select {
				case line := <-lines:
					return line
				case err := <-done:
					t.Fatalf("it ended: %v", err)
				case <-time.After(20 * time.Second):
					t.Fatal("no further line")
				}
				return ""
			}
			for range 10 {
				next()
			}
			for range after / batch {
				write(batch)
				if log.size() > maxLog {
					log.rotate()
				}
				// Who is cut twice between two looks loses lines, so the reader keeps up here.
				for end := time.Now().Add(20 * time.Second); len(lines) < written-before; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%d lines of %d came", len(lines), written-before)
					}
				}
			}
			for i := before; i < before+after; i++ {
				if line := next(); name == "numbered" && line != fmt.Sprintf("line %07d", i) {
					t.Fatalf("line %d reads %q", i, line)
				}
			}
			end()
			if err := <-done; err != nil {
				t.Error(err)
			}
			select {
			case line := <-lines:
				t.Errorf("one line more: %q", line)
			default:
			}
		})
	}
}

func TestFollowNothing(t *testing.T) {
	dir := t.TempDir()
	if err := Follow(t.Context(), dir, 10, false, func([]byte) error { return fmt.Errorf("a line") }); err != nil {
		t.Error(err)
	}
	os.WriteFile(filepath.Join(dir, "log"), []byte("a\nb\nno end"), 0o600)
	var got []string
	if err := Follow(t.Context(), dir, 1, false, func(line []byte) error { got = append(got, string(line)); return nil }); err != nil || len(got) != 2 || got[0] != "b" || got[1] != "no end" {
		t.Errorf("%q %v", got, err)
	}
}
