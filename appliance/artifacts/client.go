package artifacts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/novox/mesh/appliance"
)

// Client is a side of the artifact store that pushes or pulls.
type Client struct {
	Addresses []string    // host:port, tried in turn
	TLS       *tls.Config // with the store's fixed name; with a node's certificate to pull
	Grant     string      // to push
	Progress  Progress    // nil: not told
}

// Progress hears how much of a blob has come or gone. Several blobs may be on their way at once.
type Progress func(blob appliance.Digest, done, total int64)

const (
	dialWithin   = 5 * time.Second
	answerWithin = 5 * time.Minute // a large blob is synced before it is acknowledged
	stalledAfter = time.Minute     // without a byte
)

// Push copies an artifact to the store: what is there already is left out. It gives the reference.
func (c Client) Push(ctx context.Context, module appliance.ModuleName, artifact string, s *Source) (Reference, error) {
	ref := Reference{module, artifact, s.Digest()}
	l := c.open()
	defer l.close()
	r, err := l.repository(ref)
	if err != nil {
		return ref, err
	}
	if err := oras.CopyGraph(ctx, source{s, c.Progress}, r, s.Root, oras.CopyGraphOptions{Concurrency: 2}); err != nil {
		return ref, explain("push "+ref.Repository(), err)
	}
	return ref, nil
}

// source is a Source as oras reads it.
type source struct {
	*Source
	progress Progress
}

func (s source) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := s.fetch(ctx, d)
	if err != nil || s.progress == nil {
		return f, err
	}
	return &counted{ReadCloser: f, d: d, tell: s.progress}, nil
}

func (s source) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	f, err := s.fetch(ctx, d)
	if err == nil {
		f.Close()
	}
	return err == nil, nil
}

// counted tells what is read of it.
type counted struct {
	io.ReadCloser
	d    ocispec.Descriptor
	done int64
	tell Progress
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.done += int64(n)
	c.tell(appliance.Digest(c.d.Digest), c.done, c.d.Size)
	return n, err
}

// line is a client's connections to the store, and to nobody else.
type line struct {
	name     string // the store's fixed name, whatever address is dialled
	http     *http.Client
	progress Progress
}

func (c Client) open() line {
	transport := &http.Transport{TLSClientConfig: c.TLS, TLSHandshakeTimeout: dialWithin, ResponseHeaderTimeout: answerWithin, ExpectContinueTimeout: time.Second,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var all []error
			for _, a := range c.Addresses {
				conn, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, network, a)
				if err == nil {
					return conn, nil
				}
				all = append(all, err)
			}
			return nil, errors.Join(all...)
		}}
	return line{name: c.TLS.ServerName, progress: c.Progress, http: &http.Client{Transport: granted{transport, c.Grant},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (l line) close() { l.http.CloseIdleConnections() }

// repository is the artifact's place in the store.
func (l line) repository(ref Reference) (*remote.Repository, error) {
	r, err := remote.NewRepository(l.name + "/" + ref.Repository())
	if err != nil {
		return nil, fmt.Errorf("name %s: %w", ref.Repository(), err)
	}
	r.Client = l.http
	return r, nil
}

// granted shows the grant with every request.
type granted struct {
	*http.Transport
	grant string
}

func (g granted) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.grant != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+g.grant)
	}
	return g.Transport.RoundTrip(r)
}

// explain makes a refusal of what the store answered; what never came so far is Unavailable.
func explain(what string, err error) error {
	var e *appliance.Error
	if errors.As(err, &e) {
		return fmt.Errorf("%s: %w", what, err)
	}
	var answer *errcode.ErrorResponse
	if !errors.As(err, &answer) {
		return appliance.Errorf(appliance.Unavailable, "%s: %w", what, err).WithHint("is the hub running, and does this machine reach its artifact store?")
	}
	text := http.StatusText(answer.StatusCode)
	if len(answer.Errors) > 0 && answer.Errors[0].Message != "" {
		text = answer.Errors[0].Message
	}
	return fmt.Errorf("%s: %w", what, refused(answer.StatusCode, text))
}

func refused(status int, text string) error {
	kind := appliance.Internal
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = appliance.Denied
	case http.StatusNotFound:
		kind = appliance.NotFound
	case http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusLengthRequired:
		kind = appliance.Invalid
	case http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage, http.StatusRequestedRangeNotSatisfiable:
		kind = appliance.Conflict
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		kind = appliance.NotReady
	}
	return appliance.Errorf(kind, "the artifact store says: %s", text)
}
