// Package client is an operator's side of the bus: it signs a request, sends it, and verifies the answer. What may be asked is in
// operators; how an answer is shown is the command's.
package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/novox/mesh/appliance"
	"github.com/novox/mesh/appliance/bus"
	"github.com/novox/mesh/appliance/operators"
	"github.com/novox/mesh/appliance/pki"
	"github.com/novox/mesh/appliance/wire"
)

// Client is a connection under one credential.
type Client struct {
	credential operators.Credential
	link       *bus.Link
}

// Dial connects; it returns once the broker has admitted the operator, or when ctx ends.
func Dial(ctx context.Context, credential operators.Credential, log *slog.Logger) (*Client, error) {
	key, err := nkeys.FromSeed([]byte(credential.Bus))
	if err != nil {
		return nil, appliance.Errorf(appliance.Invalid, "read the bus key of operator %s: it is damaged", credential.Name)
	}
	authority, err := pki.ParseAuthority(credential.Authority)
	if err != nil {
		return nil, err
	}
	tls := pki.ClientTLS(authority, pki.BrokerName(credential.Mesh), nil, pki.Clock(nil))
	link, err := bus.Connect(ctx, bus.Options{Endpoints: credential.Broker, TLS: tls, User: wire.OperatorUser(credential.Operator), Key: key, Logger: log, Wait: true})
	if err != nil {
		return nil, appliance.Errorf(appliance.Unavailable, "reach the hub at %s: %w", strings.Join(credential.Broker, ", "), err).
			WithHint("is the hub running, and does this machine reach it?").WithNext("mesh start   (on the hub)")
	}
	return &Client{credential, link}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.link.Close() }

// Call asks verb with arguments and reads the answer into result, which may be nil. An error of the controller's keeps its kind.
func (c *Client) Call(ctx context.Context, verb operators.Verb, arguments, result any) error {
	args, err := wire.Encode(arguments)
	if err != nil {
		return err
	}
	body, err := wire.Encode(operators.Request{Verb: verb, Arguments: args})
	if err != nil {
		return err
	}
	nonce := rand.Text()
	data, err := c.link.Request(ctx, wire.RequestSubject(c.credential.Operator, string(verb)), func(reply string) ([]byte, error) {
		return wire.Seal(wire.Header{Kind: wire.KindRequest, Version: wire.Version, Mesh: c.credential.Mesh, From: string(c.credential.Operator),
			To: string(c.credential.Mesh), Nonce: nonce, Reply: reply, Time: time.Now()}, body, c.credential.SigningKey())
	})
	if err != nil {
		return appliance.Errorf(appliance.Unavailable, "ask %s: %w", verb, err).WithHint("the broker is there, the controller does not answer; it may still be waiting for its store").WithNext("mesh status")
	}
	answer, err := c.open(data, nonce)
	if err != nil {
		return appliance.Errorf(appliance.Denied, "read the answer to %s: %w", verb, err)
	}
	if answer.Error != nil {
		return answer.Error
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return appliance.Errorf(appliance.Invalid, "read the answer to %s: %w", verb, err).WithHint("the hub may run another version")
	}
	return nil
}

// open verifies that the mesh answered, and that it answered this request.
func (c *Client) open(data []byte, nonce string) (operators.Answer, error) {
	var a operators.Answer
	h, body, err := wire.Open(data, wire.KindAnswer, c.credential.Signing)
	if err != nil {
		return a, err
	}
	if h.Mesh != c.credential.Mesh || h.To != string(c.credential.Operator) || h.Nonce != nonce {
		return a, appliance.Errorf(appliance.Denied, "it answers another request")
	}
	return a, json.Unmarshal(body, &a)
}
