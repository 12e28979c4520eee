package agent

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/novox/mesh/appliance/wire"
)

// asks gives the keys that the mesh has to certify, all of them, where they are others than this agent has said; nil where it has said so.
// Those of an earlier agent are said again by the first that starts after it.
func (a *Agent) asks(ctx context.Context) *wire.Facts {
	requests, err := a.engine.requests(ctx)
	if err != nil {
		a.cfg.Log.Error("look for certificate requests", "err", err)
		return nil
	}
	same := func(x, y wire.CertificateRequest) bool {
		return x.Instance == y.Instance && x.Name == y.Name && slices.Equal(x.Request, y.Request)
	}
	if slices.EqualFunc(a.asked, requests, same) {
		return nil
	}
	a.asked = requests
	return &wire.Facts{Requests: &requests}
}

// requests gives a request for each certificate that is declared and has its key.
func (e *Engine) requests(ctx context.Context) ([]wire.CertificateRequest, error) {
	all := []wire.CertificateRequest{}
	for _, rec := range e.state.applied.Records {
		r := rec.Resource
		if r.Kind != wire.Certificate || !rec.Declared || e.machine.Request == nil || len(all) == wire.MaxRequests {
			continue
		}
		der, err := e.machine.Request(ctx, r)
		if err != nil {
			return nil, err
		}
		var spec wire.CertificateSpec
		if der != nil && json.Unmarshal(r.Spec, &spec) == nil {
			all = append(all, wire.CertificateRequest{Instance: r.Instance, Name: spec.Name, Request: der})
		}
	}
	return all, nil
}
