package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/novox/mesh/appliance/durable"
)

// newHello is the program of the hello bundle: a page that says which node and instance it is, and how often it was read.
func newHello() *cobra.Command {
	var listen, data string
	c := &cobra.Command{Use: "hello", Short: "Serve the page of the hello bundle", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			page := &hello{node: os.Getenv("MESH_NODE"), instance: os.Getenv("MESH_INSTANCE"), visits: filepath.Join(data, "visits")}
			if err := page.load(); err != nil {
				return err
			}
			server := &http.Server{Addr: listen, Handler: page.routes(), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
			stop := context.AfterFunc(c.Context(), func() { server.Close() })
			defer stop()
			if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve hello: %w", err)
			}
			return nil
		}}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	c.Flags().StringVar(&data, "data", ".", "folder that keeps the count of visits")
	return c
}

type hello struct {
	node, instance, visits string

	mu    sync.Mutex
	count uint64
}

func (h *hello) load() error {
	data, err := os.ReadFile(h.visits)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		h.count, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	if err != nil {
		return fmt.Errorf("read visits: %w", err)
	}
	return nil
}

func (h *hello) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", h.page)
	return mux
}

func (h *hello) page(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	h.count++
	count := h.count
	err := durable.WriteFile(h.visits, []byte(strconv.FormatUint(count, 10)+"\n"), 0o640)
	h.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, "<!doctype html>\n<title>hello</title>\n<p>hello from instance %s on node %s, visit %d</p>\n",
		html.EscapeString(h.instance), html.EscapeString(h.node), count)
}
