// Command app is what tests put into images: a service that says what it sees from inside, and a few commands for checks.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if len(args) == 0 {
		return 2, fmt.Errorf("no command")
	}
	switch args[0] {
	case "serve": // serve ADDRESS TEXT
		return serve(args[1], args[2])
	case "end": // end CODE
		fmt.Println("ending")
		return strconv.Atoi(args[1])
	case "hang":
		time.Sleep(time.Hour)
		return 0, nil
	case "copy":
		n, err := io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintln(os.Stderr, n, "bytes")
		return 0, err
	case "children":
		if err := exec.Command("/app", "hang").Start(); err != nil {
			return 1, err
		}
		time.Sleep(time.Hour)
		return 0, nil
	case "terminal": // terminal SIZE: until it has it
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
			if err != nil {
				return 1, err
			}
			is := fmt.Sprint(size.Row, " ", size.Col)
			fmt.Println(os.Getenv("TERM"), is)
			if is == args[1] {
				return 0, nil
			}
		}
		return 1, nil
	}
	return 2, fmt.Errorf("unknown command %q", args[0])
}

// serve answers until SIGTERM, which ends it well; SIGHUP and SIGUSR1 are told.
func serve(address, text string) (int, error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	answer := func(path string, f func(arg string) string) {
		http.HandleFunc("/"+path, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, f(r.URL.Query().Get("q"))) })
	}
	answer("", func(string) string { return text })
	answer("env", os.Getenv)
	answer("file", func(path string) string { return says(os.ReadFile(path)) })
	answer("write", func(path string) string {
		if err := os.WriteFile(path, []byte("written"), 0o600); err != nil {
			return err.Error()
		}
		return "written"
	})
	answer("lookup", func(name string) string {
		found, err := net.LookupHost(name)
		return says([]byte(strings.Join(found, " ")), err)
	})
	answer("say", func(line string) string {
		out := os.Stderr
		if len(line) > 100 {
			out = os.Stdout
		}
		fmt.Fprintln(out, line)
		return ""
	})
	client := &http.Client{Timeout: 5 * time.Second}
	answer("get", func(url string) string {
		res, err := client.Get(url)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		return says(io.ReadAll(res.Body))
	})
	fmt.Println("serving", text)
	failed := make(chan error, 1)
	go func() { failed <- http.ListenAndServe(address, nil) }()
	for {
		select {
		case err := <-failed:
			return 1, err
		case s := <-signals:
			fmt.Println("heard", s)
			if s == syscall.SIGTERM {
				return 0, nil
			}
		}
	}
}

func says(text []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return string(text)
}
