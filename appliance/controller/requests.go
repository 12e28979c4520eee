package controller

import (
	"context"
	"encoding/json"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// requestWindow is how far an operator's clock may be from ours; the store keeps spent nonces longer than that.
const requestWindow = 2 * time.Minute

// asked is one verified request.
type asked struct {
	by        store.By // carries the nonce; a verb that changes something spends it with the change
	arguments json.RawMessage
}

// verbs are the operators' requests. A test holds this map and the authorization table against each other.
var verbs = map[operators.Verb]func(*Controller, context.Context, asked) (any, error){
	operators.TokenCreate:    (*Controller).createToken,
	operators.TokenList:      (*Controller).listTokens,
	operators.TokenRevoke:    (*Controller).revokeToken,
	operators.ModuleRegister: (*Controller).registerModule,
	operators.ModuleList:     (*Controller).listModules,
	operators.ModuleShow:     (*Controller).showModule,
	operators.ModuleAssign:   (*Controller).assignModule,
	operators.ModuleUnassign: (*Controller).unassignModule,
	operators.PlanShow:       (*Controller).showPlan,
	operators.PlanPush:       (*Controller).pushPlan,
	operators.StatusShow:     (*Controller).showStatus,
	operators.OverlayShow:    (*Controller).showOverlay,
	operators.AuditList:      (*Controller).listAudit,
}

// hearRequest verifies, carries out and answers an operator's request. Several may be under way; a caller that floods waits for its own.
func (c *Controller) hearRequest(ctx context.Context, m bus.Message) {
	select {
	case c.requests <- struct{}{}:
	case <-ctx.Done():
		return
	}
	go func() {
		defer func() { <-c.requests }()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		id := appliance.OperatorID(wire.Token(m.Subject, 2))
		verb := operators.Verb(wire.Token(m.Subject, 3) + "." + wire.Token(m.Subject, 4))
		h, result, err := c.carryOut(ctx, id, verb, m.Data)
		if err != nil {
			c.log.Info("request refused", "operator", id, "verb", verb, "err", err)
		}
		if h.Reply != "" { // nobody proven asked otherwise
			c.answer(id, h, result, err)
		}
	}()
}

// carryOut gives the header once it is proven, and what the verb made of the request.
func (c *Controller) carryOut(ctx context.Context, id appliance.OperatorID, verb operators.Verb, data []byte) (wire.Header, any, error) {
	operator, err := c.cfg.Store.Operator(ctx, id)
	if err != nil {
		return wire.Header{}, nil, err
	}
	h, body, err := wire.Open(data, wire.KindRequest, operator.Signing)
	switch {
	case err != nil:
		return wire.Header{}, nil, err
	case h.From != string(id) || h.Mesh != c.mesh.ID || h.To != string(c.mesh.ID):
		return wire.Header{}, nil, appliance.Errorf(appliance.Denied, "hear request: signed from %s to %s, heard from %s", appliance.Quote(h.From), appliance.Quote(h.To), id)
	case h.Nonce == "" || len(h.Nonce) > 64:
		return h, nil, appliance.Errorf(appliance.Invalid, "hear request: a nonce of 1 to 64 characters makes it count once")
	}
	if off := time.Since(h.Time).Abs(); off > requestWindow {
		return h, nil, appliance.Errorf(appliance.Denied, "hear request: signed at %s, here it is %s", h.Time.Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339)).
			WithReason("clock").WithHint("the two clocks must agree within two minutes; set this machine's clock")
	}
	var request operators.Request
	if err := wire.Decode(body, &request); err != nil {
		return h, nil, appliance.Errorf(appliance.Invalid, "hear request: %w", err)
	}
	if request.Verb != verb {
		return h, nil, appliance.Errorf(appliance.Denied, "hear request: signed for %s, sent as %s", appliance.Quote(string(request.Verb)), appliance.Quote(string(verb)))
	}
	if err := operators.Authorize(operators.Role(operator.Role), verb); err != nil {
		return h, nil, err
	}
	result, err := verbs[verb](c, ctx, asked{store.By{Who: "operator " + string(operator.Name), Nonce: string(id) + "/" + h.Nonce, At: time.Now()}, request.Arguments})
	return h, result, err
}

// answer replies beneath the asker's own inbox, signed, under the request's nonce.
func (c *Controller) answer(id appliance.OperatorID, asked wire.Header, result any, failed error) {
	var a operators.Answer
	var err error
	if failed != nil {
		a.Error = appliance.AsError(failed)
	} else if a.Result, err = wire.Encode(result); err != nil {
		a.Error = appliance.AsError(err)
	}
	body, err := wire.Encode(a)
	if err == nil {
		h := c.header(wire.KindAnswer, string(id))
		h.Nonce = asked.Nonce
		var data []byte
		if data, err = wire.Seal(h, body, c.cfg.Keys.Signing); err == nil {
			err = c.cfg.Link.Answer(wire.OperatorUser(id), asked.Reply, data)
		}
	}
	if err != nil {
		c.log.Warn("answer", "operator", id, "err", err)
	}
}

// read takes the arguments of a request.
func (a asked) read(into any) error {
	if err := wire.Decode(a.arguments, into); err != nil {
		return appliance.Errorf(appliance.Invalid, "read arguments: %w", err).WithHint("the command may be of another version than the hub")
	}
	return nil
}
