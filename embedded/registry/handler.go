package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"cuelabs.dev/go/oci/ociregistry"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/opencontainers/go-digest"
)

// refuse makes an error of the protocol: its status, its code, and a sentence.
func refuse(status int, code, format string, args ...any) error {
	return ociregistry.NewHTTPError(ociregistry.NewError(fmt.Sprintf(format, args...), code, nil), status, nil, nil)
}

// Refuse makes what Authorize answers to a request that may not be; the text reaches whoever asked.
func Refuse(status int, text string) error {
	code := map[int]string{http.StatusUnauthorized: "UNAUTHORIZED", http.StatusForbidden: "DENIED", http.StatusNotFound: "NAME_UNKNOWN"}[status]
	if code == "" {
		code = "UNAVAILABLE"
	}
	return refuse(status, code, "%s", text)
}

// call is one request on its way through the protocol's handlers.
type call struct {
	request *http.Request
	refused error // the protocol's handlers keep only the text of some errors
}

func (c *call) keep(err error) error {
	c.refused = err
	return err
}

type callKey struct{}

// newHandler puts what the protocol leaves to a registry around its handlers.
func (r *Registry) newHandler() http.Handler {
	protocol := ociserver.New(r.backend(), &ociserver.Options{DisableReferrersAPI: true, WriteError: func(w http.ResponseWriter, req *http.Request, err error) {
		if c := callOf(req.Context()); c.refused != nil {
			err = c.refused
		}
		r.answer(w, req, err)
	}})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p := &patience{ResponseWriter: w, control: http.NewResponseController(w), body: req.Body}
		p.extend()
		req.Body = p
		if err := r.refuseEarly(req); err != nil {
			r.answer(p, req, err)
			return
		}
		if req.URL.Query().Has("mount") { // an upload begins instead, as the protocol has it
			req.URL.RawQuery = ""
		}
		protocol.ServeHTTP(p, req.WithContext(context.WithValue(req.Context(), callKey{}, &call{request: req})))
	})
}

// answer tells an error. What is not a refusal is for the log.
func (r *Registry) answer(w http.ResponseWriter, req *http.Request, err error) {
	err = noSpace(err)
	if _, status := ociregistry.MarshalError(err); status == http.StatusInternalServerError {
		r.log.Error("request failed", "method", req.Method, "path", req.URL.Path, "err", err)
		err = refuse(status, "UNKNOWN", "it failed inside; the log says where")
	}
	_ = ociregistry.WriteError(w, err)
}

// refuseEarly refuses what the protocol's handlers would take before anybody is authorized, or answer less plainly.
func (r *Registry) refuseEarly(req *http.Request) error {
	switch {
	case req.Method == http.MethodDelete:
		return refuse(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "nothing is deleted by request: what is not kept is collected")
	case req.Method == http.MethodPut && strings.Contains(req.URL.Path, "/manifests/"):
		return r.refuseManifest(req)
	}
	return nil
}

// refuseManifest reads a manifest into memory, as the protocol's handlers do, but only of whoever may push it, and only so many bytes.
func (r *Registry) refuseManifest(req *http.Request) error {
	repo, d, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/manifests/")
	if _, err := r.allow(&call{request: req}, Push, repo, digest.Digest(d)); err != nil {
		return err
	}
	if req.ContentLength < 0 {
		return refuse(http.StatusLengthRequired, "SIZE_REQUIRED", "push to %s: a manifest is pushed with its length", repo)
	}
	if req.ContentLength > maxManifest {
		return refuse(http.StatusRequestEntityTooLarge, "TOO_LARGE", "push to %s: a manifest of %d bytes, at most %d", repo, req.ContentLength, maxManifest)
	}
	data, err := io.ReadAll(req.Body)
	if err == nil && !json.Valid(data) {
		err = refuse(http.StatusBadRequest, "MANIFEST_INVALID", "push to %s: the manifest is not JSON", repo)
	}
	req.Body = io.NopCloser(bytes.NewReader(data))
	return err
}

// patience ends a connection that moves no byte for a while, and no other.
type patience struct {
	http.ResponseWriter
	control *http.ResponseController
	body    io.ReadCloser
}

func (p *patience) extend() {
	until := time.Now().Add(idle)
	_ = p.control.SetReadDeadline(until) // a writer that has none is in memory
	_ = p.control.SetWriteDeadline(until)
}

func (p *patience) Read(b []byte) (int, error)  { p.extend(); return p.body.Read(b) }
func (p *patience) Close() error                { return p.body.Close() }
func (p *patience) Write(b []byte) (int, error) { p.extend(); return p.ResponseWriter.Write(b) }
func (p *patience) WriteHeader(status int)      { p.extend(); p.ResponseWriter.WriteHeader(status) }
