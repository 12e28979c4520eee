package controller

import (
	"context"
	"encoding/json"
	"regexp"
	"runtime/debug"
	"time"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/store"
	"github.com/novox/mesh/appliance/wire"
)

// requestWindow is how far an operator's clock may be from ours; the store keeps spent nonces longer than that.
const requestWindow = 2 * time.Minute

var nonceGrammar = regexp.MustCompile(`^[A-Za-z0-9]{1,64}$`)

// asked is one verified request.
type asked struct {
	operator  appliance.OperatorID
	by        store.By // carries the nonce; a verb that changes something spends it with the change
	arguments json.RawMessage
}

// verbs are the operators' requests. A test holds this map and the authorization table against each other.
var verbs = map[operators.Verb]func(*Controller, context.Context, asked) (any, error){
	operators.TokenCreate:    taking((*Controller).createToken),
	operators.TokenList:      (*Controller).listTokens,
	operators.TokenRevoke:    taking((*Controller).revokeToken),
	operators.ModuleRegister: taking((*Controller).registerModule),
	operators.ModuleList:     (*Controller).listModules,
	operators.ModuleShow:     taking((*Controller).showModule),
	operators.ModuleAssign:   taking((*Controller).assignModule),
	operators.ModuleUnassign: taking((*Controller).unassignModule),
	operators.ModuleRemove:   taking((*Controller).removeModule),
	operators.ModuleStop:     taking((*Controller).stopModule),
	operators.ModuleStart:    taking((*Controller).startModule),
	operators.ModulePurge:    taking((*Controller).purgeData),
	operators.ModuleRestart:  taking((*Controller).restartModule),
	operators.SettingSet:     taking((*Controller).setSetting),
	operators.SettingUnset:   taking((*Controller).unsetSetting),
	operators.SettingList:    taking((*Controller).listSettings),
	operators.PlanShow:       taking((*Controller).showPlan),
	operators.PlanPush:       taking((*Controller).pushPlan),
	operators.PlanList:       taking((*Controller).listPlans),
	operators.PlanRollback:   taking((*Controller).rollback),
	operators.StatusShow:     (*Controller).showStatus,
	operators.OverlayShow:    (*Controller).showOverlay,
	operators.NodeCheck:      taking((*Controller).checkNodes),
	operators.NodeHold:       taking((*Controller).holdNode),
	operators.NodeDrain:      taking((*Controller).drainNode),
	operators.NodeResume:     taking((*Controller).resumeNode),
	operators.NodeConverge:   taking((*Controller).convergeNode),
	operators.SessionLogs:    taking((*Controller).openLogs),
	operators.SessionExec:    taking((*Controller).openExec),
	operators.SessionSend:    taking((*Controller).sendSession),
	operators.NodeRemove:     taking((*Controller).removeNode),
	operators.NodeReplace:    taking((*Controller).replaceNode),
	operators.AuditList:      taking((*Controller).listAudit),
	operators.ArtifactGrant:  taking((*Controller).grantArtifact),
	operators.ArtifactList:   taking((*Controller).listArtifacts),
	operators.ArtifactShow:   taking((*Controller).showArtifact),
}

// taking reads a verb's arguments before it is carried out.
func taking[T any](verb func(*Controller, context.Context, asked, T) (any, error)) func(*Controller, context.Context, asked) (any, error) {
	return func(c *Controller, ctx context.Context, a asked) (any, error) {
		var ask T
		if err := wire.Decode(a.arguments, &ask); err != nil {
			return nil, appliance.Errorf(appliance.Invalid, "read arguments: %w", err).WithHint("the command may be of another version than the hub")
		}
		return verb(c, ctx, a, ask)
	}
}

// hearRequest verifies, carries out and answers an operator's request. Several may be under way; a caller that floods waits for its own.
func (c *Controller) hearRequest(ctx context.Context, m bus.Message) {
	id := appliance.OperatorID(wire.Token(m.Subject, 2))
	verb := operators.Verb(wire.Token(m.Subject, 3) + "." + wire.Token(m.Subject, 4))
	if err := c.turns.enter(id); err != nil {
		c.log.Warn("request refused", "operator", id, "verb", verb, "err", err)
		c.answer(id, m.Header, nil, err)
		return
	}
	go func() {
		defer c.turns.leave(id)
		if !c.turns.wait(ctx) {
			return
		}
		defer c.turns.done()
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		h, result, err := c.guarded(ctx, id, verb, m)
		if err != nil {
			c.log.Info("request refused", "operator", id, "verb", verb, "err", err)
		}
		if h.Reply != "" { // nobody proven asked otherwise
			c.answer(id, h, result, c.explained(err))
		}
	}()
}

// guarded keeps a panic in a verb from ending the hub.
func (c *Controller) guarded(ctx context.Context, id appliance.OperatorID, verb operators.Verb, m bus.Message) (h wire.Header, result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			c.log.Error("request panicked", "operator", id, "verb", verb, "panic", r, "stack", string(debug.Stack()))
			h, result, err = m.Header, nil, appliance.Errorf(appliance.Internal, "carry out %s: it failed inside; the hub's log says where", verb)
		}
	}()
	return c.carryOut(ctx, id, verb, m)
}

// carryOut gives the header once it is proven, and what the verb made of the request.
func (c *Controller) carryOut(ctx context.Context, id appliance.OperatorID, verb operators.Verb, m bus.Message) (wire.Header, any, error) {
	operator, err := c.cfg.Store.Operator(ctx, id)
	if store.IsUnavailable(err) {
		return m.Header, nil, err // whoever asks may know that
	}
	if err != nil {
		return wire.Header{}, nil, err
	}
	h, body, err := wire.Open(m.Data, wire.KindRequest, operator.Signing)
	switch {
	case err != nil:
		return wire.Header{}, nil, err
	case h.From != string(id) || h.Mesh != c.mesh.ID || h.To != string(c.mesh.ID):
		return wire.Header{}, nil, appliance.Errorf(appliance.Denied, "hear request: signed from %s to %s, heard from %s", appliance.Quote(h.From), appliance.Quote(h.To), id)
	case !wire.OwnsInbox(wire.OperatorUser(id), h.Reply):
		return h, nil, appliance.Errorf(appliance.Denied, "hear request: the answer would go to %s", appliance.Quote(h.Reply))
	case !nonceGrammar.MatchString(h.Nonce):
		return h, nil, appliance.Errorf(appliance.Invalid, "hear request: a nonce of 1 to 64 letters and digits makes it count once")
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
	result, err := verbs[verb](c, ctx, asked{id, store.By{Who: "operator " + string(operator.Name), Nonce: string(id) + "/" + h.Nonce, At: time.Now()}, request.Arguments})
	return h, result, err
}

// answer replies beneath the asker's own inbox, signed, under the request's nonce.
func (c *Controller) answer(id appliance.OperatorID, asked wire.Header, result any, failed error) {
	var a operators.Answer
	if failed == nil {
		a.Result, failed = wire.Encode(result)
	}
	var data []byte
	if failed == nil {
		data, failed = c.sealed(id, asked, a)
	}
	var err error
	if failed != nil {
		data, err = c.sealed(id, asked, operators.Answer{Error: appliance.AsError(failed)})
	}
	if err == nil {
		err = c.cfg.Link.Answer(wire.OperatorUser(id), asked.Reply, data)
	}
	if err != nil {
		c.log.Warn("answer", "operator", id, "err", err)
	}
}

func (c *Controller) sealed(id appliance.OperatorID, asked wire.Header, a operators.Answer) ([]byte, error) {
	body, err := wire.Encode(a)
	if err != nil {
		return nil, err
	}
	h := c.header(wire.KindAnswer, string(id))
	h.Nonce = asked.Nonce
	return wire.Seal(h, body, c.cfg.Keys.Signing)
}
